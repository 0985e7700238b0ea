"""cs_input_analyzer from its command line to its reports, on an example program and on a function."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from cs_toolkit.errors import UsageError
from csrun.jobs.layout import read_recommendation
from input_analyzer import commands
from input_analyzer.commands import own_command
from input_analyzer.function_program import refuse_no_program

ROOT = Path(__file__).parents[3]
ANALYZER = str(ROOT / "bin/cs_input_analyzer")


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ANALYZER, *words], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.timeout(240)
def test_a_program_with_estimator_is_analysed_and_not_trained(tmp_path: Path) -> None:
    flags = ["--seconds=1", "--cpus_per_task", "1", "--available-nodes=1", "--json=a.json", "--html=a.html"]
    program = str(ROOT / "models/fc_mnist/tf/run.py")
    done = run(tmp_path, *flags, "--target-samples-per-s=1e9", "python", program, "--mode=train", "-o", "out")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["subject"]["function"] == "train_input_fn"
    assert found["subject"]["batch_size"] == 256
    assert [part["name"] for part in found["subject"]["components"]] == ["features", "labels"]
    assert [stage["name"] for stage in found["stages"]] == [
        "from_tensor_slices", "shuffle", "repeat", "batch", "map", "prefetch",
    ]  # fmt: skip
    assert found["bottleneck"]["stage"] in {"from_tensor_slices", "shuffle", "batch", "map"}
    assert found["input_bound"] is True
    assert all(m["low"] <= m["samples_per_s"] <= m["high"] for m in found["measurements"])
    assert found["measurements"][0]["bytes_per_sample"] == 3140
    assert read_recommendation(tmp_path / "a.json").cpus_per_task == 1
    # The machine may be busy.
    headline = f"{'T' if found['settled'] else 'Unsettled: t'}raining will be input-bound"
    assert headline in done.stdout
    assert f"<h1>{headline}</h1>" in (tmp_path / "a.html").read_text()
    assert "% measurement 1 of 2, 2 x 1 CPUs: measuring\n" in done.stderr
    assert not list(tmp_path.glob("out/model.ckpt*")), "nothing was trained"


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_function_is_analysed_without_a_program(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import tensorflow as tf\n\n"
        "def train_input():\n"
        "    rows = sum(1 for row in NUMBERS) // 100\n"
        "    return NUMBERS.batch(rows, drop_remainder=True).repeat()\n\n"
        "NUMBERS = tf.data.Dataset.range(1000).cache('kept')\n"
    )
    done = run(tmp_path, "--seconds=1", "--cpus-per-task=1", "--json=a.json", "mine.py:train_input")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["subject"]["function"] == "train_input"
    assert found["subject"]["source"] == "mine.py:3", "as findings have it"
    assert found["input_bound"] is None
    assert found["target_samples_per_s"] is None
    assert [stage["source"] for stage in found["stages"]] == ["mine.py:7"] * 2 + ["mine.py:5"] * 2
    assert "Without a target" in done.stdout
    assert "kept: written to a temporary folder of the analysis instead" in " ".join(found["notes"])
    assert not list(tmp_path.glob("kept*")), "a training would read it"


def test_a_python_file_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.py").touch()
    for word in ("data.py", "./data.py"):
        with pytest.raises(UsageError, match=f"expected 'python {word}' for .* '{word}:FUNCTION' for a fun"):
            refuse_no_program([word, "--mode=train"], "/bin")
    refuse_no_program(["other.py"], "/bin")
    refuse_no_program(["data.py:train_input"], "/bin")
    Path("data.py").chmod(0o755)
    refuse_no_program(["./data.py"], "/bin")
    refuse_no_program(["data.py"], str(tmp_path))


def test_flags_stand_before_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = r"p:make names .* '--seconds 1'; expected .*: cs_input_analyzer --seconds 1 p:make$"
    with pytest.raises(UsageError, match=said):
        refuse_no_program(["p:make", "--seconds", "1"], "/bin")
    refuse_no_program(["p:make"], "/bin")
    refuse_no_program(["python", "p:make", "--seconds"], "/bin")
    Path("p:make").touch(mode=0o755)
    refuse_no_program(["p:make", "--seconds", "1"], str(tmp_path))


def test_on_another_node_it_starts_as_it_was_called(tmp_path: Path) -> None:
    python = ROOT / ".venv/bin/python"
    words = own_command(["--nonsense", "python", "run.py"], python, ROOT)
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cs_input_analyzer: unknown flag '--nonsense'" in done.stderr


def test_with_slurm_it_becomes_an_srun_on_its_own_node(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    cpus, ports = "NodeName=n1 CPUEfctv=3 CPUTot=4", "SrunPortRange = 0-0"
    partition, node = r"cpu*\037up\0371:00:00\0374\n", r"n1\0374\0378000\037(null)\037cpu*\037idle\037none\n"
    for name, body in {
        "srun": 'echo srun "$@"',
        "scontrol": f'case "$*" in *nodes) echo {cpus};; *) echo {ports};; esac',
        "sinfo": f"case \"$*\" in *%D*) printf '{partition}';; *) printf '{node}';; esac",
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ANALYZER, "--launcher=slurm", "--partition=cpu", "python", "run.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert done.stdout.startswith("srun "), done.stderr
    assert "--nodes=1 --ntasks=1 --exclusive --mpi=none --cpus-per-task=3 " in done.stdout
    assert done.stdout.rstrip().endswith("--launcher=slurm --partition=cpu python run.py")


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_all_figures(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    for name, value in {"TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    with commands._show_progress() as tell:
        tell(f"measuring what loader-workers-many gives, round 2 of 8, after {'all ' * 20}", 0.35)
    drawn, cleared = re.split(r"\r\x1b\[K", capfd.readouterr().err)[1:]
    assert drawn.startswith(" 35 % measuring what loader-workers-many")
    assert len(drawn) == width - 1
    assert cleared == ""

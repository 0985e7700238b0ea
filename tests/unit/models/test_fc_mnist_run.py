"""The command line of FC-MNIST, and its accuracy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.systems import RunningSystem

Modules = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run tests as a process without a launcher, in a new directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "CSRUN_RANK", "CSRUN_NUM_TASKS", "CSRUN_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


def run_py(fc_mnist_dir: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(fc_mnist_dir / "run.py"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--mode", "fly"], "invalid choice: 'fly' (choose from"),
        (["--mode", "train", "--validate_only", "--compile_only"], "exclude each other"),
        (["--mode", "validate_only", "--compile_only"], "exclude each other"),
        (["--mode", "train", "--steps", "5", "--max_steps", "6"], "--steps 5 and --max_steps 6"),
        (["--mode", "train", "--steps", "0"], "--steps must be > 0, got 0"),
        (["--mode", "train", "--cs_ip", "10.0.0.1", "--device", "CPU:0"], "--device CPU:0 is for"),
        (["--mode", "train", "--num_replicas", "4", "--multireplica"], "--num_replicas 4 exclude each other"),
        ([], "-m/--mode"),
    ],
)
def test_wrong_command_lines(
    fc_mnist: Modules, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        fc_mnist["run"].PROGRAM.parse_arguments(arguments)
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


def test_both_ways_to_say_compile_only(fc_mnist: Modules) -> None:
    parse = fc_mnist["run"].PROGRAM.parse_arguments
    for arguments in (["-m", "compile_only"], ["-m", "train", "--compile_only"]):
        args = parse(arguments)
        assert (args.mode, args.compile_only, args.validate_only) == ("train", True, False)
    assert parse(["-m", "validate_only"]).validate_only
    assert parse(["-m", "train"]).model_dir == Path(fc_mnist["run"].__file__).parent / "model_dir"


def test_the_command_line_wins_over_the_file(fc_mnist: Modules, tmp_path: Path) -> None:
    program = fc_mnist["run"].PROGRAM

    def merged(*arguments: str) -> dict[str, Any]:
        params: dict[str, Any] = program.merge_params(program.parse_arguments(["-m", "train", *arguments]))
        return params

    assert merged()["runconfig"]["max_steps"] == 1000
    assert merged("--max_steps", "7")["runconfig"]["max_steps"] == 7
    assert merged("--steps", "7")["runconfig"]["max_steps"] is None
    assert merged("--steps", "7")["runconfig"]["steps"] == 7
    assert merged("--eval_steps", "0")["runconfig"]["eval_steps"] is None
    assert merged()["runconfig"]["num_replicas"] is None
    assert merged("--multireplica")["runconfig"]["num_replicas"] == "auto"
    file = tmp_path / "four.yaml"
    params = yaml.safe_load((program.folder / program.params_file).read_text())
    params["runconfig"]["num_replicas"] = 4
    file.write_text(yaml.safe_dump(params))
    assert merged("-p", str(file))["runconfig"]["num_replicas"] == 4
    assert merged("-p", str(file), "--multireplica")["runconfig"]["num_replicas"] == "auto"
    assert merged("--data_dir", str(tmp_path))["eval_input"]["data_dir"] == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["eval", "--steps", "5"], ["--steps"]),
        (["predict", "--max_steps", "5", "--eval_steps", "1"], ["--max_steps"]),
        (["train", "--eval_steps", "5", "--max_steps", "5"], ["--eval_steps"]),
        (["eval_all", "--checkpoint_path", "x", "--eval_steps", "5"], ["--checkpoint_path"]),
        (["train_and_eval", "--eval_steps", "5", "--max_steps", "5"], []),
        (["compile_only", "--eval_steps", "5", "--max_steps", "5"], []),
    ],
)
def test_a_flag_that_a_mode_does_not_use_is_named(
    fc_mnist: Modules, capsys: pytest.CaptureFixture[str], arguments: list[str], unused: list[str]
) -> None:
    fc_mnist["run"].PROGRAM.parse_arguments(["-m", *arguments])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == unused
    assert all(f"has no effect with --mode {arguments[0]}: " in line for line in lines)


def test_bad_parameter_files(fc_mnist_dir: Path, tmp_path: Path) -> None:
    missing = run_py(fc_mnist_dir, tmp_path, "-m", "train", "-p", "nowhere.yaml")
    assert missing.returncode == 2
    assert missing.stderr.splitlines() == [
        "error: nowhere.yaml: no such file; give the path of an existing YAML file"
    ]
    text = (fc_mnist_dir / "configs" / "params_fc_mnist.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("dropout: 0.2", "droput: 0.2") + "  max_steps: 5\n")
    doubled = run_py(fc_mnist_dir, tmp_path, "-m", "train", "-p", "bad.yaml")
    assert doubled.returncode == 2
    assert "duplicate key 'runconfig.max_steps'" in doubled.stderr
    (tmp_path / "bad.yaml").write_text(text.replace("dropout: 0.2", "droput: 0.2"))
    unknown = run_py(fc_mnist_dir, tmp_path, "-m", "train", "-p", "bad.yaml")
    line = 1 + text.splitlines().index("  dropout: 0.2")
    assert unknown.returncode == 2
    assert f"bad.yaml:{line}: unknown key 'model.droput'; did you mean 'dropout'?" in unknown.stderr
    assert "Traceback" not in missing.stderr + doubled.stderr + unknown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_it_learns_to_read(fc_mnist: Modules, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The main job on this CPU: train, evaluate, predict."""
    model_dir = tmp_path / "model_dir"
    main = fc_mnist["run"].main
    where = ["-o", str(model_dir)]
    main(["-m", "train", "--max_steps", "300", *where])
    main(["-m", "eval", *where])
    shown = dict(pair.split(" = ") for pair in capsys.readouterr().out.strip().split(", "))
    assert float(shown["accuracy"]) >= 0.97
    assert shown["global_step"] == "300"
    main(["-m", "predict", "--eval_steps", "2", *where])
    predictions = np.load(model_dir / "predict" / "predictions_tf_0.npz")
    assert predictions["probabilities"].shape == (80, 10)
    assert (predictions["classes"] == predictions["probabilities"].argmax(axis=1)).all()
    written = yaml.safe_load((model_dir / "params.yaml").read_text())
    assert written["model"] == {"hidden_sizes": [500, 300], "dropout": 0.2}


def test_train_and_eval_then_eval_all(
    fc_mnist: Modules,
    fc_mnist_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    system: RunningSystem,
) -> None:
    """Every checkpoint is evaluated, on this CPU and on the CS system, to the same figures."""
    params = yaml.safe_load((fc_mnist_dir / "configs" / "params_fc_mnist.yaml").read_text())
    params["model"]["hidden_sizes"] = [16]
    params["runconfig"].update(save_checkpoints_steps=4, max_steps=8)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(params))
    common = ["-o", str(tmp_path / "model_dir"), "-p", str(tmp_path / "small.yaml"), "--eval_steps", "1"]
    fc_mnist["run"].main(["-m", "train_and_eval", *common])
    assert "global_step = 8" in capsys.readouterr().out
    fc_mnist["run"].main(["-m", "eval_all", *common])
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split("global_step = ")[1].split(",")[0] for line in lines] == ["4", "8"]
    fc_mnist["run"].main(["-m", "eval_all", *common, "--cs_ip", system.address])
    on_system = [line for line in capsys.readouterr().out.splitlines() if "global_step = " in line]
    assert [_metrics(line) for line in on_system] == [
        pytest.approx(_metrics(line), rel=1e-5) for line in lines
    ]


def _metrics(line: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"(\w+) = ([0-9.e+-]+)", line)}

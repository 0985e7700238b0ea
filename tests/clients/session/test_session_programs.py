"""Programs of releases 1.2 to 1.7 on a CS system: their losses are those of PyTorch itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cstorch
from cstorch.errors import SessionError
from tests.processes import clean_environment
from tests.systems import RunningSystem

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
RUNNER = str(PROGRAMS / "runner_1_6.py")
PARAMS = ("-p", str(PROGRAMS / "params.yaml"))

Run = Callable[..., dict[str, Any]]


def launched(directory: Path, *words: str, code: int = 0) -> str:
    """Return the output of a launcher that ends with an exit code."""
    clean = clean_environment()
    ended = subprocess.run(
        [str(ROOT / "bin" / words[0]), *words[1:]],
        cwd=directory,
        env={**clean, "XDG_CONFIG_HOME": str(directory)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def told(output: str, word: str) -> Any:
    """Return the JSON after a word of the output."""
    (line,) = [line for line in output.splitlines() if f"{word} " in line]
    return json.loads(line.partition(f"{word} ")[2])


def test_a_runner_trains_with_workers_and_evaluates_its_checkpoint(
    system: RunningSystem, run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cs = (f"--cs_ip={system.address}", "--model_dir=cs")
    output = launched(
        tmp_path, "csrun_wse", "--tasks-per-node=3", "python-pt", RUNNER, *PARAMS, "--mode=train", *on_cs
    )
    assert "Saved checkpoint at global step: 20" in output
    run_program("runner_1_6", *PARAMS, "--mode=train", "--model_dir=cpu")
    expected = dict(told(capsys.readouterr().out, "LOSSES"))
    assert len(expected) == 20
    fetched = dict(told(output, "LOSSES"))
    assert sorted(fetched) == [4, 8, 10, 12, 16, 20]
    assert fetched == pytest.approx({step: expected[step] for step in fetched}, rel=1e-5)
    names = {path.name for path in (tmp_path / "cs").iterdir()}
    assert names >= {"checkpoint_10.mdl", "checkpoint_20.mdl", "performance.json", "run_summary.json"}
    assert (tmp_path / "cs" / "train" / "params_train.yaml").is_file()
    performance = json.loads((tmp_path / "cs" / "performance" / "performance.json").read_text())
    assert performance["total_samples"] == 20 * 16
    assert performance["compile_time"] > 0
    assert "training" in performance["phases"]
    for step in (10, 20):
        ours, theirs = (torch.load(tmp_path / side / f"checkpoint_{step}.mdl") for side in ("cs", "cpu"))
        torch.testing.assert_close(ours["model"], theirs["model"], rtol=1e-4, atol=1e-6)
        assert ours["optimizer"]["state"][0]["global_step"] == step
    checkpoint = "--checkpoint_path=cs/checkpoint_20.mdl"
    found = {}
    for side, words in {"cs": on_cs, "cpu": ("--model_dir=cpu",)}.items():
        run_program("runner_1_6", *PARAMS, "--mode=eval", checkpoint, *words)
        found[side] = told(capsys.readouterr().out, "EVAL")
    assert found["cs"] == pytest.approx(found["cpu"], rel=1e-5)


@pytest.mark.parametrize(("flag", "artifacts"), [("--validate_only", 0), ("--compile_only", 1)])
def test_a_runner_compiles_without_a_session(
    run_program: Run, tmp_path: Path, flag: str, artifacts: int
) -> None:
    run_program("runner_1_6", *PARAMS, "--mode=train", flag)
    assert len(list((tmp_path / "model_dir").glob("cs_*"))) == artifacts
    assert {"fabric.json", "run_summary.json"} <= {path.name for path in (tmp_path / "model_dir").iterdir()}


@pytest.mark.parametrize("reads", [(), ("--reads",)], ids=["closures", "reads"])
def test_a_standard_loop_runs_its_body_for_every_batch(
    system: RunningSystem, run_program: Run, reads: tuple[str, ...]
) -> None:
    """The program counts in Python, decides when to look, and may read values after the update."""
    ours = run_program("plain", "--checkpoint=cs.mdl", f"--cs_ip={system.address}", *reads)["result"]
    theirs = run_program("plain", "--checkpoint=cpu.mdl", *reads)["result"]
    assert [step for step, *_ in ours["seen"]] == ([*range(1, 17)] if reads else [3, 6, 9, 12, 15])
    for mine, expected in zip(ours["seen"], theirs["seen"], strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)
    assert ours["eval"] == pytest.approx(theirs["eval"], rel=1e-4)
    torch.testing.assert_close(ours["state"], theirs["state"], rtol=1e-3, atol=1e-5)
    saved = [torch.load(f"{side}.mdl") for side in ("cs", "cpu")]
    assert saved[0]["step"] == saved[1]["step"] == 10
    torch.testing.assert_close(saved[0]["model"], saved[1]["model"], rtol=1e-3, atol=1e-5)


def test_a_program_decides_by_the_step_and_expects_batches(system: RunningSystem, tmp_path: Path) -> None:
    """Lines and checkpoints have their steps; a resumed run without workers equals one; workers end."""
    program = (str(PROGRAMS / "steps_1_2.py"), f"--cs_ip={system.address}")
    output = launched(tmp_path, "csrun_wse", "--tasks-per-node=2", "python-pt", *program)
    seen = dict(re.findall(r"Step=(\d+), Loss=([\d.]+)", output))
    assert list(seen) == ["2", "4", "6", "7"]
    assert len(set(seen.values())) == 4
    assert "trained 7 steps" in output
    first = re.search(r"global step 1: loss = ([\d.]+)", output)
    assert first is not None
    assert float(first[1]) < 3  # without the scale of 1024
    folder = tmp_path / "model_dir"
    assert {path.name for path in folder.glob("*.mdl")} == {f"checkpoint_{n}.mdl" for n in (3, 6, 7)}
    whole = torch.load(folder / "checkpoint_7.mdl")
    assert whole["amp"]["loss_scale"] == 2.0**10
    resumed = ("--model_dir=resumed", f"--checkpoint_path={folder / 'checkpoint_3.mdl'}")
    again = launched(tmp_path, "csrun_wse", "--tasks-per-node=1", "python-pt", *program, *resumed)
    assert dict(re.findall(r"Step=(\d+), Loss=([\d.]+)", again)).items() >= {"7": seen["7"]}.items()
    torch.testing.assert_close(torch.load(tmp_path / "resumed" / "checkpoint_7.mdl"), whole, rtol=0, atol=0)


def test_an_error_of_the_chief_is_the_one_that_is_shown(system: RunningSystem, tmp_path: Path) -> None:
    program = (str(PROGRAMS / "steps_1_2.py"), f"--cs_ip={system.address}", "--fails_at=4")
    output = launched(tmp_path, "csrun_wse", "--tasks-per-node=2", "python-pt", *program, code=1)
    assert "RuntimeError: the program does not like step 4" in output
    assert "there were no batches" not in output


def test_a_program_drives_the_appliance(
    system: RunningSystem, run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains to the losses of PyTorch, continues bit for bit, and evaluates its checkpoint."""
    on_cs = ("CSX", f"--mgmt_address={system.address}", "--credentials_path=tls.crt")
    run_program("appliance_1_8", "CPU", "--model_dir=cpu")
    expected = dict(told(capsys.readouterr().out, "LOSSES"))
    run_program("appliance_1_8", *on_cs, "--model_dir=cs")
    output = capsys.readouterr().out
    whole = dict(told(output, "LOSSES"))
    assert whole == pytest.approx(expected, rel=1e-5)
    assert told(output, "FILES") == [f"checkpoint_{step}.mdl" for step in (3, 6, 7)]
    checkpoint = f"--checkpoint_path={tmp_path}/cs/checkpoint_3.mdl"
    run_program("appliance_1_8", *on_cs, "--model_dir=again", checkpoint)
    assert dict(told(capsys.readouterr().out, "LOSSES")) == {step: whole[step] for step in (4, 5, 6, 7)}
    ours, theirs = (cstorch.load(tmp_path / side / "checkpoint_7.mdl") for side in ("again", "cs"))
    torch.testing.assert_close(ours["model"], theirs["model"], rtol=0, atol=0)
    assert (ours["global_step"], ours["amp"]["loss_scale"]) == (7, 2.0**10)
    run_program("appliance_1_8", *on_cs, "--model_dir=tuned", checkpoint, "--is_pretrained_checkpoint")
    tuned = dict(told(capsys.readouterr().out, "LOSSES"))
    assert list(tuned) == list(range(1, 8))
    assert tuned[1] < whole[1]
    with pytest.raises(RuntimeError, match="does not like step 4"):
        run_program("appliance_1_8", *on_cs, "--model_dir=failed", "--fails_at=4")
    capsys.readouterr()
    found = {}
    for side, words in {"cs": (*on_cs, "--model_dir=eval"), "cpu": ("CPU",)}.items():
        run_program("appliance_1_8", *words, "--mode=eval", checkpoint)
        output = capsys.readouterr().out
        found[side] = [*dict(told(output, "LOSSES")).values(), told(output, "ACCURACY")]
    assert found["cs"] == pytest.approx(found["cpu"], rel=1e-5)


def test_a_program_of_the_appliance_prunes_weights(
    system: RunningSystem, run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The grouper marks elements by NaN: they stay 0, have no gradient, and are NaN in checkpoints."""
    prunes = ("--prunes", "hidden.weight", "out.weight")
    run_program("appliance_1_8", "CPU", "--model_dir=cpu", *prunes)
    expected = dict(told(capsys.readouterr().out, "LOSSES"))
    on_cs = ("CSX", f"--mgmt_address={system.address}", *prunes)
    run_program("appliance_1_8", *on_cs, "--model_dir=cs")
    assert dict(told(capsys.readouterr().out, "LOSSES")) == pytest.approx(expected, rel=1e-5)
    ours, theirs = (cstorch.load(tmp_path / side / "checkpoint_7.mdl") for side in ("cs", "cpu"))
    for name in ("hidden.weight", "out.weight"):
        dense = theirs["model"][name]
        torch.testing.assert_close(ours["model"][name].isnan(), dense == 0)
        torch.testing.assert_close(ours["model"][name].nan_to_num(0), dense, rtol=1e-4, atol=1e-6)
    assert ours["optimizer"]["state"][0]["momentum_buffer"].isnan().sum() == 18
    assert not ours["model"]["hidden.bias"].isnan().any()
    with pytest.raises(SessionError, match=r"prunes model\.out\.weight, expected .* marked before the step"):
        run_program("appliance_1_8", *on_cs, "--marks", "hidden.weight")


def test_a_program_of_the_appliance_has_workers(system: RunningSystem, tmp_path: Path) -> None:
    """Workers get the input function, and do not go through the program."""
    program = (str(PROGRAMS / "appliance_1_8.py"), "CSX", f"--mgmt_address={system.address}")
    output = launched(tmp_path, "csrun_wse", "--tasks-per-node=2", "python", *program)
    losses = dict(told(output, "LOSSES"))
    assert list(losses) == list(range(1, 8))
    assert output.count("FILES") == 1


@pytest.mark.parametrize(("flag", "artifacts"), [("--validate_only", 0), ("--compile_only", 1)])
def test_a_program_of_the_appliance_compiles(
    run_program: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, artifacts: int
) -> None:
    run_program("appliance_1_8", "CSX", flag)
    assert told(capsys.readouterr().out, "LOSSES") == []
    assert len(list((tmp_path / "model_dir").glob("cs_*"))) == artifacts

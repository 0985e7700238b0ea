"""A program for the original stack, unmodified, through the launchers and on a CS system."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from cs_system.testing import RunningSystem

RUN_PY = str(Path(__file__).parent / "program" / "run.py")
TRAIN = ("csrun_wse", "--tasks-per-node=3", "python", RUN_PY, "--mode=train")
Command = Callable[..., CompletedProcess[str]]


def done(process: CompletedProcess[str]) -> str:
    """Its stdout."""
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def trained(
    system: RunningSystem, run_in: Callable[[Path], Command], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Where three tasks have trained on the system, and what they have written."""
    directory = tmp_path_factory.mktemp("trained")
    # The program itself appends ":9000", whatever is there.
    words = ("--max_steps=60", f"--cs_ip={system.address}")
    return directory, done(run_in(directory)(*TRAIN, *words))


def test_three_tasks_train_on_the_system(trained: tuple[Path, str]) -> None:
    directory, log = trained
    for task in ("chief", "worker 0", "worker 1"):
        assert f"{task} | inside: True, custom session: True" in log
    assert "worker 0 | shard 0 of 2" in log
    assert "worker 1 | shard 1 of 2" in log
    losses = [float(text) for text in re.findall(r"global step \d+: loss = ([0-9.]+)", log)]
    assert losses[-1] < 0.5 * losses[0]
    summary = json.loads((directory / "model_dir" / "run_summary.json").read_text())
    assert (summary["status"], summary["workers"], summary["last_step"]) == ("completed", 2, 60)


def test_the_systems_checkpoint_is_evaluated_and_predicts_on_this_cpu(
    trained: tuple[Path, str], run_in: Callable[[Path], Command]
) -> None:
    command = run_in(trained[0])
    evaluated = done(command("csrun_cpu", "python", RUN_PY, "-m", "eval", "--eval_steps=8"))
    assert "checkpoint of step 60" in evaluated
    accuracy = re.search(r"'accuracy': np.float32\(([0-9.]+)\)", evaluated)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9
    classes = re.search(r"classes: \[(.*)\]", done(command("csrun_cpu", "python", RUN_PY, "-m", "predict")))
    assert classes is not None
    assert len(classes[1].split(",")) == 10


def test_validation_and_compilation_without_a_system(command: Command, tmp_path: Path) -> None:
    kernels = done(command("csrun_cpu", "python3", RUN_PY, "--mode=validate_only"))
    assert "inside: True" in kernels
    assert re.search(r"fc1 .*fully_connected", kernels)
    # The summary that the program has disabled would be a reduction of its own.
    assert "reduce" not in kernels
    done(command("csrun_cpu", "python", RUN_PY, "--mode=compile_only"))
    (artifact,) = (tmp_path / "model_dir").glob("cs_*")
    assert "cbfloat16" in (artifact / "cirh.mlir").read_text()
    summary = json.loads((tmp_path / "model_dir" / "run_summary.json").read_text())
    assert summary["precision"] == "cbfloat16"


def losses(log: str) -> dict[int, str]:
    """Loss by global step, as the chief has logged it."""
    return {int(step): loss for step, loss in re.findall(r"global step (\d+): loss = ([0-9.]+)", log)}


@pytest.fixture(scope="module")
def begun(
    system: RunningSystem, run_in: Callable[[Path], Command], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Where a training has ended after a third of the steps."""
    directory = tmp_path_factory.mktemp("begun")
    done(run_in(directory)(*TRAIN, "--max_steps=20", f"--cs_ip={system.address}"))
    return directory


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--skip",), r"the toolkit skips nothing of the 10 batches of worker 0 that earlier runs have used"),
        (("--input_position=toolkit",), r"the toolkit skips the first 10 batches of worker 0"),
    ],
    ids=["program", "toolkit"],
)
def test_a_continued_run_leaves_out_its_input_once(
    system: RunningSystem,
    trained: tuple[Path, str],
    begun: Path,
    command: Command,
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
) -> None:
    """Either the program leaves out what earlier runs have used, or the toolkit where it is asked for it."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    continued = done(command(*TRAIN, *words, "--max_steps=60", f"--cs_ip={system.address}"))
    assert "continuing at global step 20: " in continued
    assert re.search(said, continued)
    unbroken = losses(trained[1])
    steps = [30, 40, 50, 60]
    assert [losses(continued)[step] for step in steps] == [unbroken[step] for step in steps]

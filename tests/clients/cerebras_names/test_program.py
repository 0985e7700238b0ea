"""A program for the original stack, unmodified, through the launchers and on a CS system."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import tensorflow as tf

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


@pytest.fixture(scope="module")
def off_the_system(
    trained: tuple[Path, str], run_in: Callable[[Path], Command], run_programs: Callable[..., Any]
) -> dict[str, str]:
    """What the program has written in its other modes, on this CPU; its first two took the checkpoint."""
    words = {
        "eval": ["-m", "eval", "--eval_steps=8"],
        "predict": ["-m", "predict"],
        "validate": ["--mode=validate_only", "-o", "alone"],
        "compile": ["--mode=compile_only", "-o", "alone"],
    }
    programs = {name: [RUN_PY, *arguments] for name, arguments in words.items()}
    logs = run_programs(run_in(trained[0]), ["csrun_cpu"], trained[0], programs)
    return {name: log["chief-0"] for name, log in logs.items()}


def test_the_systems_checkpoint_is_evaluated_and_predicts_on_this_cpu(off_the_system: dict[str, str]) -> None:
    evaluated = off_the_system["eval"]
    assert "checkpoint of step 60" in evaluated
    assert "oneDNN custom operations" not in evaluated, "TensorFlow's start is none of the user's business"
    accuracy = re.search(r"'accuracy': np.float32\(([0-9.]+)\)", evaluated)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9
    classes = re.search(r"classes: \[(.*)\]", off_the_system["predict"])
    assert classes is not None
    assert len(classes[1].split(",")) == 10


def test_validation_and_compilation_without_a_system(
    trained: tuple[Path, str], off_the_system: dict[str, str]
) -> None:
    kernels = off_the_system["validate"]
    assert "inside: True" in kernels
    assert re.search(r"fc1 .*fully_connected", kernels)
    # The summary that the program has disabled would be a reduction of its own.
    assert "reduce" not in kernels
    (artifact,) = (trained[0] / "alone").glob("cs_*")
    assert "cbfloat16" in (artifact / "cirh.mlir").read_text()
    summary = json.loads((trained[0] / "alone" / "run_summary.json").read_text())
    assert summary["precision"] == "cbfloat16"


def losses(log: str) -> dict[int, str]:
    """Loss by global step, as the chief has logged it."""
    return {int(step): loss for step, loss in re.findall(r"global step (\d+): loss = ([0-9.]+)", log)}


CONTINUED = {
    "program": (
        ["--skip"],
        r"the toolkit skips nothing of the 20 batches of worker 0 that earlier runs have used",
    ),
    "toolkit": (["--input_position=toolkit"], r"the toolkit skips the first 20 batches of worker 0"),
}
"""Who leaves out what earlier runs have used: the flag for it, and what a worker logs."""


@pytest.fixture(scope="module")
def continued(
    system: RunningSystem,
    trained: tuple[Path, str],
    run_in: Callable[[Path], Command],
    run_programs: Callable[..., Any],
) -> dict[str, dict[str, str]]:
    """What the tasks have written that went on behind two thirds of the steps."""
    directory, programs = trained[0], {}
    for name, (flags, _) in CONTINUED.items():
        begun = directory / name
        shutil.copytree(directory / "model_dir", begun, ignore=shutil.ignore_patterns("model.ckpt-60.*"))
        tf.compat.v1.train.update_checkpoint_state(str(begun), "model.ckpt-40")
        words = ["--mode=train", "--max_steps=60", f"--cs_ip={system.address}", "-o", name]
        programs[name] = [RUN_PY, *words, *flags]
    logs: dict[str, dict[str, str]] = run_programs(
        run_in(directory), ["csrun_wse", "--tasks-per-node=3"], directory, programs
    )
    return logs


@pytest.mark.parametrize("name", CONTINUED)
def test_a_continued_run_leaves_out_its_input_once(
    trained: tuple[Path, str], continued: dict[str, dict[str, str]], name: str
) -> None:
    """Either the program leaves out what earlier runs have used, or the toolkit where it is asked for it."""
    assert "continuing at global step 40: " in continued[name]["worker-0"]
    assert re.search(CONTINUED[name][1], continued[name]["worker-0"])
    unbroken = losses(trained[1])
    steps = [50, 60]
    assert [losses(continued[name]["chief-0"])[step] for step in steps] == [unbroken[step] for step in steps]

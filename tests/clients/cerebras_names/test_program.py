"""A program for the original stack, unmodified, through the launchers and on a CS system."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.systems import RunningSystem

RUN_PY = str(Path(__file__).parent / "program" / "run.py")
Command = Callable[..., CompletedProcess[str]]
Logs = dict[str, dict[str, str]]

# The first test of a job waits for all of its programs.
pytestmark = pytest.mark.timeout(600)

CONTINUED = {
    "program": (
        ["--skip"],
        r"the toolkit skips none of the 20 batches of worker 0 that earlier runs have used",
    ),
    "toolkit": (["--input_position=toolkit"], r"the toolkit skips the first 20 batches of worker 0"),
}
"""The two ways to skip used batches: the flag for it, and the log line of a worker."""

COPIES = """
import os, shutil, sys
if os.environ["CSRUN_ROLE"] == "chief":
    for name in sys.argv[1:]:
        shutil.copytree("model_dir", name, ignore=shutil.ignore_patterns("model.ckpt-60.*"))
        with open(f"{name}/checkpoint", "w") as file:
            file.write('model_checkpoint_path: "model.ckpt-40"')
"""
"""Makes model directories as a run leaves them that was ended at two thirds of the steps."""


@pytest.fixture(scope="module")
def trained(
    system: RunningSystem,
    run_in: Callable[[Path], Command],
    run_programs: Callable[..., Logs],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Logs]:
    """Train in three tasks on the system, then continue copies; return folder and output."""
    directory = tmp_path_factory.mktemp("trained")
    (directory / "copies.py").write_text(COPIES)
    # The program always appends ":9000".
    words = [RUN_PY, "--mode=train", "--max_steps=60", f"--cs_ip={system.address}"]
    programs = {"train": words, "copies": ["copies.py", *CONTINUED]}
    programs |= {name: [*words, "-o", name, *flags] for name, (flags, _) in CONTINUED.items()}
    job = ["csrun_wse", "--tasks-per-node=3"]
    return directory, run_programs(run_in(directory), job, directory, programs)


def test_three_tasks_train_on_the_system(trained: tuple[Path, Logs]) -> None:
    directory, logs = trained
    for task in ("chief-0", "worker-0", "worker-1"):
        assert "inside: True, custom session: True" in logs["train"][task]
    assert "shard 0 of 2" in logs["train"]["worker-0"]
    assert "shard 1 of 2" in logs["train"]["worker-1"]
    found = [float(loss) for loss in losses(logs["train"]["chief-0"]).values()]
    assert found[-1] < 0.5 * found[0]
    summary = json.loads((directory / "model_dir" / "run_summary.json").read_text())
    assert (summary["status"], summary["workers"], summary["last_step"]) == ("completed", 2, 60)


@pytest.fixture(scope="module")
def off_the_system(
    trained: tuple[Path, Logs], run_in: Callable[[Path], Command], run_programs: Callable[..., Any]
) -> dict[str, str]:
    """Return the output of the program in its other modes, on this CPU; the first two took the checkpoint."""
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
    trained: tuple[Path, Logs], off_the_system: dict[str, str]
) -> None:
    kernels = off_the_system["validate"]
    assert "inside: True" in kernels
    assert re.search(r"fc1 .*fully_connected", kernels)
    # The summary that the program has disabled would be a separate reduction.
    assert "reduce" not in kernels
    (artifact,) = (trained[0] / "alone").glob("cs_*")
    assert "cbfloat16" in (artifact / "cirh.mlir").read_text()
    summary = json.loads((trained[0] / "alone" / "run_summary.json").read_text())
    assert summary["precision"] == "cbfloat16"


def losses(log: str) -> dict[int, str]:
    """Loss by global step, as the chief has logged it."""
    return {int(step): loss for step, loss in re.findall(r"global step (\d+): loss = ([0-9.]+)", log)}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_continued_run_leaves_out_its_input_once(trained: tuple[Path, Logs], name: str) -> None:
    """Either the program leaves out what earlier runs have used, or the toolkit where it is asked for it."""
    continued = trained[1]
    assert "continuing at global step 40: " in continued[name]["worker-0"]
    assert re.search(CONTINUED[name][1], continued[name]["worker-0"])
    unbroken = losses(continued["train"]["chief-0"])
    steps = [50, 60]
    assert [losses(continued[name]["chief-0"])[step] for step in steps] == [unbroken[step] for step in steps]

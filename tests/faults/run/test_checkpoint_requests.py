"""SIGUSR1 to a training: a checkpoint at once; with a requeue, the same end as without the interruption."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.programs.fork_server import ForkServers
from tests.systems import RunningSystem

ON_CS = Path(__file__).with_name("faulty_program.py")
ON_CPU = Path(__file__).with_name("tensorflow_program.py")  # training there is the estimator's own
LIMIT_S = 100.0
JOB = {"CSRUN_JOB_ID": "job-1", "CSRUN_JOB_TOKEN": "secret", "CSRUN_RANK": "0", "CSRUN_NUM_TASKS": "1"}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a program as the only task of a job: (address or none, model_dir, steps, before, variables)."""
    processes = []
    artifacts = {"COMPILE_DIR": str(tmp_path_factory.getbasetemp() / "artifacts")}

    def call(
        address: str, model_dir: str, steps: int, before: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen[str]:
        log = (tmp_path / f"{model_dir}-{len(processes)}.log").open("w")
        process = subprocess.Popen(
            [*before, sys.executable, str(ON_CS if address else ON_CPU), address, model_dir, str(steps)],
            cwd=tmp_path,
            env={**os.environ, **JOB, **artifacts, **variables},
            stdout=log,
            stderr=log,
            text=True,
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        process.kill()
        process.wait()


def wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> re.Match[str]:
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        text = path.read_text()
        if found := re.search(pattern, text):
            return found
        assert process.poll() is None, text
        assert time.monotonic() < deadline_s, text
        time.sleep(0.05)


def state(model_dir: Path) -> dict[str, np.ndarray]:
    """The checkpoint of the program for the system."""
    with np.load(model_dir / "state.npz") as saved:
        return dict(saved)


def places(system: RunningSystem) -> dict[str, str]:
    return {"cs": system.address, "cpu": ""}


@pytest.mark.parametrize("place", ["cs", "cpu"])
def test_a_request_writes_a_checkpoint_and_the_training_continues(
    system: RunningSystem, start: Start, tmp_path: Path, place: str
) -> None:
    training = start(places(system)[place], "m", 1_000_000, FAULT="slow", SAVE_EVERY="500000")
    log = tmp_path / "m-0.log"
    wait_for(log, "global step 10:", training)
    training.send_signal(signal.SIGUSR1)
    step = int(wait_for(log, r"checkpoint at global step (\d+), requested by SIGUSR1", training)[1])
    if place == "cs":
        assert state(tmp_path / "m")["state.global_step"] == step
    else:
        assert (tmp_path / "m" / f"model.ckpt-{step}.index").exists()
    wait_for(log, f"global step {step - step % 10 + 20}:", training)
    training.send_signal(signal.SIGINT)
    assert training.wait(LIMIT_S) == 130


def test_a_requeued_training_ends_bit_for_bit_where_an_unbroken_one_does(
    system: RunningSystem, start: Start, forked: tuple[str, ...], tmp_path: Path
) -> None:
    settings = {"LIMIT": "steps", "SAVE_EVERY": "500000"}
    whole = start(system.address, "whole", 400, forked, **settings)
    assert whole.wait(LIMIT_S) == 0, (tmp_path / "whole-0.log").read_text()

    broken = start(system.address, "broken", 400, CSRUN_REQUEUE="1", FAULT="slow", **settings)
    wait_for(tmp_path / "broken-1.log", "global step 10:", broken)
    broken.send_signal(signal.SIGUSR1)
    assert broken.wait(LIMIT_S) == 75
    left_at = wait_for(tmp_path / "broken-1.log", r"leaving at global step (\d+);", broken)
    assert 10 <= int(left_at[1]) < 400

    again = start(system.address, "broken", 400, forked, CSRUN_REQUEUE="1", **settings)
    assert again.wait(LIMIT_S) == 0, (tmp_path / "broken-2.log").read_text()
    expected, got = state(tmp_path / "whole"), state(tmp_path / "broken")
    assert expected["state.global_step"] == 400
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes(), name


def test_another_job_in_the_same_model_dir_trains_its_own_steps(
    system: RunningSystem, start: Start, forked: tuple[str, ...], tmp_path: Path
) -> None:
    for number, name in enumerate(("job-1", "job-2"), start=1):
        settings = {"LIMIT": "steps", "CSRUN_REQUEUE": "1", "CSRUN_JOB_ID": name}
        training = start(system.address, "m", 20, forked, **settings)
        assert training.wait(LIMIT_S) == 0
        assert state(tmp_path / "m")["state.global_step"] == 20 * number


@pytest.mark.parametrize("place", ["cs", "cpu"])
def test_a_job_that_is_always_asked_too_early_gets_on_all_the_same(
    system: RunningSystem, start: Start, fork_servers: ForkServers, tmp_path: Path, place: str
) -> None:
    """A start without a step would be requeued forever."""
    before = fork_servers.launcher({"cs": "numpy", "cpu": "tensorflow"}[place])
    last_step = 0
    for number in range(2):
        settings = {"LIMIT": "steps", "CSRUN_REQUEUE": "1", "FAULT": "asked early"}
        training = start(places(system)[place], "m", 1_000_000, before, **settings)
        assert training.wait(LIMIT_S) == 75, (tmp_path / f"m-{number}.log").read_text()
        left_at = wait_for(tmp_path / f"m-{number}.log", r"leaving at global step (\d+);", training)
        assert int(left_at[1]) > last_step
        last_step = int(left_at[1])

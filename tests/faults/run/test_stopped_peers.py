"""A job whose parts are stopped for a while, each in turn: it continues, and no bit of its result changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cs_system.client import SystemClient, parse_address
from cs_toolkit.execution_options import EXECUTION_VARIABLE
from tests.processes import wait_until
from tests.systems import RunningSystem, parts_of, running_system

from .training_jobs import assert_equal_bit_for_bit, checkpoint, finish, launch, pid_of, wait_for_log

STEPS = 400
VICTIMS = ("system", "chief", "worker")
PARTS = {"pipelined": ("cs_engine",), "weight_streaming": ("cs_memoryx", "cs_wafer_0", "cs_wafer_1")}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    with running_system(tmp_path_factory.mktemp("system"), ["--num-csx=2"]) as found:
        yield found


def pids_of(victim: str, system: RunningSystem, job: subprocess.Popen[str], folder: Path) -> list[int]:
    if victim in ("system", "launcher"):
        return [system.process.pid if victim == "system" else job.pid]
    if victim in ("chief", "worker"):
        return [pid_of(victim, folder)]
    return list(parts_of(system.process.pid, (victim,)))


def step_of(system: RunningSystem) -> int:
    with SystemClient(parse_address(system.address)) as client:
        run = client.info().run
    return 0 if run is None else run.step


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("execution", PARTS)
@pytest.mark.parametrize(
    "seconds",
    [
        3.0,
        pytest.param(11.0, marks=pytest.mark.soak),
        pytest.param(15.0, marks=pytest.mark.soak),
        pytest.param(25.0, marks=pytest.mark.soak),
        pytest.param(45.0, marks=pytest.mark.soak),
    ],
)
def test_parts_that_are_stopped_continue_bit_for_bit(
    system: RunningSystem, forked: tuple[str, ...], tmp_path: Path, execution: str, seconds: float
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    environment = {EXECUTION_VARIABLE: execution, "NUM_CSX": str(1 + (execution == "weight_streaming"))}
    for folder in (whole, stopped):
        folder.mkdir()
    code, output = finish(launch(system, whole, STEPS, before=forked, **environment))
    assert code == 0, output
    job = launch(system, stopped, STEPS, FAULT="slow", **environment)
    wait_for_log(stopped, "saved step 20$", job)
    # The launcher last: while it is stopped the tasks go on, and may end.
    for victim in (*VICTIMS, *PARTS[execution], "launcher"):
        pids = pids_of(victim, system, job, stopped)  # of cs_engine, that of the next job too
        assert pids, victim
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        if victim != "launcher":
            before = step_of(system)
            wait_until(lambda before=before: step_of(system) > before or job.poll() is not None)
            assert job.poll() is None, (victim, job.communicate()[0])
    code, output = finish(job)
    assert code == 0, output
    assert checkpoint(stopped)["state.global_step"] == STEPS
    assert_equal_bit_for_bit(whole, stopped, STEPS)
    tasks = json.loads((stopped / "logs" / "job.json").read_text())["tasks"]
    assert [task["exit_code"] for task in tasks] == [0, 0, 0]
    assert "is lost" not in output

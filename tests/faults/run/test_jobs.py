"""Jobs of several tasks in which something breaks: the cause is shown, nothing is left, nothing is lost."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from cs_system.client import SystemClient, parse_address
from tests.programs.fork_server import ForkServers
from tests.systems import RunningSystem

from .training_jobs import (
    TENSORFLOW_PROGRAM,
    assert_equal_bit_for_bit,
    checkpoint,
    finish,
    launch,
    pid_of,
    wait_for_log,
    wait_idle,
)


def test_input_of_a_worker_that_raises_ends_the_run_with_its_traceback(
    system: RunningSystem, fork_servers: ForkServers, tmp_path: Path
) -> None:
    before = fork_servers.launcher("tensorflow")
    job = launch(system, tmp_path, 1000, 2, program=TENSORFLOW_PROGRAM, before=before, FAULT="raise")
    code, output = finish(job)
    assert code == 1
    assert "record 160 cannot be parsed" in output
    assert "tensorflow_program.py" in output
    assert "in records" in output
    wait_idle(system)


def test_tasks_that_disagree_on_the_input_say_so_in_every_log(
    system: RunningSystem, forked: tuple[str, ...], tmp_path: Path
) -> None:
    code, output = finish(launch(system, tmp_path, 1000, before=forked, FAULT="differ"))
    assert code == 1, output
    difference = (
        r"worker 1 on \S+ has another input than the chief: "
        r"tensor 0: input_0 float32\[16, 4\] in the worker, input_0 float32\[8, 4\] in the chief"
    )
    for task in ("chief-0", "worker-0", "worker-1"):
        log = (tmp_path / "logs" / f"{task}.log").read_text()
        assert re.search(difference, log), (task, log)
        assert "Traceback" not in log
    wait_idle(system)


def test_worker_that_ends_before_it_has_streamed_ends_the_run(
    system: RunningSystem, forked: tuple[str, ...], tmp_path: Path
) -> None:
    code, output = finish(launch(system, tmp_path, 1000, before=forked, FAULT="ends early"))
    assert code == 1, output
    assert "chief | error: worker 1 has ended with exit code 0, and has not streamed into this run" in output
    wait_idle(system)


def test_worker_that_is_killed_ends_the_run(system: RunningSystem, tmp_path: Path) -> None:
    code, output = finish(launch(system, tmp_path, 1000, flags=("--max-restarts=0",), FAULT="die"))
    assert code == 128 + signal.SIGKILL
    assert "worker 1" in output
    wait_idle(system)


def test_killed_job_continues_bit_for_bit(
    system: RunningSystem, forked: tuple[str, ...], tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    code, output = finish(launch(system, whole, 60, before=forked))
    assert code == 0, output

    job = launch(system, broken, 1_000_000, FAULT="slow")
    wait_for_log(broken, "saved step 20$", job)
    os.kill(pid_of("chief", broken), signal.SIGKILL)
    code, output = finish(job)
    assert code == 128 + signal.SIGKILL, output
    assert "csrun_wse: to continue: csrun_wse" in output
    wait_idle(system)
    assert 20 <= checkpoint(broken)["state.global_step"] < 60

    code, output = finish(launch(system, broken, 60, before=forked))
    assert code == 0, output
    assert_equal_bit_for_bit(whole, broken)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_launcher_ends_job_and_frees_the_system(
    system: RunningSystem, tmp_path: Path, number: int, code: int
) -> None:
    job = launch(system, tmp_path, 1_000_000, tasks=2, FAULT="slow")
    wait_for_log(tmp_path, "global step 10:", job)
    job.send_signal(number)
    assert finish(job)[0] == code
    wait_idle(system)


def test_a_job_that_waits_runs_when_the_system_is_free(system: RunningSystem, tmp_path: Path) -> None:
    with SystemClient(parse_address(system.address)) as client:
        with client.reserve("job-before", "secret"):
            job = launch(system, tmp_path, 5, tasks=2, flags=("--wait",))
            wait_for_log(tmp_path, "held by job-before since .* place 1 in the queue", job)
        code, output = finish(job)
    assert code == 0, output
    assert "Loss for final step" in output


def test_system_that_dies_is_named(tmp_path: Path) -> None:
    from tests.systems import running_system

    server = tmp_path / "server"
    server.mkdir()
    with running_system(server) as doomed:
        job = launch(doomed, tmp_path, 1_000_000, tasks=2, FAULT="slow")
        wait_for_log(tmp_path, "global step 10:", job)
        doomed.process.kill()
        code, output = finish(job)
    assert code == 1
    assert doomed.address in output
    assert "csrun_wse: to continue: csrun_wse" in output
    assert "Traceback" not in output

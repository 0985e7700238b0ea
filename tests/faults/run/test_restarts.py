"""Workers that die and are restarted: the run computes the same bits as an undisturbed one."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.programs.fork_server import ForkServers
from tests.systems import RunningSystem

from .training_jobs import TENSORFLOW_PROGRAM, assert_equal_bit_for_bit, finish, launch, wait_idle

STEPS = 80


@pytest.fixture(scope="module")
def whole(system: RunningSystem, forked: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    code, output = finish(launch(system, folder, STEPS, before=forked))
    assert code == 0, output
    return folder


def losses(folder: Path) -> list[str]:
    log = (folder / "logs" / "chief-0.log").read_text()
    return re.findall(r"global step \d+: loss = \S+", log)


def tasks(folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((folder / "logs" / "job.json").read_text())["tasks"]
    return found


def test_a_killed_worker_is_restarted_and_no_bit_changes(
    system: RunningSystem, forked: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    code, output = finish(launch(system, tmp_path, STEPS, before=forked, DEATHS="0:20 1:39"))
    assert code == 0, output
    for number, pause in ((1, 1), (2, 2)):
        assert re.search(
            rf"csrun_wse: worker 1 was killed by SIGKILL \(.*\)( after step \d+)?; "
            rf"restart {number} of 3 in {pause} s",
            output,
        ), output
    assert losses(tmp_path) == losses(whole)
    assert_equal_bit_for_bit(whole, tmp_path, STEPS)
    assert [task["restarts"] for task in tasks(tmp_path)] == [0, 0, 2]
    assert [task["exit_code"] for task in tasks(tmp_path)] == [0, 0, 0]
    wait_idle(system)


def test_a_worker_that_dies_in_a_later_run_skips_those_before(
    system: RunningSystem, forked: tuple[str, ...], whole: Path, tmp_path: Path
) -> None:
    # Batch 30 of worker 1 belongs to the second run, which begins at step 40.
    code, output = finish(launch(system, tmp_path, f"40,{STEPS}", before=forked, DEATHS="0:30"))
    assert code == 0, output
    assert "restart 1 of 3" in output
    assert re.search(
        r"worker 1 \| .*run 1 of the program is over: the chief is in 2; this worker was restarted", output
    ), output
    assert_equal_bit_for_bit(whole, tmp_path, STEPS)
    wait_idle(system)


def test_a_worker_that_always_dies_ends_the_run_after_its_restarts(
    system: RunningSystem, tmp_path: Path
) -> None:
    flags = ("--max-restarts=1",)
    code, output = finish(launch(system, tmp_path, 1_000_000, flags=flags, DEATHS="0:600 1:600"))
    assert code == 128 + signal.SIGKILL
    assert "restart 1 of 1 in 1 s" in output
    assert re.search(r"worker 1 failed with exit code 137 \(SIGKILL.*\) after 1 restart; it", output)
    assert re.search(
        r"csrun_wse: training was at global step \d+ of 1000000.*: the same command .*\n"
        r"csrun_wse: to continue: csrun_wse --total-nodes=1 .* 1000000\n",
        output,
    ), output
    record = json.loads((tmp_path / "logs" / "job.json").read_text())["resume"]
    assert record["step"] >= 1100
    assert record["command"][:2] == ["csrun_wse", "--total-nodes=1"]
    wait_idle(system)


def test_an_error_of_the_input_function_is_not_repeated(
    system: RunningSystem, fork_servers: ForkServers, tmp_path: Path
) -> None:
    before = fork_servers.launcher("tensorflow")
    job = launch(system, tmp_path, 1000, 2, program=TENSORFLOW_PROGRAM, before=before, FAULT="raise")
    code, output = finish(job)
    assert code == 1
    assert "record 160 cannot be parsed" in output
    assert "; restart" not in output
    assert not list((tmp_path / "logs").glob(".final-error-*"))

"""Tasks that die and are restarted by the local scheduler, without a training run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.processes import wait_until

CHIEF = '[ "$CSRUN_RANK" = 0 ] && { until [ -e go ]; do sleep 0.02; done; exit 0; }; '
FIRST = '[ "$CSRUN_RESTARTS" ] || '


def worker(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "logs" / "job.json").read_text())["tasks"][1]
    return found


def test_a_restarted_worker_has_its_rank_its_log_and_a_count(start: Any, tmp_path: Path) -> None:
    job = start(
        *("--tasks-per-node=2", "--max-restarts=2", "sh", "-c"),
        CHIEF + f'echo "life $CSRUN_RESTARTS of rank $CSRUN_RANK"; {FIRST} kill -9 $$; touch go',
    )
    assert job.end() == 0
    assert (
        "csrun_wse: worker 0 was killed by SIGKILL (as the kernel does when memory runs out); "
        "restart 1 of 2 in 1 s\n" in job.stderr
    )
    assert (tmp_path / "logs" / "worker-0.log").read_text() == "life  of rank 1\nlife 1 of rank 1\n"
    assert (worker(tmp_path)["restarts"], worker(tmp_path)["exit_code"]) == (1, 0)
    assert not job.left()


def test_a_worker_that_always_fails_ends_the_job(start: Any, tmp_path: Path) -> None:
    job = start("--tasks-per-node=2", "--max-restarts=1", "sh", "-c", f"{CHIEF} echo dying; exit 7")
    assert job.end() == 7
    assert "worker 0 ended with exit code 7; restart 1 of 1 in 1 s" in job.stderr
    assert "worker 0 failed with exit code 7 after 1 restart; its last lines" in job.stderr
    assert (worker(tmp_path)["restarts"], worker(tmp_path)["exit_code"]) == (1, 7)


def test_processes_that_a_dead_worker_has_left_end_before_its_restart(start: Any, tmp_path: Path) -> None:
    child = "(trap '' TERM HUP; setsid sh -c 'echo $$ >new; mv new pid; exec sleep 1000' &) ; "
    wait = "until [ -e pid ]; do sleep 0.02; done; kill -9 $$; "
    job = start(
        *("--tasks-per-node=2", "--max-restarts=1", "sh", "-c"),
        f'{CHIEF} {FIRST} {{ {child} {wait} }}; kill -0 "$(cat pid)" 2>&1; touch go',
    )
    assert job.end() == 0
    assert "No such process" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_a_job_that_is_ended_restarts_nothing(start: Any) -> None:
    job = start("--tasks-per-node=2", "--max-restarts=3", "sh", "-c", f"{CHIEF} exit 7")
    job.wait_for_stderr("restart 1 of 3")
    job.signal(15)
    assert job.end() == 143
    assert "restart 2" not in job.stderr
    assert not job.left()


def test_a_usage_error_and_the_chief_are_not_restarted(start: Any) -> None:
    flags = ("--tasks-per-node=2", "--max-restarts=3", "sh", "-c")
    job = start(*flags, '[ "$CSRUN_RANK" = 0 ] && exec sleep 1000; exit 2')
    assert job.end() == 2
    assert "; restart" not in job.stderr
    job = start(*flags, '[ "$CSRUN_RANK" = 1 ] && exec sleep 1000; kill -9 $$')
    assert job.end() == 137
    assert "; restart" not in job.stderr


def test_a_restarted_worker_dies_with_the_launcher(start: Any) -> None:
    job = start(
        *("--tasks-per-node=2", "--max-restarts=1", "sh", "-c"),
        f'{CHIEF} {FIRST} kill -9 $$; echo "alive $CSRUN_RANK"; exec sleep 1000',
    )
    job.wait_for_lines("worker 0 | alive 1")
    job.signal(9)
    assert job.end() == -9
    wait_until(lambda: not job.left())

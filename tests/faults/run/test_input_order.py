"""Runs that resume with another number of workers: every record is used once, in the same order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.execution_options import EXECUTION_VARIABLE
from tests.programs.fork_server import ForkServers
from tests.systems import RunningSystem

from .training_jobs import finish, launch, pid_of, wait_for_log, wait_idle

PROGRAM = Path(__file__).with_name("counting_program.py")
TORCH_PROGRAM = Path(__file__).with_name("counting_torch_program.py")
FRAMEWORKS = {PROGRAM: "tensorflow", TORCH_PROGRAM: "torch"}


class Jobs:
    """Jobs on a system, whose tasks import no framework: each is forked from a process that has.

    Attributes:
        system: The system.
    """

    def __init__(self, system: RunningSystem, servers: ForkServers) -> None:
        self.system = system
        self._servers = servers

    def launch(
        self, folder: Path, steps: int, workers: int, program: Path = PROGRAM, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a job with a number of workers."""
        before = self._servers.launcher(FRAMEWORKS[program])
        return launch(self.system, folder, steps, workers + 1, program=program, before=before, **options)

    def run(self, folder: Path, steps: int, workers: int, program: Path = PROGRAM, **options: Any) -> str:
        """Train to a step with a number of workers, and return the output of the job."""
        code, output = finish(self.launch(folder, steps, workers, program, **options))
        assert code == 0, output
        wait_idle(self.system)
        return output


@pytest.fixture(scope="module")
def jobs(system: RunningSystem, fork_servers: ForkServers) -> Jobs:
    return Jobs(system, fork_servers)


def order_digest(folder: Path) -> str:
    """Return the order digest of the newest run."""
    *_, file = sorted((folder / "model_dir").rglob("performance.json"))
    performance = json.loads(file.read_text())
    assert performance["order_digest_from"] == 0
    return str(performance["order_digest"])


def records_by_step(folder: Path) -> dict[int, list[int]]:
    """Return the records of every step; a step that was repeated after a kill has used the same again."""
    found: dict[int, list[int]] = {}
    for line in (folder / "records.jsonl").read_text().splitlines():
        read = json.loads(line)
        assert found.get(read["step"], read["records"]) == read["records"]
        found[read["step"]] = read["records"]
    return found


@pytest.fixture(scope="module")
def undisturbed(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a shuffled run of 30 steps with 2 workers."""
    folder = tmp_path_factory.mktemp("undisturbed")
    jobs.run(folder, 30, 2, SHUFFLE="1")
    return folder


@pytest.mark.parametrize("program", [PROGRAM, TORCH_PROGRAM])
def test_another_number_of_workers_is_refused_where_the_program_shards(
    jobs: Jobs, tmp_path: Path, program: Path
) -> None:
    shares = {"SHARDING": "import"}
    jobs.run(tmp_path, 6, 1, program, **shares)
    code, output = finish(jobs.launch(tmp_path, 12, 2, program, **shares))
    assert code == 2, output
    message = (
        r"the run that reached global step 6 had 1 worker\(s\), this one has 2; .*Resume with 1 worker\(s\), "
        r"that is 2 tasks of csrun_wse, or accept the change with csrun_wse --allow-input-change"
    )
    assert re.search(message, output), output
    wait_idle(jobs.system)
    assert max(records_by_step(tmp_path)) == 5


@pytest.mark.soak
def test_another_number_of_workers_is_accepted_and_logged(jobs: Jobs, tmp_path: Path) -> None:
    shares = {"SHARDING": "import"}
    jobs.run(tmp_path, 6, 2, **shares)
    job = jobs.launch(tmp_path, 12, 3, flags=("--allow-input-change",), **shares)
    code, output = finish(job)
    assert code == 0, output
    assert "samples are repeated and lost" in output
    assert max(records_by_step(tmp_path)) == 11


def test_a_checkpoint_without_a_record_is_continued_with_a_line_in_the_log(
    jobs: Jobs, tmp_path: Path
) -> None:
    jobs.run(tmp_path, 6, 2)
    (tmp_path / "model_dir" / "input_order.jsonl").unlink()
    output = jobs.run(tmp_path, 8, 2)
    assert "no record of the input at global step 6" in output
    counted = Counter(record for records in records_by_step(tmp_path).values() for record in records)
    assert counted == Counter(range(32))


@pytest.mark.parametrize(
    ("program", "workers", "more"),
    [
        pytest.param(PROGRAM, (3, 2), {"SHARDING": "call"}, marks=pytest.mark.soak),
        (PROGRAM, (1, 4), {"INPUT_SHARDS": "6", EXECUTION_VARIABLE: "weight_streaming"}),
        (TORCH_PROGRAM, (2, 3, 1), {"SHARDING": "sampler"}),
        pytest.param(
            TORCH_PROGRAM,
            (3, 2),
            {"SHARDING": "hand", EXECUTION_VARIABLE: "weight_streaming"},
            marks=pytest.mark.soak,
        ),
        (TORCH_PROGRAM, (1, 4), {"SHARDING": "iterable"}),
    ],
)
def test_another_number_of_workers_continues_the_same_order(
    jobs: Jobs, tmp_path: Path, program: Path, workers: tuple[int, ...], more: dict[str, str]
) -> None:
    whole, changed = tmp_path / "whole", tmp_path / "changed"
    for folder in (whole, changed):
        folder.mkdir()
    steps = 7 * len(workers)
    jobs.run(whole, steps, workers[0], program, **more)
    for number, count in enumerate(workers, 1):
        jobs.run(changed, 7 * number, count, program, **more)
    assert records_by_step(changed) == records_by_step(whole)
    assert order_digest(changed) == order_digest(whole)
    counted = Counter(record for records in records_by_step(changed).values() for record in records)
    assert set(counted.values()) == {1}


@pytest.mark.parametrize("program", [PROGRAM, TORCH_PROGRAM])
def test_the_order_first_ready_uses_every_record_once_and_is_replayed(
    jobs: Jobs, tmp_path: Path, program: Path
) -> None:
    ready, again = tmp_path / "ready", tmp_path / "again"
    for folder in (ready, again):
        folder.mkdir()
    late = {"LATE": "worker1"}
    jobs.run(ready, 10, 2, program, flags=("--input-order=first-ready",), **late)
    output = jobs.run(ready, 20, 1, program)
    assert "the run began with the order first-ready, which it keeps" in output
    used = [record for _, records in sorted(records_by_step(ready).items()) for record in records]
    assert len(used) == len(set(used)) == 80
    order = ready / "model_dir" / "input_order.shards"
    jobs.run(again, 20, 2, program, flags=(f"--input-order={order}",))
    assert records_by_step(again) == records_by_step(ready)
    assert order_digest(again) == order_digest(ready)
    assert (again / "model_dir" / "input_order.shards").read_bytes() == order.read_bytes()


def test_shuffled_runs_with_three_numbers_of_workers_continue_the_same_order(
    jobs: Jobs, undisturbed: Path, tmp_path: Path
) -> None:
    for step, workers in ((10, 2), (20, 3), (30, 1)):
        jobs.run(tmp_path, step, workers, SHUFFLE="1")
    assert records_by_step(tmp_path) == records_by_step(undisturbed)
    assert order_digest(tmp_path) == order_digest(undisturbed)
    counted = Counter(record for records in records_by_step(tmp_path).values() for record in records)
    assert set(counted.values()) == {1}


def test_a_killed_run_continues_with_another_number_of_workers(
    jobs: Jobs, undisturbed: Path, tmp_path: Path
) -> None:
    job = jobs.launch(tmp_path, 1000, 2, SHUFFLE="1", SLOW="1")
    wait_for_log(tmp_path, "Saving checkpoints for 12 ", job)
    os.kill(pid_of("chief", tmp_path), signal.SIGKILL)
    code, output = finish(job)
    assert code == 128 + signal.SIGKILL, output
    wait_idle(jobs.system)
    jobs.run(tmp_path, 30, 3, SHUFFLE="1")
    assert records_by_step(tmp_path) == records_by_step(undisturbed)
    assert order_digest(tmp_path) == order_digest(undisturbed)


def test_shards_that_end_at_different_steps_are_used_to_their_ends(jobs: Jobs, tmp_path: Path) -> None:
    # 32, 31 and 31 records: 8, 7 and 7 batches.
    length = {"LENGTH": "94"}
    jobs.run(tmp_path, 7, 3, **length)
    output = jobs.run(tmp_path, 1000, 2, **length)
    assert "the input ended at global step 22" in output
    used = [record for records in records_by_step(tmp_path).values() for record in records]
    assert len(used) == len(set(used)) == 4 * 22

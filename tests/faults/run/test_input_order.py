"""Runs that resume with another number of workers: every record is used once, in the same order."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path

from tests.systems import RunningSystem

from .training_jobs import finish, wait_idle
from .training_jobs import launch as launch_job

PROGRAM = Path(__file__).with_name("counting_program.py")
launch = partial(launch_job, program=PROGRAM)


def run(system: RunningSystem, folder: Path, steps: int, workers: int, **environment: str) -> str:
    """Train to a step with a number of workers, and return the output of the job."""
    code, output = finish(launch(system, folder, steps, tasks=workers + 1, **environment))
    assert code == 0, output
    wait_idle(system)
    return output


def records_by_step(folder: Path) -> dict[int, list[int]]:
    """Return the records of every step; a step that was repeated after a kill has used the same again."""
    found: dict[int, list[int]] = {}
    for line in (folder / "records.jsonl").read_text().splitlines():
        read = json.loads(line)
        assert found.get(read["step"], read["records"]) == read["records"]
        found[read["step"]] = read["records"]
    return found


def test_another_number_of_workers_is_refused_where_the_program_shards(
    system: RunningSystem, tmp_path: Path
) -> None:
    shares = {"SHARDING": "import"}
    run(system, tmp_path, 6, 2, **shares)
    code, output = finish(launch(system, tmp_path, 12, tasks=4, **shares))
    assert code == 2, output
    message = (
        r"the run that reached global step 6 had 2 worker\(s\), this one has 3; .*Resume with 2 worker\(s\), "
        r"that is 3 tasks of csrun_wse, or accept the change with csrun_wse --allow-input-change"
    )
    assert re.search(message, output), output
    wait_idle(system)
    assert max(records_by_step(tmp_path)) == 5


def test_another_number_of_workers_is_accepted_and_logged(system: RunningSystem, tmp_path: Path) -> None:
    shares = {"SHARDING": "import"}
    run(system, tmp_path, 6, 2, **shares)
    job = launch(system, tmp_path, 12, tasks=4, flags=("--allow-input-change",), **shares)
    code, output = finish(job)
    assert code == 0, output
    assert "samples are repeated and lost" in output
    assert max(records_by_step(tmp_path)) == 11


def test_a_checkpoint_without_a_record_is_continued_with_a_line_in_the_log(
    system: RunningSystem, tmp_path: Path
) -> None:
    run(system, tmp_path, 6, 2)
    (tmp_path / "model_dir" / "input_order.jsonl").unlink()
    output = run(system, tmp_path, 8, 2)
    assert "no record of the input at global step 6" in output
    counted = Counter(record for records in records_by_step(tmp_path).values() for record in records)
    assert counted == Counter(range(32))

"""The log directory of a job."""

from __future__ import annotations

import json
from pathlib import Path

from csrun.jobs.record import RECORD_NAME, SPANS_DIR, prepare_log_dir, read_finished_workers


def test_the_spans_of_an_earlier_job_in_the_directory_are_removed(tmp_path: Path) -> None:
    file = tmp_path / SPANS_DIR / "worker-0-17.json"
    prepare_log_dir(tmp_path)
    file.parent.mkdir()
    file.write_text("{}")
    prepare_log_dir(tmp_path, is_requeued=True)
    assert file.exists()
    prepare_log_dir(tmp_path)
    assert not file.exists()


def test_the_finished_workers_are_those_that_are_not_restarted(tmp_path: Path) -> None:
    assert read_finished_workers(tmp_path, "job") == set()
    endings = [("chief", "running", None), ("worker", "ended", 0), ("worker", "ended", 137)]
    endings += [("worker", "restarting", 1), ("worker", "running", None), ("worker", "ended", 0)]
    tasks = [
        {"role": role, "state": state, "exit_code": code, "index": max(0, rank - 1)}
        for rank, (role, state, code) in enumerate(endings)
    ]
    (tmp_path / RECORD_NAME).write_text(json.dumps({"job_id": "job", "tasks": tasks}))
    assert read_finished_workers(tmp_path, "job") == {0, 4}
    assert read_finished_workers(tmp_path, "another") == set()
    (tmp_path / RECORD_NAME).write_text('{"job_id": "job", "tasks": [1]}')
    assert read_finished_workers(tmp_path, "job") == set()

"""The log directory of a job."""

from __future__ import annotations

from pathlib import Path

from csrun.jobs.record import SPANS_DIR, prepare_log_dir


def test_the_spans_of_an_earlier_job_in_the_directory_are_removed(tmp_path: Path) -> None:
    file = tmp_path / SPANS_DIR / "worker-0-17.json"
    prepare_log_dir(tmp_path)
    file.parent.mkdir()
    file.write_text("{}")
    prepare_log_dir(tmp_path, is_requeued=True)
    assert file.exists()
    prepare_log_dir(tmp_path)
    assert not file.exists()

"""Marks of tasks whose error would repeat: the launcher does not restart them.

The exit code of a Python program is the same for an error of its input function, which it would meet again,
and for a lost connection. A task that knows the difference writes its mark into the log directory of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def mark_final_error(environment: Mapping[str, str]) -> None:
    """Mark the task of this process, if a launcher has started it; errors are ignored."""
    directory, rank = environment.get("CSRUN_LOG_DIR"), environment.get("CSRUN_RANK")
    if directory and rank:
        with suppress(OSError):  # then the launcher restarts the task, a limited number of times
            _mark(Path(directory), int(rank)).write_text(environment.get("CSRUN_JOB_ID", ""))


def has_final_error(log_dir: Path, rank: int, job_id: str) -> bool:
    """Return True if the task of the job has marked its error as final; remove the mark."""
    mark = _mark(log_dir, rank)
    try:
        found = mark.read_text() == job_id
        mark.unlink()
    except OSError:
        return False
    return found


def _mark(log_dir: Path, rank: int) -> Path:
    return log_dir / f".final-error-{rank}"

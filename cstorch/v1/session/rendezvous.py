"""A barrier of all tasks of a job that exchanges data, by files in the job's shared directory.

Loops of sessions and rendezvous are places that every task reaches, in the same order. The chief counts the
places that it has reached, so that a worker that has finished streaming knows if another one follows.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from cs_runtime.tasks import current
from cs_runtime.terminal import WaitLog
from cs_toolkit.errors import ToolkitError
from cs_toolkit.files import replace_file
from cstorch.program import Program

logger = logging.getLogger("cstorch")

TIMEOUT_S = 600.0
_POLL_S = 0.05
_LOG_DIR = "CSRUN_LOG_DIR"
_PLACE = "place"


@dataclass
class _Progress:
    """The number of meetings of this task by name, and the number of places that it has reached."""

    meetings: Counter[str] = field(default_factory=Counter)
    places: int = 0


class RendezvousError(ToolkitError):
    """A task did not reach the rendezvous."""


def rendezvous(name: str, payload: bytes = b"", timeout_s: float = TIMEOUT_S) -> list[bytes]:
    """Wait for all tasks of the job.

    Args:
        name: Name of the meeting, the same in all tasks; it may be reused.
        payload: Data of this task.
        timeout_s: Time limit.

    Returns:
        The data of each task, by rank; b"" for a task whose program has ended.

    Raises:
        RendezvousError: A task did not come, or there is data but no shared directory.
    """
    task = current()
    if task.num_tasks == 1:
        return [payload]
    if _directory() is None:
        if not payload:
            logger.warning("rendezvous '%s' does not wait: only csrun_wse gives tasks a place to meet", name)
            return [b""] * task.num_tasks
        raise RendezvousError(
            f"rendezvous('{name}') in a job of {task.num_tasks} tasks without a shared directory, expected a "
            "job that csrun_wse has started: start the program with it"
        )
    count_place()
    Program.current().part(_Progress).meetings[name] += 1
    directory = _meeting(name)
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(directory / str(task.rank), payload)
    return [_wait(directory / str(rank), name, rank, timeout_s) for rank in range(task.num_tasks)]


def count_place() -> None:
    """Count a place that every task reaches; the chief tells the workers."""
    progress = Program.current().part(_Progress)
    progress.places += 1
    directory = _directory()
    if directory is not None and current().role == "chief" and current().num_tasks > 1:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / _PLACE, str(progress.places).encode())


def wait_for_next_place() -> bool:
    """Wait, on a worker, until the chief has reached another place.

    Returns:
        False if the program of the chief has ended before that; True in a job without a shared directory.
    """
    directory = _directory()
    if directory is None:
        return True
    log = WaitLog()
    while True:
        ended = (directory / _ended(0)).exists()
        place = directory / _PLACE
        if place.exists() and int(place.read_bytes()) > Program.current().part(_Progress).places:
            return True
        if ended:
            return False
        log("waiting for the chief, which runs the code after its loop")
        time.sleep(_POLL_S)


def announce_end() -> None:
    """Tell the other tasks, at the end of the process, that this task reaches no further meeting."""
    directory = _directory()
    if directory is not None and current().num_tasks > 1:
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(directory / _ended(current().rank), b"")


def _directory() -> Path | None:
    """Return the directory in which the tasks meet, another one after a restart of the job."""
    logs = os.environ.get(_LOG_DIR)
    return Path(logs) / "rendezvous" / sha256(current().token.encode()).hexdigest()[:16] if logs else None


def _meeting(name: str) -> Path:
    directory = _directory()
    assert directory is not None
    number = Program.current().part(_Progress).meetings[name]
    return directory / f"{sha256(name.encode()).hexdigest()[:16]}-{number}"


def _ended(rank: int) -> str:
    return f"ended-{rank}"


def _wait(path: Path, name: str, rank: int, timeout_s: float) -> bytes:
    end, log = time.monotonic() + timeout_s, WaitLog()
    while True:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            pass
        if (path.parent.parent / _ended(rank)).exists() and not path.exists():
            logger.warning("rendezvous '%s' without rank %d, whose program has ended", name, rank)
            return b""
        if time.monotonic() > end:
            raise RendezvousError(
                f"rendezvous('{name}'): rank {rank} did not come within {timeout_s:.0f} s, expected every "
                "task of the job to call it"
            )
        log(f"waiting for rank {rank} at the rendezvous {name!r}")
        time.sleep(_POLL_S)

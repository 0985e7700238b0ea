"""The job of this process: its tasks, and the part of the input that this process reads."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cs_runtime import terminal
from cs_runtime.tasks import current, log_idle
from csrun.tasks.roles import TaskInfo
from cstorch.program import Program

# Number of readers and index of this one within `reading_as`: of a thread, as the chief's thread may read the
# whole input while another one streams. Processes that a DataLoader forks inherit it.
_share: ContextVar[tuple[int, int] | None] = ContextVar("share of the input", default=None)
# A byte that is not 0 if the program has asked for its share, within `watch_questions`. It is shared with the
# processes that a DataLoader forks, where a dataset may ask.
_asked: ContextVar[mmap.mmap | None] = ContextVar("question for the share", default=None)


def task() -> TaskInfo:
    """Return the task of this process in its job."""
    workers = Program.current().local_workers
    return current() if workers is None else workers.task


def leave_to_chief() -> None:
    """End a worker whose program runs on the CPU of the chief, because there is nothing to stream."""
    if task().role == "worker":
        terminal.configure_logging("cstorch")
        log_idle("the program runs on the CPU of the chief")
        sys.exit(0)


def num_streamers() -> int:
    """Return the number of processes that read the input of the run."""
    _record_question()
    return reader_share()[0]


def get_streaming_rank() -> int:
    """Return the number of this process among those that read the input, from 0; 0 on the chief."""
    _record_question()
    return reader_share()[1]


def reader_share() -> tuple[int, int]:
    """Return number of readers and index of this one, for the toolkit itself."""
    return _share.get() or (task().num_workers, task().index)


@contextmanager
def watch_questions() -> Iterator[list[bool]]:
    """Yield a list that is not empty after the body if the program has asked for its share in it."""
    found: list[bool] = []
    asked = mmap.mmap(-1, 1)
    token = _asked.set(asked)
    try:
        yield found
    finally:
        _asked.reset(token)
    if asked[0]:
        found.append(True)


def _record_question() -> None:
    asked = _asked.get()
    if asked is not None:
        asked[0] = 1


def is_streamer() -> bool:
    """Return True if this process reads input for the system: a worker, or a chief without workers."""
    _record_question()
    return task().role == "worker" or task().in_process_worker


@contextmanager
def whole_input_on_chief() -> Iterator[None]:
    """Let the chief read the whole input in the body: for the first batch, an epoch's length, evaluations."""
    if task().role == "chief" and _share.get() is None:
        with reading_as(1, 0):
            yield
    else:
        yield


@contextmanager
def reading_as(count: int, index: int) -> Iterator[None]:
    """Make this process read the share `index` of `count` of the input within the body."""
    token = _share.set((count, index))
    try:
        yield
    finally:
        _share.reset(token)

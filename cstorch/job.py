"""The job of this process: its tasks, and the part of the input that this process reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cs_runtime import terminal
from cs_runtime.tasks import current, log_idle
from csrun.tasks.roles import TaskInfo
from cstorch.program import Program


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
    positions = Program.current().reader_positions
    return positions[-1][0] if positions else task().num_workers


def get_streaming_rank() -> int:
    """Return the number of this process among those that read the input, from 0; 0 on the chief."""
    positions = Program.current().reader_positions
    return positions[-1][1] if positions else task().index


def is_streamer() -> bool:
    """Return True if this process reads input for the system: a worker, or a chief without workers."""
    return task().role == "worker" or task().in_process_worker


@contextmanager
def whole_input_on_chief() -> Iterator[None]:
    """Let the chief read the whole input in the body: for the first batch, an epoch's length, evaluations."""
    if task().role == "chief":
        with reading_as(1, 0):
            yield
    else:
        yield


@contextmanager
def reading_as(count: int, index: int) -> Iterator[None]:
    """Make this process read the share `index` of `count` of the input within the body."""
    positions = Program.current().reader_positions
    positions.append((count, index))
    try:
        yield
    finally:
        positions.pop()

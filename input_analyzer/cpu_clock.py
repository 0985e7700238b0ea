"""Time of work that this process does in other threads, without the time that other programs took.

Linux tells of every thread how long it had a CPU and how long it was ready but had none
(Documentation/scheduler/sched-stats.rst). Where one thread at a time works, the wall clock less the second
is what the work takes on an idle machine, computing and waiting for files, network or a sleep.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_WORKS = 0.25
"""Threads work that compute at least so much of what the busiest one does; others spin or watch."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at one moment, nanoseconds.

    Attributes:
        wall: Of the wall clock.
        own_queued: Time in which the calling thread was ready without a CPU.
        others: Of every other thread: time on a CPU, time ready without one.
        process: CPU time of the whole process.
    """

    wall: int
    own_queued: int
    others: Mapping[str, tuple[int, int]]
    process: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What some work took, nanoseconds: computing, and waiting for anything but a CPU."""

    cpu: int
    wait: int


def start() -> Reading:
    """Reads the clocks before the work."""
    others = _others()
    process = time.process_time_ns()
    own = _queued_of_caller()
    return Reading(time.perf_counter_ns(), own, others, process)


def spent_since(before: Reading) -> Spent:
    """Reads the clocks after the work, which other threads did while this one waited."""
    wall = time.perf_counter_ns() - before.wall
    own = _queued_of_caller() - before.own_queued
    process = time.process_time_ns() - before.process
    after = _others()
    changes = {
        name: (cpu - before.others.get(name, (0, 0))[0], queued - before.others.get(name, (0, 0))[1])
        for name, (cpu, queued) in after.items()
    }
    busiest = max((cpu for cpu, _ in changes.values()), default=0)
    if not busiest:
        cpu = min(process, wall)
        return Spent(cpu, wall - cpu)
    working = [change for change in changes.values() if change[0] >= _WORKS * busiest]
    cpu = min(sum(cpu for cpu, _ in working), wall)
    queued = own + sum(queued for _, queued in working)
    return Spent(cpu, max(0, wall - queued - cpu))


def _others() -> dict[str, tuple[int, int]]:
    """Times of all threads but the calling one; empty where the kernel does not tell."""
    own = str(threading.get_native_id())
    found = {}
    # A thread may end meanwhile.
    with suppress(OSError):
        for task in _TASKS.iterdir():
            if task.name != own:
                with suppress(OSError, ValueError):
                    found[task.name] = _times(task)
    return found


def _queued_of_caller() -> int:
    with suppress(OSError, ValueError):
        return _times(_TASKS / str(threading.get_native_id()))[1]
    return 0


def _times(task: Path) -> tuple[int, int]:
    running, waiting, _ = (task / "schedstat").read_text().split()
    return int(running), int(waiting)

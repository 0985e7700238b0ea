"""Time of work that this process does in other threads, without the time that other programs took.

Linux tells of every thread how long it had a CPU and how long it was ready but had none
(Documentation/scheduler/sched-stats.rst). Where one thread at a time works, the wall clock less the second
is what the work takes on an idle machine, computing and waiting for files, network or a sleep.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage

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


_CALIBRATIONS, _CALLS = 9, 200
_OUTSIDE = ""


class Profile:
    """A stack of parts; time counts for the uppermost.

    `enter` and `leave` belong together, in one thread: that which has made the object.
    """

    def __init__(self) -> None:
        self._file = _schedstat()
        self._stack = [_OUTSIDE]
        self._cpu: dict[str, float] = defaultdict(float)
        self._wait: dict[str, float] = defaultdict(float)
        self._cost_inside = self._cost_outside = 0.0
        self._last = (0, 0, 0, 0)
        self._calibrate()

    def close(self) -> None:
        """Closes the file of the kernel."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def enter(self, part: str) -> None:
        """From now on time is spent in a part, until the `leave` that belongs to it."""
        stack = self._stack
        self._charge(stack[-1], self._cost_outside)
        stack.append(part)

    def leave(self) -> None:
        """Back to the part that has entered this one."""
        self._charge(self._stack.pop(), self._cost_inside)

    def taken(self) -> dict[str, Spent]:
        """What every part has spent, nanoseconds, since this was asked the last time."""
        found = {
            part: Spent(round(max(0.0, self._cpu[part])), round(max(0.0, self._wait[part])))
            for part in self._cpu
            if part != _OUTSIDE
        }
        self._cpu.clear()
        self._wait.clear()
        return found

    def _charge(self, part: str, cost: float) -> None:
        wall, cpu, queued = time.perf_counter_ns(), time.thread_time_ns(), self._queued()
        waits = getrusage(RUSAGE_THREAD).ru_nvcsw
        wall_before, cpu_before, queued_before, waits_before = self._last
        used = cpu - cpu_before
        self._cpu[part] += used - cost
        if waits != waits_before:
            self._wait[part] += wall - wall_before - used - (queued - queued_before)
        self._last = (wall, cpu, queued, waits)

    def _queued(self) -> int:
        if self._file < 0:
            return 0
        return int(os.pread(self._file, 64, 0).split()[1])

    def _calibrate(self) -> None:
        """Finds out what a pair of `enter` and `leave` adds to the part within and to the one around it."""
        inside, outside = [], []
        for _ in range(_CALIBRATIONS):
            self.enter("around")
            for _ in range(_CALLS):
                self.enter("within")
                self.leave()
            self.leave()
            inside.append(self._cpu["within"] / _CALLS)
            outside.append(self._cpu["around"] / _CALLS)
            self._cpu.clear()
            self._wait.clear()
        # Other programs only ever add.
        self._cost_inside, self._cost_outside = min(inside), min(outside)


def _schedstat() -> int:
    """The opened file of this thread; -1 where the kernel does not tell."""
    with suppress(OSError, IndexError, ValueError):
        file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        int(os.pread(file, 64, 0).split()[1])
        return file
    return -1

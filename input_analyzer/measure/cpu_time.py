"""Measure the time of work without the time for which other programs had the CPUs.

Linux reports how long each thread had a CPU, and how long it was ready but had none
(Documentation/scheduler/sched-stats.rst). If one thread works at a time, the wall-clock time minus the latter
is what the work takes on an idle machine: computing, and waiting for files, network or a sleep.

`start` and `spent_since` time work of other threads of this process. A `Profile` times parts of a program
that call each other in the calling thread.
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
# Threads with at least this fraction of the busiest thread's CPU time count as working; others spin or
# watch.
_WORKING_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clocks at one moment, nanoseconds.

    Attributes:
        wall: Wall-clock time.
        own_queued: Time for which the calling thread was ready without a CPU.
        others: For every other thread, time on a CPU and time ready without one.
        process: CPU time of the process.
    """

    wall: int
    own_queued: int
    others: Mapping[str, tuple[int, int]]
    process: int


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of some work, nanoseconds: computing, and waiting for anything but a CPU."""

    cpu: int
    wait: int


def start() -> ClockReading:
    """Read the clocks before the work."""
    others = _read_other_threads()
    process = time.process_time_ns()
    own = _own_queued_ns()
    return ClockReading(time.perf_counter_ns(), own, others, process)


def spent_since(before: ClockReading) -> Spent:
    """Return the time of work that other threads did while this thread waited."""
    wall = time.perf_counter_ns() - before.wall
    own = _own_queued_ns() - before.own_queued
    process = time.process_time_ns() - before.process
    after = _read_other_threads()
    changes = {
        name: (cpu - before.others.get(name, (0, 0))[0], queued - before.others.get(name, (0, 0))[1])
        for name, (cpu, queued) in after.items()
    }
    busiest = max((cpu for cpu, _ in changes.values()), default=0)
    if not busiest:
        cpu = min(process, wall)
        return Spent(cpu, wall - cpu)
    working = [change for change in changes.values() if change[0] >= _WORKING_SHARE * busiest]
    cpu = min(sum(cpu for cpu, _ in working), wall)
    queued = own + sum(queued for _, queued in working)
    return Spent(cpu, max(0, wall - queued - cpu))


def _read_other_threads() -> dict[str, tuple[int, int]]:
    """Return the times of all threads except the calling one; empty if the kernel does not report them."""
    own = str(threading.get_native_id())
    found = {}
    # Threads may exit in the meantime.
    with suppress(OSError):
        for task in _TASKS.iterdir():
            if task.name != own:
                with suppress(OSError, ValueError):
                    found[task.name] = _read_schedstat(task)
    return found


def _own_queued_ns() -> int:
    with suppress(OSError, ValueError):
        return _read_schedstat(_TASKS / str(threading.get_native_id()))[1]
    return 0


def _read_schedstat(task: Path) -> tuple[int, int]:
    running, waiting, _ = (task / "schedstat").read_text().split()
    return int(running), int(waiting)


_CALIBRATIONS, _CALLS = 9, 200
_OUTSIDE = ""


class Profile:
    """A stack of parts; time counts for the top of the stack.

    The overhead of reading the clocks is measured and subtracted.

    `enter` and `leave` must be balanced, in the thread that has made the object.
    """

    def __init__(self) -> None:
        self._file = -1  # some kernels provide no scheduler statistics
        with suppress(OSError, IndexError, ValueError):
            file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
            int(os.pread(file, 64, 0).split()[1])
            self._file = file
        self._stack = [_OUTSIDE]
        self._cpu: dict[str, float] = defaultdict(float)
        self._wait: dict[str, float] = defaultdict(float)
        self._overhead_inside = self._overhead_outside = 0.0
        self._last = (0, 0, 0, 0)
        self._calibrate()

    def close(self) -> None:
        """Close the file of the kernel."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def enter(self, part: str) -> None:
        """Count the time for a part from now on, until the matching `leave`."""
        stack = self._stack
        self._charge(stack[-1], self._overhead_outside)
        stack.append(part)

    def leave(self) -> None:
        """Return to the part that entered the current one."""
        self._charge(self._stack.pop(), self._overhead_inside)

    def take_times(self) -> dict[str, Spent]:
        """Return the time of every part since the last call, nanoseconds."""
        found = {
            part: Spent(round(max(0.0, self._cpu[part])), round(max(0.0, self._wait[part])))
            for part in self._cpu
            if part != _OUTSIDE
        }
        self._cpu.clear()
        self._wait.clear()
        return found

    def _charge(self, part: str, cost: float) -> None:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        queued = 0 if self._file < 0 else int(os.pread(self._file, 64, 0).split()[1])
        waits = getrusage(RUSAGE_THREAD).ru_nvcsw
        wall_before, cpu_before, queued_before, waits_before = self._last
        used = cpu - cpu_before
        self._cpu[part] += used - cost
        # A thread that has not given up its CPU voluntarily (`ru_nvcsw` of getrusage(2)) has not waited for
        # anything: other programs, or a limit of its control group, took the time.
        if waits != waits_before:
            self._wait[part] += wall - wall_before - used - (queued - queued_before)
        self._last = (wall, cpu, queued, waits)

    def _calibrate(self) -> None:
        """Measure the time that a pair of `enter` and `leave` adds to the inner and to the outer part."""
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
        # Other programs can only add to the overhead.
        self._overhead_inside, self._overhead_outside = min(inside), min(outside)

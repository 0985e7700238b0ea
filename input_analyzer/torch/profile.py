"""Self time of parts of a program that call each other, in the calling thread.

Linux tells of a thread how long it had a CPU and how long it was ready but had none; the wall clock less the
second is what the work takes on an idle machine (Documentation/scheduler/sched-stats.rst). A thread that has
not given its CPU away by itself (`ru_nvcsw` of getrusage(2)) has not waited for anything: other programs, or
a limit of its control group, took the time. The file is kept open, so that a look at all clocks takes about
3 us; what these looks cost is measured and taken off.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import suppress
from resource import RUSAGE_THREAD, getrusage

from input_analyzer.cpu_clock import Spent

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

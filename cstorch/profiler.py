"""The times of single steps, as a trace for chrome://tracing and as a summary.

A step's time is that between the arrivals of its outputs and of those before them, on this machine. What each
layer takes on the wafer is in the compile report.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from cstorch.compatibility import log_unused
from cstorch.program import Program

log = logging.getLogger("cstorch")


@dataclass(frozen=True)
class ProfilerSchedule:
    """Which steps are profiled.

    Attributes:
        start_step: The first one, counted from 1 in each loop; below 1 for none.
        end_step: The last one.
    """

    start_step: int
    end_step: int

    def match(self, step: int) -> bool:
        """Return True if a step is profiled."""
        return 1 <= self.start_step <= step <= self.end_step


@dataclass(frozen=True)
class StepTime:
    """The time of one step.

    Attributes:
        step: Its number.
        begin_s: When it began, in seconds since the profiler did.
        duration_s: Seconds that it took.
    """

    step: int
    begin_s: float
    duration_s: float


def schedule(*, start_step: int, end_step: int) -> ProfilerSchedule:
    """Return which steps are profiled: `start_step` to `end_step`, counted from 1; -1 for none.

    Raises:
        ValueError: The end is before the start.
    """
    if end_step < start_step:
        raise ValueError(f"end_step is {end_step}, expected start_step, {start_step}, or more")
    return ProfilerSchedule(start_step, end_step)


@dataclass
class _InUse:
    profiler: profile | None = None


class ProfilerRegistry:
    """The profiler in use."""

    @classmethod
    def set_profiler(cls, profiler: profile) -> None:
        """Take a profiler into use."""
        Program.current().part(_InUse).profiler = profiler

    @classmethod
    def get_profiler(cls) -> profile | None:
        """Return the profiler in use; None if there is none."""
        return Program.current().part(_InUse).profiler

    @classmethod
    def unset_profiler(cls) -> None:
        """Take the profiler out of use."""
        Program.current().part(_InUse).profiler = None


class profile:  # noqa: N801 - the original name
    """Profiles the steps of the loops in a `with` block.

    Args:
        schedule: Which steps.
        host_activities: Servers of the original's cluster to profile; without effect, which is logged.
        on_trace_ready: Called with the profiler at the end of the block, such as
            `tensorboard_trace_handler(folder)`.
    """

    def __init__(
        self,
        *,
        schedule: ProfilerSchedule,
        host_activities: Sequence[str] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
    ) -> None:
        log_unused("profiler.profile()", {"host_activities": host_activities})
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        self._times: list[StepTime] = []
        self._began_s = self._newest_s = time.perf_counter()

    def __enter__(self) -> profile:
        ProfilerRegistry.set_profiler(self)
        self._began_s = self._newest_s = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        ProfilerRegistry.unset_profiler()
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    @property
    def appliance_response(self) -> list[StepTime] | None:
        """The times of the steps; None if none was profiled."""
        return self._times or None

    def configure_profiler(self, is_csx: bool, num_steps: int) -> None:
        """Check the schedule against the number of steps of a loop, and log steps that it does not reach."""
        if self._schedule.start_step > num_steps:
            log.warning(
                "the profiler starts at step %d, but the loop has %d", self._schedule.start_step, num_steps
            )

    def begin(self) -> None:
        """Restart the clock at the start of a loop."""
        self._newest_s = time.perf_counter()

    def step(self, step: int) -> None:
        """Record that the outputs of a step have arrived."""
        now_s = time.perf_counter()
        if self._schedule.match(step):
            self._times.append(StepTime(step, self._newest_s - self._began_s, now_s - self._newest_s))
        self._newest_s = now_s

    def get_summary(self) -> str:
        """Return the number of steps with their shortest, mean and longest time."""
        if not self._times:
            return "no step was profiled"
        spans = [step.duration_s * 1e3 for step in self._times]
        first, last = self._times[0].step, self._times[-1].step
        return (
            f"{len(spans)} steps from {first} to {last}: shortest {min(spans):.3f} ms, "
            f"mean {mean(spans):.3f} ms, longest {max(spans):.3f} ms"
        )

    @property
    def op_profiler_json(self) -> str | None:
        """The times as a trace for chrome://tracing; None if no step was profiled."""
        return self._trace() if self._times else None

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the times as a trace for chrome://tracing, compressed if the name ends with `.gz`."""
        text = self._trace()
        file = Path(path)
        file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())

    def _trace(self) -> str:
        events = [
            {
                "name": f"step {step.step}",
                "ph": "X",
                "pid": os.getpid(),
                "tid": 0,
                "ts": step.begin_s * 1e6,
                "dur": step.duration_s * 1e6,
            }
            for step in self._times
        ]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Return a function for `on_trace_ready` that writes the trace where TensorBoard finds it.

    Args:
        dir_name: Folder, which is made.
        worker_name: Prefix of the file name; None for the process id.
        use_gzip: Compress it.
    """

    def write(profiler: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        name = worker_name or f"process_{os.getpid()}"
        suffix = ".json.gz" if use_gzip else ".json"
        profiler.export_chrome_trace(folder / f"{name}.{time.time_ns() // 1000}.pt.trace{suffix}")

    return write

"""Measurements of a loop by activities, and the phases of a run, read from its summary."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cstorch.chosen_backend import current_backend
from cstorch.loop.rates import RateTracker
from cstorch.loop.steps import step_closure

current_backend_impl = current_backend

__all__ = [
    "Activity",
    "Profiler",
    "RateTracker",
    "RateTrackerActivity",
    "current_backend_impl",
    "step_closure",
]


class Activity(ABC):
    """A measurement of a loop, which gets the batch size of each step."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the measurement."""
        return cls.__name__

    @abstractmethod
    def update(self, batch_size: int) -> None:
        """Take a step into account."""

    @abstractmethod
    def compute(self) -> Any:
        """Return the result."""

    def __call__(self) -> Any:
        """Return the result."""
        return self.compute()


class RateTrackerActivity(Activity):
    """Samples, seconds and throughput of a loop."""

    def __init__(self) -> None:
        self.tracker = RateTracker()

    @classmethod
    def name(cls) -> str:
        """Return the name of the measurement."""
        return "rate_tracker"

    def reset_time(self) -> None:
        """Restart the clock."""
        self.tracker.reset_time()

    def update(self, batch_size: int) -> None:
        """Take a step into account."""
        self.tracker.add(batch_size)

    def total_samples(self) -> int:
        """Return the number of samples."""
        return self.tracker.total_count

    def total_time(self) -> float:
        """Return the seconds since the start."""
        return float(self.tracker.elapsed_seconds())

    def rate(self) -> float:
        """Return the samples per second since the previous reading."""
        return float(self.tracker.rate())

    def global_rate(self) -> float:
        """Return the samples per second since the start."""
        return float(self.tracker.global_rate())

    samples_per_sec = global_rate

    def flops_utilization(self) -> float | None:
        """Return None: the work of the wafer is in the compile report."""
        return None

    def compute(self) -> dict[str, float]:
        """Return samples, seconds and throughput."""
        return {
            "total_samples": self.total_samples(),
            "total_time": self.total_time(),
            "rate": self.rate(),
            "global_rate": self.global_rate(),
            "samples_per_sec": self.samples_per_sec(),
        }


class Profiler:
    """Measures the steps of a `with` block, and writes the results to `performance.json` at its end.

    Args:
        outdir: Folder of the file.
        activities: Classes or instances of `Activity`; `RateTrackerActivity` is always among them.
    """

    def __init__(self, outdir: str | os.PathLike[str], activities: Sequence[Any] | None = None) -> None:
        made = [activity() if isinstance(activity, type) else activity for activity in activities or ()]
        if not any(isinstance(activity, RateTrackerActivity) for activity in made):
            made.insert(0, RateTrackerActivity())
        self.outdir = Path(outdir)
        self.activities: dict[str, Activity] = {activity.name(): activity for activity in made}

    @property
    def rate_tracker(self) -> RateTracker:
        """Samples and seconds."""
        found = next(a for a in self.activities.values() if isinstance(a, RateTrackerActivity))
        return found.tracker

    def __enter__(self) -> Profiler:
        self.rate_tracker.reset()
        return self

    def __exit__(self, *error: object) -> None:
        results = {name: activity.compute() for name, activity in self.activities.items()}
        results |= results.pop(RateTrackerActivity.name(), {})
        self.outdir.mkdir(parents=True, exist_ok=True)
        written = {"written_at": time.time(), **results}
        (self.outdir / "performance.json").write_text(json.dumps(written, sort_keys=True, indent=4))

    def step(self, batch_size: int) -> None:
        """Take a step into account."""
        for activity in self.activities.values():
            activity.update(batch_size)


RUN_SUMMARY = "run_summary.json"


def locate_csperf_log(directory: str | Path = ".") -> str | None:
    """Return the newest run summary in a directory or below it; None if there is none."""
    found = sorted(Path(directory).rglob(RUN_SUMMARY), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else None


class AssessBottlenecks:
    """The phases of a run, longest first.

    Args:
        log: Path of a run summary, as `locate_csperf_log` returns it.
    """

    def __init__(self, log: str | Path, *args: Any, **kwargs: Any) -> None:
        self.log = str(log)
        summary = json.loads(Path(log).read_text())
        phases = [(phase["name"], phase["seconds"] or 0.0) for phase in summary.get("timeline", [])]
        self.phases = sorted(phases, key=lambda phase: -phase[1])

    def assess(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        return dict(self.phases)

    def report(self) -> str:
        """Return a line for each phase."""
        return "\n".join(f"{name}: {seconds:.3f} s" for name, seconds in self.phases)

    __str__ = report

"""Figures of one reservation: totals, rates over the last seconds, and curves of loss and rate. No I/O."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from cs_stream.run_state import RunStats, WorkerStats
from cs_toolkit.step import LOSS

# Rates are those of the last seconds, as of `RateMeter`.
WINDOW_S = 5.0
# A curve of a run of any length; above this number every second point is dropped.
CURVE_POINTS = 480


@dataclass(frozen=True)
class Totals:
    """The usage of a reservation.

    Attributes:
        steps, samples: Computed ones.
        batches, size_bytes: Received from workers.
        input_wait_s: Time that the device waited for a batch while steps were running.
        to_wafer_bytes, to_memory_bytes: Traffic between wafer and MemoryX.
    """

    steps: int = 0
    samples: int = 0
    batches: int = 0
    size_bytes: int = 0
    input_wait_s: float = 0.0
    to_wafer_bytes: int = 0
    to_memory_bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class StepTraffic:
    """Bytes between wafer and MemoryX in one step; both 0 if the whole model is on the wafer."""

    to_wafer_bytes: int = 0
    to_memory_bytes: int = 0


@dataclass(frozen=True)
class WorkerRates:
    """Figures of a worker over the last seconds; the waits are parts of the time."""

    batches_per_s: float = 0.0
    bytes_per_s: float = 0.0
    credit_wait: float = 0.0
    input_wait: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Figures of a reservation over the last seconds; `input_wait` is a part of the time."""

    input_bytes_per_s: float = 0.0
    input_wait: float = 0.0
    to_wafer_bytes_per_s: float = 0.0
    to_memory_bytes_per_s: float = 0.0
    workers: tuple[WorkerRates, ...] = ()


@dataclass(frozen=True)
class CurvePoint:
    """A point of the curves.

    Attributes:
        time: Seconds since the epoch.
        step: Global step.
        steps_per_s: Rate since the previous point.
        loss: Mean loss since the previous point; None if there was none.
    """

    time: float
    step: int
    steps_per_s: float
    loss: float | None


@dataclass(frozen=True)
class _Sample:
    time_s: float
    totals: Totals
    workers: tuple[WorkerStats, ...]


class RunRecorder:
    """Records a reservation. Steps are added by the thread of the device, the rest by the event loop.

    Attributes:
        loss: Loss of the last step; None if there was none.
    """

    def __init__(self) -> None:
        self.loss: float | None = None
        self._lock = threading.Lock()
        self._totals = Totals()
        self._samples_per_step = 1
        self._traffic = StepTraffic()
        self._window: deque[_Sample] = deque()
        self._curve = Curve()
        self._loss_sum, self._losses = 0.0, 0

    def begin_input(self, samples_per_step: int, traffic: StepTraffic) -> None:
        """Start recording the steps of another input."""
        with self._lock:
            self._samples_per_step, self._traffic = samples_per_step, traffic
            self._window.clear()

    def end_input(self, stats: RunStats) -> None:
        """Add the batches of an input that is closed to the totals."""
        with self._lock:
            self._totals += _received(stats.workers)
            self._window.clear()

    def add_steps(self, count: int, outputs: Mapping[str, np.ndarray], waited_s: float) -> None:
        """Record consecutive steps, in the thread that gets their outputs."""
        losses = outputs.get(LOSS)
        # In float64, because a sum of 16-bit losses overflows.
        values = None if losses is None or not losses.size else losses.astype(np.float64).reshape(-1)
        with self._lock:
            self._totals += Totals(
                steps=count,
                samples=count * self._samples_per_step,
                input_wait_s=waited_s,
                to_wafer_bytes=count * self._traffic.to_wafer_bytes,
                to_memory_bytes=count * self._traffic.to_memory_bytes,
            )
            if values is not None:
                self.loss = float(values[-1])
                self._loss_sum += float(values.sum())
                self._losses += values.size

    def sample(
        self, now_s: float, time: float, step: int, stats: RunStats | None, waiting_s: float = 0.0
    ) -> None:
        """Take a sample for the rates and the curves; called about once a second.

        Args:
            now_s: Monotonic time.
            time: Seconds since the epoch.
            step: Global step.
            stats: Statistics of the open input; None if there is none.
            waiting_s: How long the device has been waiting for a batch now; not yet in `add_steps`.
        """
        workers = () if stats is None else stats.workers
        with self._lock:
            totals = self._totals + _received(workers) + Totals(input_wait_s=waiting_s)
            if self._window and len(self._window[-1].workers) != len(workers):
                self._window.clear()
            self._window.append(_Sample(now_s, totals, workers))
            while len(self._window) > 2 and self._window[1].time_s <= now_s - WINDOW_S:
                self._window.popleft()
            if stats is not None:
                loss = self._loss_sum / self._losses if self._losses else None
                if self._curve.add(time, step, loss):
                    self._loss_sum, self._losses = 0.0, 0

    def totals(self, stats: RunStats | None) -> Totals:
        """Return the totals, with the batches of the open input."""
        with self._lock:
            return self._totals + _received(() if stats is None else stats.workers)

    def rates(self) -> Rates:
        """Return the figures of the last seconds."""
        with self._lock:
            if len(self._window) < 2:
                return Rates()
            first, last = self._window[0], self._window[-1]
        seconds = max(last.time_s - first.time_s, 1e-9)
        before, after = first.totals, last.totals
        return Rates(
            input_bytes_per_s=(after.size_bytes - before.size_bytes) / seconds,
            input_wait=_part(after.input_wait_s - before.input_wait_s, seconds),
            to_wafer_bytes_per_s=(after.to_wafer_bytes - before.to_wafer_bytes) / seconds,
            to_memory_bytes_per_s=(after.to_memory_bytes - before.to_memory_bytes) / seconds,
            workers=tuple(
                WorkerRates(
                    (new.batches - old.batches) / seconds,
                    (new.size_bytes - old.size_bytes) / seconds,
                    _part(new.credit_wait_s - old.credit_wait_s, seconds),
                    _part(new.consumer_wait_s - old.consumer_wait_s, seconds),
                )
                for old, new in zip(first.workers, last.workers, strict=True)
            ),
        )

    def curve(self) -> tuple[CurvePoint, ...]:
        """Return the points of the curves."""
        with self._lock:
            return self._curve.points()


class Curve:
    """Loss and rate over a run of any length, with a bounded number of evenly spaced points."""

    def __init__(self, capacity: int = CURVE_POINTS) -> None:
        self._capacity = capacity
        self._interval_s = 0.0
        self._points: list[CurvePoint] = []
        self._start: tuple[float, int] | None = None

    def add(self, time: float, step: int, loss: float | None) -> bool:
        """Add a point if one is due and steps were made; return True if it was added."""
        last_time, last_step = (
            (self._points[-1].time, self._points[-1].step) if self._points else self._start or (time, step)
        )
        if self._start is None:
            self._start = (time, step)
        # The first steps of a run that was idle do not get the rate of the pause.
        if step <= last_step:
            if not self._points:
                self._start = (time, step)
            return False
        if time - last_time < self._interval_s or time <= last_time:
            return False
        self._points.append(CurvePoint(time, step, (step - last_step) / (time - last_time), loss))
        if len(self._points) >= self._capacity:
            span_s = self._points[-1].time - self._points[0].time
            self._points = _merge_pairs(self._points)
            self._interval_s = 2 * span_s / self._capacity
        return True

    def points(self) -> tuple[CurvePoint, ...]:
        """Return the points in the order of time."""
        return tuple(self._points)


def _merge_pairs(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    merged = []
    for first, second in zip(points[::2], points[1::2], strict=False):
        losses = [loss for loss in (first.loss, second.loss) if loss is not None]
        merged.append(
            CurvePoint(
                second.time,
                second.step,
                (first.steps_per_s + second.steps_per_s) / 2,
                sum(losses) / len(losses) if losses else None,
            )
        )
    return [*merged, *points[len(points) - len(points) % 2 :]]


def _received(workers: Sequence[WorkerStats]) -> Totals:
    return Totals(
        batches=sum(worker.batches for worker in workers), size_bytes=sum(w.size_bytes for w in workers)
    )


def _part(waited_s: float, seconds: float) -> float:
    return min(1.0, max(0.0, waited_s / seconds))

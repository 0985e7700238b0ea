"""Samples per second: since the last question, and in all."""

from __future__ import annotations

import time


class Rate(float):
    """A figure that some generations of programs read and others call: both give the number."""

    def __call__(self) -> float:
        """Return the number."""
        return float(self)


class RateTracker:
    """Counts samples, and says their rate.

    Args:
        smooth_factor: weight of the newest rate in `rate`, in (0, 1]; 1 takes it alone.
        from_first: the clock begins after the first samples, which do not count: they came from a step that
            had to be compiled. Rates are those of this step until there are others.
    """

    def __init__(self, smooth_factor: float | None = None, from_first: bool = False) -> None:
        self._smooth_factor = 1.0 if smooth_factor is None else smooth_factor
        self._from_first = from_first
        self.reset()

    def reset(self) -> None:
        """Begins to count from 0, now."""
        self._start_time = self._partial_time = time.perf_counter()
        self._started = not self._from_first
        self._first_rate = 0.0
        self._count = 0
        self._partial_count = 0
        self._rate = 0.0

    def add(self, count: int) -> None:
        """Counts samples."""
        if not self._started:
            now = time.perf_counter()
            self._first_rate = count / max(now - self._start_time, 1e-9)
            self._start_time = self._partial_time = now
            self._started = True
            return
        self._count += count
        self._partial_count += count

    @property
    def rate(self) -> Rate:
        """Samples a second since the reading before this one; as then where none was counted since."""
        now = time.perf_counter()
        if self._partial_count:
            newest = self._partial_count / max(now - self._partial_time, 1e-9)
            old = self._rate or newest
            self._rate = self._smooth_factor * newest + (1 - self._smooth_factor) * old
            self._partial_count, self._partial_time = 0, now
        return Rate(self._rate or self._first_rate)

    @property
    def global_rate(self) -> Rate:
        """Samples a second since the start."""
        if not self._count:
            return Rate(self._first_rate)
        return Rate(self._count / max(time.perf_counter() - self._start_time, 1e-9))

    @property
    def elapsed_seconds(self) -> Rate:
        """Seconds since the start."""
        return Rate(time.perf_counter() - self._start_time)

    @property
    def total_count(self) -> int:
        """Samples in all."""
        return self._count

"""Throughput in samples per second: since the last reading, and overall."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class Rate(float):
    """A number that older programs read, and newer programs call."""

    def __call__(self) -> float:
        """Return the number."""
        return float(self)


class _Reading:
    """A method whose result some programs read as an attribute: `tracker.rate` and `tracker.rate()`."""

    def __init__(self, function: Callable[[Any], float]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else Rate(self._function(instance))


class RateTracker:
    """Counts samples and computes their rates.

    Args:
        smooth_factor: Weight of the newest rate in `rate`, in (0, 1]; 1 uses only the newest.
        from_first: The clock starts after the first samples, whose step had to be compiled. Rates exclude
            them, except while no others have been added; `total_count` includes them.
    """

    def __init__(self, smooth_factor: float | None = None, from_first: bool = False) -> None:
        self._smooth_factor = 1.0 if smooth_factor is None else smooth_factor
        self._from_first = from_first
        self.reset()

    def reset(self) -> None:
        """Start counting from 0, now."""
        self.reset_time()
        self._waiting = self._from_first
        self._first_rate = 0.0
        self._first_count = self._count = 0
        self._partial_count = 0
        self._rate = 0.0

    def reset_time(self, offset: float = 0) -> None:
        """Restart the clock without forgetting the samples.

        Args:
            offset: Seconds that have passed on it already.
        """
        self._start_time = self._partial_time = time.perf_counter() - offset

    def add(self, count: int) -> None:
        """Count samples."""
        if self._waiting:
            self._first_count = count
            self._first_rate = count / max(self._elapsed(), 1e-9)
            self.reset_time()
            self._waiting = False
            return
        self._count += count
        self._partial_count += count

    @_Reading
    def rate(self) -> float:
        """Samples per second since the previous reading, which is repeated if none was counted since."""
        now = time.perf_counter()
        if self._partial_count:
            newest = self._partial_count / max(now - self._partial_time, 1e-9)
            old = self._rate or newest
            self._rate = self._smooth_factor * newest + (1 - self._smooth_factor) * old
            self._partial_count, self._partial_time = 0, now
        return self._rate or self._first_rate

    @_Reading
    def global_rate(self) -> float:
        """Samples per second since the start."""
        return self._count / max(self._elapsed(), 1e-9) if self._count else self._first_rate

    @_Reading
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return self._elapsed()

    samples_per_sec = global_rate
    total_time = elapsed_seconds

    @property
    def total_count(self) -> int:
        """Number of samples."""
        return self._first_count + self._count

    @_Reading
    def total_samples(self) -> float:
        """Number of samples, as profilers of release 2.2 name it."""
        return self.total_count

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start_time

"""Progress of a run as others see it: steps done, and their rate over the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 5.0


class RateMeter:
    """Steps per second over a sliding window; written by one thread, read by any.

    Args:
        window_s: Length of the window.
        clock: Seconds, monotonic.
    """

    def __init__(self, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque()

    def start(self, steps: int) -> None:
        """Begins to count at `steps`, so that a pause before does not count."""
        self._marks = deque([(self._clock(), steps)])

    def update(self, steps: int) -> None:
        """Tells the number of steps done so far."""
        now = self._clock()
        self._marks.append((now, steps))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window_s:
            self._marks.popleft()

    def per_s(self) -> float:
        """Steps per second; 0 before the first update."""
        marks = list(self._marks)
        if len(marks) < 2 or marks[-1][1] == marks[0][1]:
            return 0.0
        return (marks[-1][1] - marks[0][1]) / max(self._clock() - marks[0][0], 1e-9)

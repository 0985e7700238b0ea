"""The phases of a run with their times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Phase:
    """One phase; `start_s` counts from the start of the run."""

    name: str
    start_s: float
    seconds: float | None = None


class Timeline:
    """Measures phases in the order in which they begin."""

    def __init__(self) -> None:
        self.started_at = time.time()
        self._origin = time.perf_counter()
        self.phases: list[Phase] = []

    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._origin

    @contextmanager
    def phase(self, name: str) -> Iterator[Phase]:
        """Measures the body as one phase, also when it raises."""
        phase = Phase(name, self.elapsed_s())
        self.phases.append(phase)
        try:
            yield phase
        finally:
            phase.seconds = self.elapsed_s() - phase.start_s

    def mark(self, name: str) -> None:
        """Notes that something happened now, the first time only; a phase of no length."""
        if all(phase.name != name for phase in self.phases):
            self.phases.append(Phase(name, self.elapsed_s(), 0.0))

    def seconds(self, name: str) -> float | None:
        """Total of all phases of that name; None when there was none."""
        times = [phase.seconds for phase in self.phases if phase.name == name and phase.seconds is not None]
        return sum(times) if times else None

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data for `run_summary.json`."""
        return [asdict(phase) for phase in self.phases]

"""Helpers for tests that run several programs in one process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cs_runtime import requeue
from cstorch.program import Program


def forget() -> None:
    """Reset the process as if it had configured, compiled and computed nothing."""
    Program.reset()
    requeue._calls.clear()


def values_by_step(events: Iterable[Any]) -> dict[int, float]:
    """Return the values of a scalar that `SummaryReader.read_scalar` has read."""
    return {event.step: event.value for event in events}

"""How many steps the state of this process has behind it: masks of dropout and the input go on from there."""

from __future__ import annotations

_done = [0]


def steps_done() -> int:
    """Training steps behind the state: of the loops so far, and before them of the loaded checkpoint."""
    return _done[0]


def continue_at(step: int) -> None:
    """The state has so many steps behind it: they were done, or it was loaded."""
    _done[0] = step

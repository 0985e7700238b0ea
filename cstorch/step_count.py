"""How many steps the state of this process has behind it: masks of dropout and the input go on from there."""

from __future__ import annotations

from cstorch.program import Program
from cstorch.tracing.device import is_tracing


def steps_done() -> int:
    """Training steps behind the state: of the loops so far, and before them of the loaded checkpoint."""
    return Program.current().steps_done


def continue_at(step: int) -> None:
    """The state has so many steps behind it: they were done, or it was loaded."""
    Program.current().steps_done = step


class StateSteps(int):
    """The number in what a closure is given: it is that behind the step which the closure runs behind."""


def state_steps() -> int:
    """The number for a state dictionary: one that a step makes has the state behind the step."""
    return StateSteps(steps_done() + 1) if is_tracing() else steps_done()

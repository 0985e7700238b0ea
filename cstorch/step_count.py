"""The number of completed training steps, from which dropout masks and the input continue."""

from __future__ import annotations

from cstorch.program import Program
from cstorch.tracing.device import is_tracing


def steps_done() -> int:
    """Return the training steps of the state: those of the loaded checkpoint and of the loops since."""
    return Program.current().steps_done


def continue_at(step: int) -> None:
    """Set the number of completed steps, after a step or when a state is loaded."""
    Program.current().steps_done = step


class StateSteps(int):
    """A number of steps in the arguments of a closure, which gets the current number instead."""


def state_steps() -> int:
    """Return the number of steps for a state dictionary; one made within a step has the state after it."""
    return StateSteps(steps_done() + 1) if is_tracing() else steps_done()

"""Step closures: functions that get values, and run behind the step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from cstorch.recorded_step import ClosureCall
from cstorch.session.steps import recording_steps

P = ParamSpec("P")
T = TypeVar("T")


def step_closure(function: Callable[P, T]) -> Callable[P, T | None]:
    """A function, or a method, that runs behind the step in which it is called, with values for tensors.

    It returns None there. Where no step is recorded, as on this CPU, or within another closure, it is called
    at once.
    """

    @wraps(function)
    def closure(*args: P.args, **kwargs: P.kwargs) -> T | None:
        steps = recording_steps()
        if steps is None:
            return function(*args, **kwargs)
        steps.add_closure(ClosureCall(function, (args, kwargs)))
        return None

    return closure

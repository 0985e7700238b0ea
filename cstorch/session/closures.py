"""Step closures: functions that get values, and run behind the step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from cstorch.loop.execution import ClosureCall
from cstorch.session.process import state
from cstorch.session.steps import recording_steps

P = ParamSpec("P")
T = TypeVar("T")


def step_closure(function: Callable[P, T]) -> Callable[P, T | None]:
    """A function, or a method, that runs behind the step in which it is called, with values for tensors.

    It returns None there. Where no step is recorded, as on this CPU, or within another closure, it is called
    immediately; but a program that drives the appliance expects its calls before the step is compiled to wait
    for `run_queued_closures`.
    """

    @wraps(function)
    def closure(*args: P.args, **kwargs: P.kwargs) -> T | None:
        steps = recording_steps()
        if steps is not None:
            steps.add_closure(ClosureCall(function, (args, kwargs)))
        elif state().queues_closures:
            state().queued_closures.append(partial(function, *args, **kwargs))
        else:
            return function(*args, **kwargs)
        return None

    return closure


def run_queued_closures() -> None:
    """Call the step closures that were called before the step was compiled, in their order."""
    here = state()
    here.queues_closures = False
    calls, here.queued_closures = here.queued_closures, []
    for call in calls:
        call()

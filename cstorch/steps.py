"""The decorators of a program's functions: the step, and what runs behind it on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from cstorch.errors import ClosureError, StepError
from cstorch.loop import ClosureCall, call_closure, running
from cstorch.tracing.device import is_tracing

P = ParamSpec("P")
T = TypeVar("T")


def compile_step(function: Callable[P, T]) -> Callable[P, T]:
    """Compiles a function that is one whole step: forward, backward, update.

    Its first call is traced; Python runs once. What it returns has values in step closures alone.
    """

    @wraps(function)
    def step(*args: P.args, **kwargs: P.kwargs) -> T:
        loop = running()
        if loop is None:
            raise StepError(
                f"{function.__qualname__}() is called outside of a loop over a DataLoader, expected "
                "`for batch in cstorch.utils.data.DataLoader(input_fn, ...)` around it"
            )
        return loop.call(function, args, kwargs)

    return step


trace = compile_step


def step_closure(function: Callable[P, T]) -> Callable[P, T | None]:
    """A function that gets the values of tensors: it runs on this CPU, behind the step.

    Called inside of the step it runs behind every step, and returns None there.
    """

    @wraps(function)
    def closure(*args: P.args, **kwargs: P.kwargs) -> T | None:
        loop = running()
        if loop is None:
            raise ClosureError(
                f"{function.__qualname__}() is a step closure and called outside of a loop over a "
                "DataLoader, expected a call inside of the step, or behind it in the loop"
            )
        if is_tracing():
            loop.add_closure(ClosureCall(function, (args, kwargs)))
            return None
        if loop.ended:  # nothing runs when a program is only compiled
            return None
        return call_closure(loop, function, *args, **kwargs)

    return closure

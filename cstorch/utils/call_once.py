"""Functions that run once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def call_once(error_callable: Callable[..., Any] | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a function that runs at its first call; later ones return the first result.

    Args:
        error_callable: Called at every later call.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        results: list[T] = []

        @wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> T:
            if not results:
                results.append(function(*args, **kwargs))
            elif error_callable is not None:
                error_callable()
            return results[0]

        return once

    return decorate

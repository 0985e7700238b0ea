"""The classes that are derived from a class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Cls = TypeVar("Cls")


def retrieve_all_subclasses(
    cls: type[Cls], condition: Callable[[type[Any]], bool] | None = None
) -> Iterator[type[Cls]]:
    """Yield the subclasses of a class at all levels, each once, a class before its own subclasses.

    Args:
        cls: The class, which is not yielded itself.
        condition: Leaves out the classes for which it returns False; their subclasses are asked too.
    """
    seen: set[type[Cls]] = set()
    pending = list(cls.__subclasses__())
    while pending:
        found = pending.pop(0)
        if found in seen:
            continue
        seen.add(found)
        pending[:0] = found.__subclasses__()
        if condition is None or condition(found):
            yield found

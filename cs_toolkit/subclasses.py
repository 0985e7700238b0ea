"""Subclasses of a class."""

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


def find_program_class(
    cls: type[Any], name: str, plain: Callable[[str], str] = str.lower
) -> type[Any] | None:
    """Find the subclass of a class of the toolkit that a program defines, by its name; None for none.

    Args:
        cls: The class.
        name: Name of the subclass.
        plain: Makes names comparable, by default whatever their case.
    """
    ours = cls.__module__.partition(".")[0]
    defined = retrieve_all_subclasses(cls, lambda found: found.__module__.partition(".")[0] != ours)
    return {plain(found.__name__): found for found in defined}.get(plain(name))

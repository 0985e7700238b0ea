"""Objects as bytes for another process of the same job, and the name of what cannot go there."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

_DEPTH = 8
"""So many steps from the input function a culprit is looked for."""


def pickled(value: Any) -> bytes:
    """An object as bytes, functions and classes of the program's own file by value.

    Raises:
        TypeError: it refers to an open file.
        Exception: what the pickling of an object raises.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
                raise TypeError(f"cannot hand over the open file {getattr(obj, 'name', obj)!r}")
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def culprit(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The object behind an input function that `pickled` refuses, as "lock (a _thread.lock)"."""
    parts = [*((f"argument {i}", x) for i, x in enumerate(args)), *kwargs.items()]
    for name, value in [*parts, (getattr(function, "__qualname__", "the input function"), function)]:
        if not _goes(value):
            return _innermost(name, value, _DEPTH)
    return "what it refers to"


def _goes(value: Any) -> bool:
    try:
        pickled(value)
    except Exception:  # whatever an object raises that cannot be pickled
        return False
    return True


def _innermost(name: str, value: Any, depth: int) -> str:
    for part, inner in _parts(value) if depth else ():
        if not _goes(inner):
            return _innermost(f"{part} of {name}", inner, depth - 1)
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{name} (a {module}{kind.__qualname__})"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object refers to, with names that a user knows."""
    if isinstance(value, FunctionType):
        found = inspect.getclosurevars(value)
        yield from {**found.globals, **found.nonlocals}.items()
        yield from _enumerated("default", value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield "self", value.__self__
    elif isinstance(value, partial):
        yield "the function", value.func
        yield from _enumerated("argument", value.args)
        yield from value.keywords.items()
    elif isinstance(value, Mapping):
        yield from ((repr(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _enumerated("element", value)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from vars(value).items()


def _enumerated(word: str, values: Sequence[Any] | set[Any] | frozenset[Any]) -> Iterator[tuple[str, Any]]:
    """ "argument 0", "argument 1" ..."""
    return ((f"{word} {i}", value) for i, value in enumerate(values))

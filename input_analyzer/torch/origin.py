"""Where the user has called DataLoader."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from input_analyzer.source_lines import is_users, shown

_LINES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


@contextmanager
def noting_calls() -> Iterator[None]:
    """While it is open, the user's line is noted of every DataLoader that is made; see `line_of_call`."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__

    @wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        line = _users_line(sys._getframe(1), self)
        if line is not None:
            _LINES[self] = line
        original(self, *args, **kwargs)

    DataLoader.__init__ = noting
    try:
        yield
    finally:
        DataLoader.__init__ = original


def line_of_call(loader: Any) -> str | None:
    """The user's `file:line` that made a DataLoader; None where nobody has noted it."""
    return _LINES.get(loader)


def _users_line(frame: FrameType | None, made: Any) -> str | None:
    while frame is not None:
        # A class derived from DataLoader calls it in its own __init__: the line that made that is wanted.
        by_itself = any(value is made for value in frame.f_locals.values())
        if not by_itself and is_users(frame.f_code.co_filename):
            return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def source_of(function: Any) -> str | None:
    """The user's line where a function, or the class of an object, is defined; None for a library's."""
    if function is None:
        return None
    is_code = inspect.isfunction(function) or inspect.ismethod(function) or inspect.isclass(function)
    target = inspect.unwrap(function) if is_code else type(function)
    try:
        path = inspect.getsourcefile(target)
        line = inspect.getsourcelines(target)[1]
    except (TypeError, OSError):
        return None
    return f"{shown(path)}:{line}" if path is not None and is_users(path) else None

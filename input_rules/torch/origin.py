"""Where and how the user has called DataLoader."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from cs_toolkit.source_files import is_users_file
from input_rules.formatting import display_path


@dataclass(frozen=True)
class _Call:
    """How a DataLoader was made: the user's line, and whether a sampler was given."""

    line: str | None
    given_order: bool


_CALLS: WeakKeyDictionary[Any, _Call] = WeakKeyDictionary()


@contextmanager
def noting_calls() -> Iterator[None]:
    """While it is open, it is noted how every DataLoader is made: see `line_of_call`, `made_order_itself`."""
    from torch.utils.data import DataLoader

    original = DataLoader.__init__
    signature = inspect.signature(original)

    @wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        orders = (given.get("sampler"), given.get("batch_sampler"))
        _CALLS[self] = _Call(_users_line(sys._getframe(1), self), any(order is not None for order in orders))

    DataLoader.__init__ = noting
    try:
        yield
    finally:
        DataLoader.__init__ = original


def line_of_call(loader: Any) -> str | None:
    """The user's `file:line` that made a DataLoader; None where nobody has noted it."""
    call = _CALLS.get(loader)
    return None if call is None else call.line


def made_order_itself(loader: Any) -> bool | None:
    """Whether a DataLoader has made its sampler, by `shuffle`; None where nobody has noted it."""
    call = _CALLS.get(loader)
    return None if call is None else not call.given_order


def _users_line(frame: FrameType | None, made: Any) -> str | None:
    while frame is not None:
        # A class derived from DataLoader calls it in its own __init__: the line that made that is wanted.
        by_itself = any(value is made for value in frame.f_locals.values())
        if not by_itself and is_users_file(frame.f_code.co_filename):
            return f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"
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
    return f"{display_path(path)}:{line}" if path is not None and is_users_file(path) else None

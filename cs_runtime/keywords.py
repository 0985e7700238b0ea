"""Misspelled keywords in calls of the toolkit's functions and classes."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from itertools import islice
from types import TracebackType
from typing import Any

from cs_toolkit.errors import EXIT_FAILURE, PACKAGES, UsageError, exit_code_of, suggestion

_MESSAGE = re.compile(r"^(?P<called>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_CALLED = re.compile(r"\w+(\.\w+)*(?=\()")


class UnknownKeywordError(UsageError, TypeError):
    """A call of the toolkit has a keyword that its signature lacks; a `TypeError`, as programs expect."""


def unknown_keyword_error(error: BaseException) -> UnknownKeywordError | None:
    """Return the error to report instead of Python's for a misspelled keyword in a call of the toolkit.

    Returns:
        An error with the same traceback; None if `error` is another one, or the toolkit's own code made the
        call.
    """
    found = _MESSAGE.match(str(error)) if type(error) is TypeError else None
    if found is None or exit_code_of(error) != EXIT_FAILURE or error.__traceback__ is None:
        return None
    function = _called_function(error.__traceback__, found["called"])
    if function is None:
        return None
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
        and parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    near = suggestion(found["name"], known) or f"; expected one of {', '.join(known)}"
    called = re.sub(r"\.__(init|new)__$", "", found["called"])
    message = f"{called}() got the unknown argument '{found['name']}'{near}"
    return UnknownKeywordError(message).with_traceback(error.__traceback__)


def _called_function(trace: TracebackType, qualified_name: str) -> Any:
    """Return the toolkit's function that the last call of a traceback is for; None if it is not clear."""
    while trace.tb_next is not None:
        trace = trace.tb_next
    # Python's message has a name that the program or its framework may use too, such as AdamW.__init__, so
    # the called expression is looked up first.
    with suppress(Exception):
        frame = trace.tb_frame
        line, _, column, _ = next(islice(frame.f_code.co_positions(), trace.tb_lasti // 2, None))
        text = linecache.getline(frame.f_code.co_filename, line or 0)
        path = _CALLED.match(text.encode()[column or 0 :].decode())
        if path is not None:
            first, *others = path[0].split(".")
            start = {**frame.f_builtins, **frame.f_globals, **frame.f_locals}[first]
            called = reduce(getattr, others, start)
            function = _function_of(called, qualified_name)
            if function is not None:
                return function if _is_ours(called) else None
    candidates = set(_functions(qualified_name))
    return candidates.pop() if len(candidates) == 1 and all(map(_is_ours, candidates)) else None


def _function_of(called: Any, qualified_name: str) -> Any:
    """Return the function with a qualified name that a call of an object runs; None for another name."""
    methods = (called.__init__, called.__new__) if inspect.isclass(called) else (called,)
    functions = (getattr(method, "__func__", method) for method in methods)
    return next((each for each in functions if each.__qualname__ == qualified_name), None)


def _functions(qualified_name: str) -> Iterator[Any]:
    """Yield the functions of all modules that have a qualified name."""
    path = qualified_name.split(".")
    for module in list(sys.modules.values()):
        if path[0] in vars(module):
            found: Any = module
            for name in path:
                found = getattr(found, name, None)
            if inspect.isfunction(found) and found.__qualname__ == qualified_name:
                yield found


def _is_ours(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] in PACKAGES

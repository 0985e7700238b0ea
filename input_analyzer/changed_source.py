"""Run functions of the user's program as if their source files had been changed, without writing them."""

from __future__ import annotations

import gc
import linecache
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


class CannotChangeError(Exception):
    """A change of the source does not fit into the running program."""


@contextmanager
def changed_source(files: Mapping[str, str]) -> Iterator[None]:
    """Replace the code of all functions of some files for the duration of the context.

    Module-level code does not run again, and what the functions have made before stays.

    Args:
        files: New sources by absolute path.

    Raises:
        CannotChangeError: a file was not loaded, or a function would need other variables around it.
    """
    replaced: list[tuple[FunctionType, CodeType]] = []
    update = linecache.updatecache
    cached: dict[str, Any] = {}
    names: dict[str, str] = {}  # sources by the names that code has for their files

    def update_cache(filename: str, module_globals: Any = None) -> list[str]:
        # AutoGraph parses the source of functions, and reads the file again before that.
        if filename not in names:
            return update(filename, module_globals)
        source = names[filename]
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
        return lines

    try:
        for path, source in files.items():
            functions = _functions_of(path)
            if not functions:
                raise CannotChangeError(f"no function of {path} was found in the program")
            for name in {function.__code__.co_filename for function in functions}:
                names[name] = source
                cached[name] = linecache.cache.get(name)
                update_cache(name)
            codes = _by_name(compile(source, functions[0].__code__.co_filename, "exec"))
            for function in functions:
                before, code = function.__code__, codes.get(function.__code__.co_qualname)
                # A lambda, or a function that is defined twice, is made by a function that is replaced.
                if code is None or len(code) > 1:
                    continue
                if code[0].co_freevars != before.co_freevars:
                    raise CannotChangeError(f"{before.co_qualname} would use other variables around it")
                function.__code__ = code[0]
                replaced.append((function, before))
        linecache.updatecache = update_cache
        yield
    finally:
        linecache.updatecache = update
        for function, before in replaced:
            function.__code__ = before
        for name, entry in cached.items():
            if entry is None:
                linecache.cache.pop(name, None)
            else:
                linecache.cache[name] = entry


def method_of(files: Mapping[str, str], kind: type, name: str, like: FunctionType) -> FunctionType | None:
    """Return a method that changed sources add to a class; None if they add none.

    Args:
        files: Changed sources by absolute path.
        kind: The class.
        name: The method.
        like: A method of the class, from the same file.
    """
    for path, source in files.items():
        if like in _functions_of(path):
            codes = _by_name(compile(source, path, "exec"))
            for code in codes.get(f"{kind.__qualname__}.{name}", ()):
                return FunctionType(code, like.__globals__, name, like.__defaults__, like.__closure__)
    return None


def _functions_of(path: str) -> list[FunctionType]:
    """Return all functions in memory whose source is a file."""
    known: dict[str, bool] = {}

    def is_same(name: str) -> bool:
        if name not in known:
            same_name = Path(name).name == Path(path).name  # most code has another, which saves looking
            known[name] = same_name and os.path.realpath(name) == os.path.realpath(path)
        return known[name]

    return [
        one for one in gc.get_objects() if type(one) is FunctionType and is_same(one.__code__.co_filename)
    ]


def _by_name(module: CodeType) -> dict[str, list[CodeType]]:
    """Return the code of all functions of a module by qualified name."""
    found: dict[str, list[CodeType]] = {}
    waiting = [module]
    while waiting:
        for constant in waiting.pop().co_consts:
            if isinstance(constant, CodeType):
                found.setdefault(constant.co_qualname, []).append(constant)
                waiting.append(constant)
    return found

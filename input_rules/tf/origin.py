"""Who made an operation of a graph: the user's line, and what was called there."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from cs_toolkit.source_files import is_users_file
from input_rules.formatting import display_path

# Functions that TensorFlow wraps others in.
_DECORATORS = frozenset({"new_func", "wrapper", "tf_method_wrapper", "error_handler"})

Frames = tuple[tuple[str, int, str], ...]
"""A traceback: `(file, line, function)` of each call, the outermost first."""


@dataclass(frozen=True)
class Origin:
    """Where an operation comes from.

    Attributes:
        source: The user's line, `file:line`; None where no user's code is involved.
        function: The function or class of a library that this line called; None where the operation was made
            there.
        frames: The whole traceback, `(file, line, function)`, the outermost first.
        call: Equal for operations that one call on one line made.
    """

    source: str | None
    function: str | None
    frames: Frames
    call: tuple[Any, ...]


_FRAMES: WeakKeyDictionary[Any, dict[str, Frames]] = WeakKeyDictionary()


def remember(operation: Any, frames: Frames) -> None:
    """Says who has called what an operation of a graph stands for, where that is not who has made it."""
    _FRAMES.setdefault(operation.graph, {})[operation.name] = frames


def origin(operation: Any) -> Origin:
    """Reads the traceback of an operation of a graph."""
    frames = _FRAMES.get(operation.graph, {}).get(operation.name)
    if frames is None:
        frames = tuple((frame.filename, frame.lineno, frame.name) for frame in operation.traceback)
    return _origin(frames, operation.name)


def source_of(frames: Frames) -> str | None:
    """The user's line, `file:line`, that has made a call; None where no user's code is involved."""
    return _origin(frames, "").source


def _origin(frames: Frames, name: str) -> Origin:
    own = [index for index, frame in enumerate(frames) if is_users_file(frame[0])]
    if not own:
        return Origin(None, None, frames, (name,))
    last = own[-1]
    called = next((frame for frame in frames[last + 1 :] if frame[2] not in _DECORATORS), None)
    path, line, _ = frames[last]
    return Origin(
        f"{display_path(path)}:{line}",
        _name_of(called) if called else None,
        frames,
        (frames[: last + 1], called[0] if called else None, called[2] if called else name),
    )


def _name_of(called: tuple[str, int, str]) -> str:
    """What a user has called: of a constructor the class."""
    path, line, name = called
    if name != "__init__":
        return name
    around = [(end - first, known) for first, end, known in _classes(path) if first <= line <= end]
    return re.sub(r"V\d+$", "", min(around)[1]) if around else name


@cache
def _classes(path: str) -> tuple[tuple[int, int, str], ...]:
    """First and last line and name of all classes of a file; none where it cannot be read."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return tuple((node.lineno, node.end_lineno or node.lineno, node.name) for node in found)

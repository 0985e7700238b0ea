"""Who made an operation of a graph: the user's line, and what was called there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from input_analyzer.source_lines import is_users, shown

# Functions that TensorFlow wraps others in.
_DECORATORS = frozenset({"new_func", "wrapper", "tf_method_wrapper", "error_handler"})


@dataclass(frozen=True)
class Origin:
    """Where an operation comes from.

    Attributes:
        source: The user's line, `file:line`; None where no user's code is involved.
        function: The function of a library that this line called; None where the operation was made there.
        frames: The whole traceback, `(file, line, function)`, the outermost first.
        call: Equal for operations that one call on one line made.
    """

    source: str | None
    function: str | None
    frames: tuple[tuple[str, int, str], ...]
    call: tuple[Any, ...]


def origin(operation: Any) -> Origin:
    """Reads the traceback of an operation of a graph."""
    frames = tuple((frame.filename, frame.lineno, frame.name) for frame in operation.traceback)
    own = [index for index, frame in enumerate(frames) if is_users(frame[0])]
    if not own:
        return Origin(None, None, frames, (operation.name,))
    last = own[-1]
    called = next((frame for frame in frames[last + 1 :] if frame[2] not in _DECORATORS), None)
    path, line, _ = frames[last]
    return Origin(
        f"{shown(path)}:{line}",
        called[2] if called else None,
        frames,
        (frames[: last + 1], called[0] if called else None, called[2] if called else operation.name),
    )

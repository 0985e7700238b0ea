"""Which line of the user's program made an operation."""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from cs_toolkit.errors import PACKAGES

_ROOT = Path(__file__).parents[3]


TAPE = "gradient_tape/"
"""Scope of all that `tf.GradientTape` makes."""


def _not_the_users() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *(str(_ROOT / name) for name in PACKAGES)]
    return tuple(f"{folder}/" for folder in dict.fromkeys(folders))


_NOT_THE_USERS = _not_the_users()


@lru_cache(maxsize=4096)
def is_users_file(filename: str) -> bool:
    """Whether a file of a traceback is the user's: not a library's, not Python's, not ours."""
    if "/site-packages/" in filename or "/dist-packages/" in filename or filename.startswith("<"):
        return False
    return not filename.startswith(_NOT_THE_USERS)


def innermost_user_line(frames: Sequence[Any]) -> str | None:
    """Returns `file:line` of the last frame in a user's file; frames run from the outermost inwards."""
    for frame in reversed(frames):
        if is_users_file(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None


def forward_op(op: Any) -> Any:
    """The operation that an operation is the gradient of, or a part of that; None where it is of none.

    `tf.gradients` notes it. `tf.GradientTape` opens a scope of the name of the forward operation.
    """
    noted = getattr(op, "_original_op", None)
    if noted is not None or not op.name.startswith(TAPE):
        return noted
    scope = op.name.removeprefix(TAPE).rpartition("/")[0]
    while scope:
        with suppress(KeyError):
            return op.graph.get_operation_by_name(scope)
        scope = scope.rpartition("/")[0]
    return None


def user_line(op: Any) -> str | None:
    """The user's line for an operation; for one of a gradient, the line of its forward operation."""
    forward = forward_op(op)
    line = innermost_user_line(forward.traceback or ()) if forward is not None else None
    return line or innermost_user_line(op.traceback or ())

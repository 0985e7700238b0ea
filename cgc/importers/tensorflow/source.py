"""Which line of the user's program made an operation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cs_toolkit.source_files import innermost_user_line

TAPE = "gradient_tape/"
"""Scope of all that `tf.GradientTape` makes."""


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

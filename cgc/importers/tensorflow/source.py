"""Which line of the user's program made an operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import tensorflow as tf

from cs_toolkit.source_files import innermost_user_line, toolkit_folders

_LINES = "_cs_layer_lines"
"""Attribute of the graph of a traced Keras model."""

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


LayerLine = Callable[[Any], str | None]
"""The line of a program at which a layer of Keras was made; None for one whose class is the user's own."""


@contextmanager
def noted_layers(model: Any, line_of: LayerLine) -> Iterator[None]:
    """Notes in the body which line made the layer that an operation of a Keras model is of.

    Keras gives the operations of a layer a scope, whose name may also be that of another layer.

    Args:
        model: is traced in the body.
        line_of: where each of its layers was made.
    """
    base: Any = next(kind for kind in type(model).__mro__ if kind.__name__ == "Layer")
    own = base.__call__

    @wraps(own)  # by the name of its module AutoGraph knows that it is Keras'
    def noted(layer: Any, *arguments: Any, **keywords: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        result = own(layer, *arguments, **keywords)
        line = line_of(layer)
        lines = _lines_in(graph)
        for op in graph.get_operations()[first:]:
            lines.setdefault(op.name, line)  # layers inside of this one have been called before
        return result

    base.__call__ = noted
    try:
        yield
    finally:
        base.__call__ = own


def _lines_in(graph: Any) -> dict[str, str | None]:
    """Line of the layer by the name of an operation."""
    if not hasattr(graph, _LINES):
        setattr(graph, _LINES, {})
    lines: dict[str, str | None] = getattr(graph, _LINES)
    return lines


def user_line(op: Any) -> str | None:
    """The user's line for an operation; for one of a gradient, the line of its forward operation.

    In a traced Keras model that is where the layer was made, or a line of the user's own layer or step; the
    lines that led to the tracing made none of it.
    """
    forward = forward_op(op)
    made = forward if forward is not None else op
    lines = getattr(made.graph, _LINES, None)
    if lines is not None:
        return lines.get(made.name) or _line_in_step(made)
    line = innermost_user_line(forward.traceback or ()) if forward is not None else None
    return line or innermost_user_line(op.traceback or ())


def _line_in_step(op: Any) -> str | None:
    """The user's line behind the toolkit's call of a step that it traces."""
    frames = list(op.traceback or ())
    ours = [i for i, frame in enumerate(frames) if frame.filename.startswith(toolkit_folders())]
    return innermost_user_line(frames[ours[-1] + 1 :] if ours else frames)

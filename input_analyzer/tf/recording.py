"""How each dataset, table and variable of an eager program was made: by which operation, out of what, where.

TensorFlow executes an operation of an eager program and forgets it: a dataset knows neither its arguments
nor the line that made it. While it is recorded, every operation that makes a dataset or a resource is kept as
long as what it has made is.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from input_rules.tf.operations import Frames

_KEPT = (tf.variant, tf.resource)


@dataclass(frozen=True)
class Made:
    """An operation that was executed.

    Attributes:
        kind: Its name.
        inputs: Its tensors, those of a list one by one.
        attributes: By name, as TensorFlow's Python functions take them.
        output: Which of its outputs is meant.
        frames: Who called it, `(file, line, function)`, the outermost first.
    """

    kind: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]
    output: int
    frames: Frames


_made: dict[int, tuple[weakref.ref[Any], Made]] = {}
"""By the identity of a tensor, which has no hash; only of those that are alive."""


def made(tensor: Any) -> Made | None:
    """What has made an eager tensor; None where that was not recorded."""
    found = _made.get(id(tensor))
    return None if found is None else found[1]


def _keep(tensor: Any, by: Made) -> None:
    key = id(tensor)

    def forget(gone: Any) -> None:
        if key in _made and _made[key][0] is gone:
            del _made[key]

    _made[key] = (weakref.ref(tensor, forget), by)


@contextmanager
def recorded() -> Iterator[None]:
    """Records what this thread executes meanwhile."""
    before = _record in context.context().op_callbacks
    op_callbacks.add_op_callback(_record)
    try:
        yield
    finally:
        if not before:
            op_callbacks.remove_op_callback(_record)


def _record(
    kind: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
) -> None:
    if graph is not None:  # made in the graph of a function, not executed
        return
    for number, output in enumerate(outputs):
        if output.dtype in _KEPT:
            named = dict(zip(attributes[::2], attributes[1::2], strict=True))
            _keep(output, Made(tf.compat.as_str(kind), tuple(inputs), named, number, _frames()))


def _frames() -> Frames:
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))

"""What TensorFlow cannot do on a CPU, told as exactly that, with the user's line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import Any

from estimator.errors import CpuLimitError, essence

_CAUSE_LENGTH = 160  # TensorFlow lists all labels of a batch
_CHANNELS_FIRST = (b"NCHW", b"NCDHW")
_CHANNELS_LAST = re.compile(r"\bN(H|DH)WC\b")
_LABEL = re.compile(r"Received a label value of -1 ")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_NO_KERNEL = re.compile(r"No OpKernel was registered|Could not find device for node|no supported kernel")


@contextmanager
def told_as_limits(graph: Any) -> Iterator[None]:
    """Turns errors of TensorFlow from what it cannot do on a CPU into messages; others pass as they are.

    Those are labels of -1 and images whose channels come first, which the CS system takes, and types for
    which an op has no kernel. Which convolutions with channels first there are is up to CPU and oneDNN.

    Args:
        graph: What the body runs.

    Raises:
        CpuLimitError: one of them.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        op = _op(error, graph)
        told = op and _limit(error, op)
        if not told:
            raise
        raise _error(op, *told, shorten(essence(error), _CAUSE_LENGTH, placeholder=" ...")) from None


def _limit(error: Any, op: Any) -> tuple[str, str] | None:
    """What it cannot do, and what to do off the CS system; None for errors of another kind."""
    import tensorflow as tf

    if _LABEL.search(error.message):
        return (
            "has no labels of -1",
            "Off the CS system, which leaves them out, give them the label 0 and a weight of 0",
        )
    if _is_channels_first(op) and _CHANNELS_LAST.search(error.message):
        return (
            f"has no {op.type} of {_type(op)} whose channels come first",
            "Off the CS system, build the model with channels last (data_format)",
        )
    if isinstance(error, tf.errors.UnimplementedError) or _NO_KERNEL.search(error.message):
        return (
            f"has no {op.type} of {_type(op)}",
            "Off the CS system, cast to float32 around it, or build the model without it",
        )
    return None


def _error(op: Any, limit: str, advice: str, cause: str) -> CpuLimitError:
    from cgc.importers.tensorflow.source import user_line

    return CpuLimitError("TensorFlow", limit, op.name, user_line(op), cause, advice)


def _op(error: Any, graph: Any) -> Any:
    """The op that failed; None where the error does not say."""
    if error.op is not None:
        return error.op
    named = _NODE.search(error.message)
    try:
        return graph.get_operation_by_name(named[1]) if named else None
    except KeyError:  # in the body of a branch or loop, or made by TensorFlow itself
        return None


def _is_channels_first(op: Any) -> bool:
    return op.node_def.attr["data_format"].s in _CHANNELS_FIRST


def _type(op: Any) -> str:
    floats = (tensor.dtype for tensor in (*op.outputs, *op.inputs) if tensor.dtype.is_floating)
    return str(next((dtype.name for dtype in floats), "such tensors"))

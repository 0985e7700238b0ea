"""Constants and ranges."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.emit import Array
from cgc.importers.tensorflow.node import NodeContext, Table


def _const(node: NodeContext) -> Array:
    array: Array = tf.make_ndarray(node.attr("value"))
    return array


def _range(node: NodeContext) -> SSAValue:
    """A range that is too long to be folded."""
    start, limit, step = (node.static(i, what) for i, what in enumerate(("start", "limit", "delta")))
    values = np.arange(start.item(), limit.item(), step.item(), dtype=start.dtype)
    if start.dtype.kind not in "iu":
        return node.emit.constant(values)
    return node.emit.emit(ops.ArangeOp(len(values), int(start), int(step), node.out_dtype()))


TABLE: Table = {
    "Const": _const,
    "Range": _range,
}

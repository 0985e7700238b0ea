"""The largest elements of rows, and whether a target is among them."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.composed.rows import gather
from cgc.importers.tensorflow.node import NodeContext, Table


def _top_k(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """The k largest, in order whatever the attribute `sorted` says: without it any order is right."""
    (k,) = node.ints(1, "k")
    values, indices = node.emit.emit_all(ops.TopKOp(node.x(0), k))
    return values, node.emit.cast(indices, node.out_dtype(1))


def _in_top_k(node: NodeContext) -> SSAValue:
    """InTopKV2: k is the third input."""
    (k,) = node.ints(2, "k")
    return _is_among(node, k)


def _in_top_k_v1(node: NodeContext) -> SSAValue:
    return _is_among(node, node.attr("k"))


def _is_among(node: NodeContext, k: int) -> SSAValue:
    """Whether fewer than k predictions are larger than that of the target: ties are all in.

    As in TensorFlow false for a row whose target is out of range or has a prediction that is not finite.
    """
    e, predictions, targets = node.emit, node.x(0), node.x(1)
    count, classes = shape_of(predictions)
    indices = e.cast(targets, "int32")
    last = e.scalar(classes - 1, "int32")
    inside = e.binary(ops.MinOp, e.binary(ops.MaxOp, indices, e.scalar(0, "int32")), last)
    wanted = e.reshape(gather(e, predictions, e.reshape(inside, (count, 1)), 1, 1), (count, 1))
    larger = e.reduce("ADD", e.cast(e.compare("GT", predictions, wanted), "int32"), (1,))
    few = e.compare("LT", larger, e.scalar(k, "int32"))
    finite = e.reduce("AND", e.unary(ops.IsFiniteOp, predictions), (1,))
    in_range = e.compare("EQ", indices, inside)
    return e.binary(ops.AndOp, few, e.binary(ops.AndOp, finite, in_range))


def _nth_element(node: NodeContext) -> SSAValue:
    """The n-th smallest, or largest, along the last axis."""
    (n,) = node.ints(1, "n")
    return node.emit.emit(ops.NthOrderStatisticOp(node.x(0), n, node.attr("reverse")))


TABLE: Table = {"NthElement": _nth_element, "TopKV2": _top_k, "InTopKV2": _in_top_k, "InTopK": _in_top_k_v1}

"""Reductions, scans, and the largest elements of rows."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.composed.rows import gather
from cgc.importers.emit import Maker, dtype_of
from cgc.importers.faults import Kind, RefusedError
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

_KINDS = {"Sum": "ADD", "Mean": "MEAN", "Prod": "MUL", "Max": "MAX", "Min": "MIN", "All": "AND", "Any": "OR"}


def _axes(node: NodeContext, rank: int) -> list[int]:
    return sorted({axis % rank for axis in node.ints(1, "axis")}) if rank else []


def _reduction(kind: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x(0)
        if kind == "MEAN" and dtype_of(x) not in FLOATS:
            raise RefusedError(Kind.USAGE, "Mean of integers drops the fraction; cast to float32 first")
        return node.emit.reduce(kind, x, _axes(node, len(shape_of(x))), node.attr("keep_dims"))

    return handler


def _l2_loss(node: NodeContext) -> SSAValue:
    """sum(x**2) / 2."""
    e, x = node.emit, node.x(0)
    return e.scaled(e.reduce("ADD", e.mul(x, x), range(len(shape_of(x)))), 0.5)


def _euclidean_norm(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    total = e.reduce("ADD", e.mul(x, x), _axes(node, len(shape_of(x))), node.attr("keep_dims"))
    return e.unary(ops.SqrtOp, total)


def _arg_max(node: NodeContext) -> SSAValue:
    return _position(node, node.x(0))


def _arg_min(node: NodeContext) -> SSAValue:
    return _position(node, node.emit.unary(ops.NegOp, node.x(0)))


def _position(node: NodeContext, x: SSAValue) -> SSAValue:
    axis = node.axis(1, "axis", len(shape_of(x)))
    return node.emit.emit(ops.ArgMaxOp(x, axis, node.out_dtype()))


def _scan(op_type: Maker) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.x(0)
        axis = node.axis(1, "axis", len(shape_of(x)))
        return node.emit.emit(op_type(x, axis, node.attr("exclusive"), node.attr("reverse")))

    return handler


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


TABLE: Table = {
    **{name: _reduction(kind) for name, kind in _KINDS.items()},
    "L2Loss": _l2_loss,
    "EuclideanNorm": _euclidean_norm,
    "ArgMax": _arg_max,
    "ArgMin": _arg_min,
    "Cumsum": _scan(ops.CumSumOp),
    "Cumprod": _scan(ops.CumProdOp),
    "CumulativeLogsumexp": _scan(ops.CumLogSumExpOp),
    "NthElement": _nth_element,
    "TopKV2": _top_k,
    "InTopKV2": _in_top_k,
    "InTopK": _in_top_k_v1,
}

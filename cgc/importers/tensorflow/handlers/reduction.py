"""Reductions and scans."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS, shape_of
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


TABLE: Table = {
    **{name: _reduction(kind) for name, kind in _KINDS.items()},
    "L2Loss": _l2_loss,
    "EuclideanNorm": _euclidean_norm,
    "ArgMax": _arg_max,
    "ArgMin": _arg_min,
    "Cumsum": _scan(ops.CumSumOp),
    "Cumprod": _scan(ops.CumProdOp),
}

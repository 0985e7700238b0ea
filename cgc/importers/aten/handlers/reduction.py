"""Sums, means, extrema, norms, running sums, ranks."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.reduction import ScanOp
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.emit import Emitter, dtype_of
from cgc.importers.faults import Kind, RefusedError


def _reduced(kind: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.emit.cast(node.x(), "bool") if kind in ("AND", "OR") else node.cast()
        if dtype_of(x) == "bool" and kind in ("MAX", "MIN"):
            x = node.emit.cast(x, "int32")
        found = node.emit.reduce(kind, x, node.axes(), bool(node.arg("keepdim", False)))
        return node.emit.cast(found, node.dtype)

    return handler


def _extremum(kind: str) -> Handler:
    """Largest or smallest element along an axis, and the position of the first such."""

    def handler(node: NodeContext) -> tuple[SSAValue, SSAValue]:
        e, x = node.emit, node.x()
        if not shape_of(x):
            return x, e.full(0, (), "int64")
        axis = node.axis()
        wide = e.cast(x, "int32") if node.dtype == "bool" else x
        values = e.cast(e.reduce(kind, wide, (axis,), bool(node.arg("keepdim", False))), node.dtype)
        return values, e.reshape(_position(e, x, axis, kind), shape_of(values))

    return handler


def _position(e: Emitter, x: SSAValue, axis: int, kind: str) -> SSAValue:
    if dtype_of(x) == "bool":
        x = e.cast(x, "int32")
    return e.emit(ops.ArgMaxOp(x if kind == "MAX" else e.unary(ops.NegOp, x), axis, "int64"))


def _arg_extremum(kind: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        e, x = node.emit, node.x()
        if node.arg("dim") is None:
            x, axis = e.reshape(x, (-1,)), 0
        else:
            axis = node.axis() if shape_of(x) else 0
            x = x if shape_of(x) else e.reshape(x, (1,))
        return e.reshape(_position(e, x, axis, kind), node.shape)

    return handler


def _topk(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """The largest first; the smallest are the largest of the negatives."""
    e, x, axis, k = node.emit, node.x(), node.axis(), node.arg("k")
    if not shape_of(x):
        return x, e.full(0, (), "int64")
    return ranked(e, x, axis, k, node.arg("largest", True))


def _sort(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    e, x, axis = node.emit, node.x(), node.axis()
    if not shape_of(x):
        return x, e.full(0, (), "int64")
    return ranked(e, x, axis, shape_of(x)[axis], node.arg("descending", False))


def ranked(e: Emitter, x: SSAValue, axis: int, k: int, largest: bool) -> tuple[SSAValue, SSAValue]:
    """The first k elements along an axis in order, and their positions as int64."""
    rank = len(shape_of(x))
    order = [i for i in range(rank) if i != axis] + [axis]
    moved = e.transpose(x, order)
    moved = moved if largest else e.unary(ops.NegOp, moved)
    values, indices = e.emit_all(ops.TopKOp(moved, k))
    values = values if largest else e.unary(ops.NegOp, values)
    back = np.argsort(order).tolist()
    return e.transpose(values, back), e.cast(e.transpose(indices, back), "int64")


def _kth(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """The k-th smallest along an axis, of the median the lower one of the middle; and its position."""
    e, x, axis = node.emit, node.x(), node.axis()
    x = x if shape_of(x) else e.reshape(x, (1,))
    starts, ends = [0] * len(shape_of(x)), list(shape_of(x))
    k = node.arg("k", (ends[axis] + 1) // 2)
    starts[axis], ends[axis] = k - 1, k
    found = ranked(e, x, axis, k, largest=False)
    values, places = (e.slice(part, starts, ends, [1] * len(ends)) for part in found)
    return e.reshape(values, node.shape), e.reshape(places, node.shape)


def _median(node: NodeContext) -> SSAValue:
    """The lower one of two in the middle."""
    e, x = node.emit, node.emit.reshape(node.x(), (-1,))
    values, _ = ranked(e, x, 0, (shape_of(x)[0] + 1) // 2, largest=False)
    size = shape_of(values)[0]
    return e.reshape(e.slice(values, [size - 1], [size], [1]), ())


def variance(e: Emitter, x: SSAValue, axes: tuple[int, ...], correction: float) -> tuple[SSAValue, SSAValue]:
    """The variance over axes, divided by count - correction, and the mean; the axes stay."""
    count = math.prod(shape_of(x)[axis] for axis in axes)
    mean = e.reduce("MEAN", x, axes, keep_dims=True)
    distance = e.sub(x, mean)
    total = e.reduce("ADD", e.mul(distance, distance), axes, keep_dims=True)
    divisor = max(0.0, count - correction)
    return e.scaled(total, 1 / divisor if divisor else math.nan), mean


def _var(node: NodeContext) -> SSAValue:
    correction = node.arg("correction")
    found, _ = variance(node.emit, node.cast(), node.axes(), 1 if correction is None else correction)
    return node.emit.reshape(found, node.shape)


def _std(node: NodeContext) -> SSAValue:
    return node.emit.unary(ops.SqrtOp, _var(node))


def _var_mean(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    e, correction = node.emit, node.arg("correction")
    found, mean = variance(e, node.cast(), node.axes(), 1 if correction is None else correction)
    return e.reshape(found, node.shape), e.reshape(mean, node.shape)


def _vector_norm(node: NodeContext) -> SSAValue:
    e, order, axes = node.emit, node.arg("ord", 2), node.axes()
    keep = bool(node.arg("keepdim", False))
    x = node.cast()
    if order == 2 and len(axes) == len(shape_of(x)) and not keep:
        return e.emit(ops.L2NormOp(x))
    size = e.unary(ops.AbsOp, x)
    if order in (math.inf, -math.inf):
        return e.reduce("MAX" if order > 0 else "MIN", size, axes, keep)
    if order == 0:
        return e.reduce("ADD", e.cast(e.compare("NE", x, e.like(0, x)), node.dtype), axes, keep)
    if order == 1:
        return e.reduce("ADD", size, axes, keep)
    if order == 2:
        return e.unary(ops.SqrtOp, e.reduce("ADD", e.mul(x, x), axes, keep))
    powers = e.reduce("ADD", e.binary(ops.PowOp, size, e.scalar(order, node.dtype)), axes, keep)
    return e.binary(ops.PowOp, powers, e.scalar(1 / order, node.dtype))


def _logsumexp(node: NodeContext) -> SSAValue:
    e, x, axes = node.emit, node.cast(), node.axes()
    largest = e.reduce("MAX", x, axes, keep_dims=True)
    finite = e.unary(ops.IsFiniteOp, largest)
    largest = e.select(finite, largest, e.like(0, largest))
    total = e.reduce("ADD", e.unary(ops.ExpOp, e.sub(x, largest)), axes, keep_dims=True)
    return e.reshape(e.add(e.unary(ops.LogOp, total), largest), node.shape)


def _scan(op_type: type[ScanOp]) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        return node.emit.emit(op_type(node.cast(), node.axis())) if node.shape else node.cast()

    return handler


def _running_extremum(sign: int) -> Handler:
    """The largest element so far along an axis (the smallest with -1), and the position of the last such."""

    def handler(node: NodeContext) -> tuple[SSAValue, SSAValue]:
        e, x = node.emit, node.x()
        if not node.shape:
            return x, e.full(0, (), "int64")
        axis = node.axis()
        wide = e.cast(x, "int32") if node.dtype in ("bool", "uint8") else x
        signed = wide if sign > 0 else e.unary(ops.NegOp, wide)
        largest = e.emit(ops.CumMaxOp(signed, axis))
        # NaN is the largest of all: each one counts as reached.
        reached = e.binary(ops.OrOp, e.compare("EQ", signed, largest), e.compare("NE", signed, signed))
        size = node.shape[axis]
        along = [size if i == axis else 1 for i in range(len(node.shape))]
        places = e.broadcast(e.reshape(e.emit(ops.ArangeOp(size)), along), node.shape)
        last = e.emit(ops.CumMaxOp(e.select(reached, places, e.like(0, places)), axis))
        values = largest if sign > 0 else e.unary(ops.NegOp, largest)
        return e.cast(values, node.dtype), e.cast(last, "int64")

    return handler


def _mean(node: NodeContext) -> SSAValue:
    if node.dtype not in FLOATS:
        raise RefusedError(Kind.TYPE, f"the mean is {node.dtype}, expected floats")
    return node.emit.reduce("MEAN", node.cast(), node.axes(), bool(node.arg("keepdim", False)))


def _each(name: str, handler: Handler, overloads: str) -> Table:
    return {f"aten.{name}.{overload}": handler for overload in overloads.split()}


TABLE: Table = {
    **_each("sum", _reduced("ADD"), "default dim_IntList"),
    **_each("mean", _mean, "default dim"),
    **_each("prod", _reduced("MUL"), "default dim_int"),
    **_each("any", _reduced("OR"), "default dim dims"),
    **_each("all", _reduced("AND"), "default dim dims"),
    **_each("max", _reduced("MAX"), "default"),
    **_each("min", _reduced("MIN"), "default"),
    **_each("amax", _reduced("MAX"), "default"),
    **_each("amin", _reduced("MIN"), "default"),
    **_each("max", _extremum("MAX"), "dim"),
    **_each("min", _extremum("MIN"), "dim"),
    **_each("var", _var, "correction"),
    **_each("std", _std, "correction"),
    **_each("var_mean", _var_mean, "correction"),
    "aten.argmax.default": _arg_extremum("MAX"),
    "aten.argmin.default": _arg_extremum("MIN"),
    "aten.median.default": _median,
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.logsumexp.default": _logsumexp,
    "aten.cumsum.default": _scan(ops.CumSumOp),
    "aten.cumprod.default": _scan(ops.CumProdOp),
    "aten.logcumsumexp.default": _scan(ops.CumLogSumExpOp),
    "aten.cummax.default": _running_extremum(1),
    "aten.cummin.default": _running_extremum(-1),
    "aten.kthvalue.default": _kth,
    "aten.median.dim": _kth,
    "aten.topk.default": _topk,
    "aten.sort.default": _sort,
    "aten.sort.stable": _sort,
}

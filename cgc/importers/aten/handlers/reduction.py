"""Sums, means, extrema, norms, running sums, sorting, and distances between rows."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.reduction import ScanOp
from cgc.cirh.types import FLOATS, shape_of
from cgc.importers.aten.node import Handler, NodeContext, Table
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Emitter, Shape, broadcast_shape, dtype_of


def _reduce(kind: str) -> Handler:
    def handler(node: NodeContext) -> SSAValue:
        x = node.emit.cast(node.x(), "bool") if kind in ("AND", "OR") else node.cast()
        if dtype_of(x) == "bool" and kind in ("MAX", "MIN"):
            x = node.emit.cast(x, "int32")
        found = node.emit.reduce(kind, x, node.axes(), bool(node.arg("keepdim", False)))
        return node.emit.cast(found, node.dtype)

    return handler


def _extremum(kind: str) -> Handler:
    """Return the largest or smallest element along an axis, and the first position of it."""

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
    """Return the largest first; the smallest are the largest of the negatives."""
    e, x, axis, k = node.emit, node.x(), node.axis(), node.arg("k")
    if not shape_of(x):
        return x, e.full(0, (), "int64")
    return top_k(e, x, axis, k, node.arg("largest", True))


def _sort(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    e, x, axis = node.emit, node.x(), node.axis()
    if not shape_of(x):
        return x, e.full(0, (), "int64")
    return top_k(e, x, axis, shape_of(x)[axis], node.arg("descending", False))


def top_k(e: Emitter, x: SSAValue, axis: int, k: int, largest: bool) -> tuple[SSAValue, SSAValue]:
    """Return the first k elements along an axis in order, and their positions as int64."""
    rank = len(shape_of(x))
    order = [i for i in range(rank) if i != axis] + [axis]
    moved = e.transpose(x, order)
    moved = moved if largest else e.unary(ops.NegOp, moved)
    values, indices = e.emit_all(ops.TopKOp(moved, k))
    values = values if largest else e.unary(ops.NegOp, values)
    back = np.argsort(order).tolist()
    return e.transpose(values, back), e.cast(e.transpose(indices, back), "int64")


def _kth(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Return the k-th smallest along an axis, of the median the lower one of the middle; and its position."""
    e, x, axis = node.emit, node.x(), node.axis()
    x = x if shape_of(x) else e.reshape(x, (1,))
    starts, ends = [0] * len(shape_of(x)), list(shape_of(x))
    k = node.arg("k", (ends[axis] + 1) // 2)
    starts[axis], ends[axis] = k - 1, k
    found = top_k(e, x, axis, k, largest=False)
    values, places = (e.slice(part, starts, ends, [1] * len(ends)) for part in found)
    return e.reshape(values, node.shape), e.reshape(places, node.shape)


def _median(node: NodeContext) -> SSAValue:
    """Return the lower one of two in the middle."""
    e, x = node.emit, node.emit.reshape(node.x(), (-1,))
    values, _ = top_k(e, x, 0, (shape_of(x)[0] + 1) // 2, largest=False)
    size = shape_of(values)[0]
    return e.reshape(e.slice(values, [size - 1], [size], [1]), ())


def variance(e: Emitter, x: SSAValue, axes: tuple[int, ...], correction: float) -> tuple[SSAValue, SSAValue]:
    """Return the variance over axes, divided by count - correction, and the mean; the axes stay."""
    count = math.prod(shape_of(x)[axis] for axis in axes)
    mean = e.reduce("MEAN", x, axes, keep_dims=True)
    distance = e.sub(x, mean)
    total = e.reduce("ADD", e.mul(distance, distance), axes, keep_dims=True)
    divisor = max(0.0, count - correction)
    return e.scale(total, 1 / divisor if divisor else math.nan), mean


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
    """Return the running maximum along an axis (minimum with -1), and its last position."""

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


# `compute_mode` of `cdist`: 0 and None are ATen's own choice, 1 takes a product, 2 takes differences.
_MATRIX_PRODUCT_BY_DEFAULT = 1


def _norm(e: Emitter, x: SSAValue, p: float) -> SSAValue:
    """Return the p-norm over the last axis."""
    axes = (len(shape_of(x)) - 1,)
    if p == 0:
        return e.reduce("ADD", e.cast(e.compare("NE", x, e.like(0, x)), dtype_of(x)), axes)
    if p == 2:
        return e.unary(ops.SqrtOp, e.reduce("ADD", e.mul(x, x), axes))
    size = e.unary(ops.AbsOp, x)
    if p == 1:
        return e.reduce("ADD", size, axes)
    if p == math.inf:
        return e.reduce("MAX", size, axes)
    powers = e.reduce("ADD", e.binary(ops.PowOp, size, e.scalar(p, dtype_of(x))), axes)
    return e.binary(ops.PowOp, powers, e.scalar(1 / p, dtype_of(x)))


def _norm_grad(e: Emitter, x: SSAValue, norm: SSAValue, grad: SSAValue, p: float) -> SSAValue:
    """Return the gradient of `_norm` by x; zero where the norm is zero.

    Args:
        e: emits ops.
        x: `[..., width]`.
        norm: `[..., 1]`.
        grad: `[..., 1]`.
        p: of the norm.
    """
    zero = e.like(0, x)
    if p == 0:
        return zero
    sign = e.unary(ops.SignOp, x)
    if p == 1:
        return e.mul(sign, grad)
    size = e.unary(ops.AbsOp, x)
    if p == math.inf:
        return e.select(e.compare("EQ", size, norm), e.mul(sign, grad), zero)
    is_zero = e.compare("EQ", norm, e.like(0, norm))
    safe = e.select(is_zero, e.like(1, norm), norm)
    if p == 2:
        return e.mul(x, e.select(is_zero, e.like(0, norm), e.div(grad, safe)))
    # |x| ** (p - 1) is infinite at 0 for p < 1, where ATen's gradient is 0.
    x_is_zero = e.compare("EQ", x, zero)
    ratio = e.div(e.select(x_is_zero, e.like(1, x), size), safe)
    power = e.mul(sign, e.binary(ops.PowOp, ratio, e.scalar(p - 1, dtype_of(x))))
    hidden = e.select(x_is_zero, zero, e.mul(power, grad))
    return e.select(is_zero, zero, hidden)


def _differences(e: Emitter, x1: SSAValue, x2: SSAValue) -> SSAValue:
    """`[..., rows of x1, rows of x2, width]`."""
    *batch1, rows1, width = shape_of(x1)
    *batch2, rows2, _ = shape_of(x2)
    return e.sub(e.reshape(x1, (*batch1, rows1, 1, width)), e.reshape(x2, (*batch2, 1, rows2, width)))


def _cdist(node: NodeContext) -> SSAValue:
    e = node.emit
    x1, x2 = node.cast("x1"), node.cast("x2")
    if node.arg("p") == 2 and node.arg("compute_mode") == _MATRIX_PRODUCT_BY_DEFAULT:
        return _by_product(e, x1, x2, node.shape)
    return e.broadcast(_norm(e, _differences(e, x1, x2), node.arg("p")), node.shape)


def _by_product(e: Emitter, x1: SSAValue, x2: SSAValue, shape: Shape) -> SSAValue:
    """Return the roots of |a|^2 + |b|^2 - 2 a b, which needs no difference of each pair."""
    batch, rank = shape[:-2], len(shape)
    x1, x2 = (e.broadcast(x, (*batch, *shape_of(x)[-2:])) for x in (x1, x2))
    squares = [e.reduce("ADD", e.mul(x, x), (rank - 1,), keep_dims=True) for x in (x1, x2)]
    product = e.emit(ops.MatMulOp(x1, x2, transpose_b=True))
    columns = e.transpose(squares[1], (*range(rank - 2), rank - 1, rank - 2))
    total = e.sub(e.add(squares[0], columns), e.scale(product, 2))
    return e.unary(ops.SqrtOp, e.binary(ops.MaxOp, total, e.like(0, total)))


def _cdist_backward(node: NodeContext) -> SSAValue:
    """Return the gradient by x1."""
    e, p = node.emit, node.arg("p")
    x1, x2, distance, grad = (node.x(name) for name in ("x1", "x2", "cdist", "grad"))
    difference = _differences(e, x1, x2)
    distance, grad = (e.reshape(x, (*shape_of(x), 1)) for x in (distance, grad))
    shape = broadcast_shape(shape_of(difference), shape_of(grad))
    found = _norm_grad(e, e.broadcast(difference, shape), distance, grad, p)
    return _sum_to(e, e.reduce("ADD", found, (len(shape) - 2,)), node.shape)


def _sum_to(e: Emitter, x: SSAValue, shape: Shape) -> SSAValue:
    """Sum x over the axes along which a tensor of a shape was broadcast."""
    extra = len(shape_of(x)) - len(shape)
    own = (*(1,) * extra, *shape)
    axes = [axis for axis, size in enumerate(shape_of(x)) if own[axis] == 1 != size]
    return e.reshape(e.reduce("ADD", x, axes), shape)


def _pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second row of all pairs, in the order of `pdist`."""
    first, second = np.triu_indices(count, 1)
    return first.astype(np.int32), second.astype(np.int32)


def _pair_differences(e: Emitter, x: SSAValue) -> SSAValue:
    first, second = (e.take(x, e.constant(rows), 0) for rows in _pairs(shape_of(x)[0]))
    return e.sub(first, second)


def _pdist(node: NodeContext) -> SSAValue:
    return _norm(node.emit, _pair_differences(node.emit, node.x()), node.arg("p"))


def _pdist_backward(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    distance, grad = (e.reshape(node.x(name), (-1, 1)) for name in ("pdist", "grad"))
    found = _norm_grad(e, _pair_differences(e, x), distance, grad, node.arg("p"))
    first, second = map(e.constant, _pairs(shape_of(x)[0]))
    plus = e.emit(ops.ScatterNdOp(first, found, node.shape))
    return e.sub(plus, e.emit(ops.ScatterNdOp(second, found, node.shape)))


_RENORM_EPSILON = 1e-7


def _limit_norms(e: Emitter, x: SSAValue, norm: SSAValue, limit: float) -> SSAValue:
    """Scale x so that no norm exceeds a limit; `norm` broadcasts to x."""
    factor = e.div(e.like(limit, norm), e.add(norm, e.like(_RENORM_EPSILON, norm)))
    return e.mul(x, e.select(e.compare("GT", norm, e.like(limit, norm)), factor, e.like(1, norm)))


def _renorm(node: NodeContext) -> SSAValue:
    """Scale each slice along an axis to at most a norm."""
    e, x, axis = node.emit, node.x(), node.axis()
    shape = shape_of(x)
    order = [axis, *(other for other in range(len(shape)) if other != axis)]
    rows = e.reshape(e.transpose(x, order), (shape[axis], -1))
    sizes = [size if i == axis else 1 for i, size in enumerate(shape)]
    norm = e.reshape(_norm(e, rows, node.arg("p")), sizes)
    return _limit_norms(e, x, norm, node.arg("maxnorm"))


def _embedding_renorm(node: NodeContext) -> SSAValue:
    """Return a table in which the rows that are looked up have at most a norm."""
    e, x = node.emit, node.x()
    rows = shape_of(x)[0]
    indices = e.reshape(node.x("indices"), (-1,))
    ones = e.full(1, shape_of(indices), "float32")
    named = e.compare("GT", e.emit(ops.ScatterNdOp(indices, ones, (rows,))), e.full(0, (rows,), "float32"))
    norm = e.reshape(_norm(e, x, node.arg("norm_type")), (rows, 1))
    return e.select(e.reshape(named, (rows, 1)), _limit_norms(e, x, norm, node.arg("max_norm")), x)


TABLE: Table = {
    **_each("sum", _reduce("ADD"), "default dim_IntList"),
    **_each("mean", _mean, "default dim"),
    **_each("prod", _reduce("MUL"), "default dim_int"),
    **_each("any", _reduce("OR"), "default dim dims"),
    **_each("all", _reduce("AND"), "default dim dims"),
    **_each("max", _reduce("MAX"), "default"),
    **_each("min", _reduce("MIN"), "default"),
    **_each("amax", _reduce("MAX"), "default"),
    **_each("amin", _reduce("MIN"), "default"),
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
    "aten._cdist_forward.default": _cdist,
    "aten._cdist_backward.default": _cdist_backward,
    "aten._pdist_forward.default": _pdist,
    "aten._pdist_backward.default": _pdist_backward,
    "aten.renorm.default": _renorm,
    "aten.embedding_renorm.default": _embedding_renorm,
}

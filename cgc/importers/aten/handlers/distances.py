"""Distances between rows: of two sets of rows, of all pairs in one set, and limits on the norms of rows."""

from __future__ import annotations

import math

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import NodeContext, Table
from cgc.importers.emit import Emitter, Shape, broadcast_shape, dtype_of

_MATRIX_PRODUCT_BY_DEFAULT = 1
"""`compute_mode` of `cdist`: 0 and None are ATen's own choice, 1 takes a product, 2 takes differences."""


def _norm(e: Emitter, x: SSAValue, p: float) -> SSAValue:
    """The p-norm over the last axis."""
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
    """The gradient of `_norm` by x; zero where the norm is zero.

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
    """The roots of |a|^2 + |b|^2 - 2 a b, which needs no difference of each pair."""
    batch, rank = shape[:-2], len(shape)
    x1, x2 = (e.broadcast(x, (*batch, *shape_of(x)[-2:])) for x in (x1, x2))
    squares = [e.reduce("ADD", e.mul(x, x), (rank - 1,), keep_dims=True) for x in (x1, x2)]
    product = e.emit(ops.MatMulOp(x1, x2, transpose_b=True))
    columns = e.transpose(squares[1], (*range(rank - 2), rank - 1, rank - 2))
    total = e.sub(e.add(squares[0], columns), e.scaled(product, 2))
    return e.unary(ops.SqrtOp, e.binary(ops.MaxOp, total, e.like(0, total)))


def _cdist_backward(node: NodeContext) -> SSAValue:
    """The gradient by x1."""
    e, p = node.emit, node.arg("p")
    x1, x2, distance, grad = (node.x(name) for name in ("x1", "x2", "cdist", "grad"))
    difference = _differences(e, x1, x2)
    distance, grad = (e.reshape(x, (*shape_of(x), 1)) for x in (distance, grad))
    shape = broadcast_shape(shape_of(difference), shape_of(grad))
    found = _norm_grad(e, e.broadcast(difference, shape), distance, grad, p)
    return _summed_to(e, e.reduce("ADD", found, (len(shape) - 2,)), node.shape)


def _summed_to(e: Emitter, x: SSAValue, shape: Shape) -> SSAValue:
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


def _limited(e: Emitter, x: SSAValue, norm: SSAValue, limit: float) -> SSAValue:
    """Scale x so that no norm exceeds a limit; `norm` broadcasts to x."""
    factor = e.div(e.like(limit, norm), e.add(norm, e.like(_RENORM_EPSILON, norm)))
    return e.mul(x, e.select(e.compare("GT", norm, e.like(limit, norm)), factor, e.like(1, norm)))


def _renorm(node: NodeContext) -> SSAValue:
    """Each slice along an axis, with at most a norm."""
    e, x, axis = node.emit, node.x(), node.axis()
    shape = shape_of(x)
    order = [axis, *(other for other in range(len(shape)) if other != axis)]
    rows = e.reshape(e.transpose(x, order), (shape[axis], -1))
    sizes = [size if i == axis else 1 for i, size in enumerate(shape)]
    norm = e.reshape(_norm(e, rows, node.arg("p")), sizes)
    return _limited(e, x, norm, node.arg("maxnorm"))


def _embedding_renorm(node: NodeContext) -> SSAValue:
    """A table in which the rows that are looked up have at most a norm."""
    e, x = node.emit, node.x()
    rows = shape_of(x)[0]
    indices = e.reshape(node.x("indices"), (-1,))
    ones = e.full(1, shape_of(indices), "float32")
    named = e.compare("GT", e.emit(ops.ScatterNdOp(indices, ones, (rows,))), e.full(0, (rows,), "float32"))
    norm = e.reshape(_norm(e, x, node.arg("norm_type")), (rows, 1))
    return e.select(e.reshape(named, (rows, 1)), _limited(e, x, norm, node.arg("max_norm")), x)


TABLE: Table = {
    "aten._cdist_forward.default": _cdist,
    "aten._cdist_backward.default": _cdist_backward,
    "aten._pdist_forward.default": _pdist,
    "aten._pdist_backward.default": _pdist_backward,
    "aten.renorm.default": _renorm,
    "aten.embedding_renorm.default": _embedding_renorm,
}

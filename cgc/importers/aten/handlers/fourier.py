"""Fourier transforms over one or several axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.aten.node import Complex, NodeContext, Table
from cgc.importers.emit import Emitter

_NONE, _BY_ROOT, _BY_COUNT = range(3)
"""ATen's numbers of `normalization`: what the sums are divided by."""


def _factor(node: NodeContext, count: int, inverse: bool) -> float:
    """What is left to multiply by; transforms of CIRH divide by the count where they are inverse."""
    wanted = {_NONE: 1.0, _BY_ROOT: 1 / math.sqrt(count), _BY_COUNT: 1 / count}[node.arg("normalization")]
    return wanted * count if inverse else wanted


def _scaled(e: Emitter, x: SSAValue, factor: float) -> SSAValue:
    return x if factor == 1 else e.scaled(x, factor)


def _along(
    e: Emitter, parts: Sequence[SSAValue], axis: int, transform: Callable[..., Sequence[SSAValue]]
) -> list[SSAValue]:
    """A transform of the last axis, of another one."""
    order = list(range(len(shape_of(parts[0]))))
    order[axis], order[-1] = order[-1], order[axis]
    return [e.transpose(x, order) for x in transform(*(e.transpose(part, order) for part in parts))]


def _complex_along(e: Emitter, x: Complex, axes: Sequence[int], inverse: bool) -> Complex:
    """The transform of a pair over axes, one axis after the other."""
    for axis in axes:
        re, im = _along(e, (x.re, x.im), axis, lambda re, im: e.emit_all(ops.FftOp(re, im, inverse)))
        x = Complex(re, im)
    return x


def _axes(node: NodeContext) -> list[int]:
    rank = len(node.node.arguments["self"].shape)
    return [node.positive(axis, rank) for axis in node.arg("dim")]


def _c2c(node: NodeContext) -> Complex:
    e, axes, inverse = node.emit, _axes(node), not node.arg("forward")
    x = Complex.of(e, node.raw("self"))
    factor = _factor(node, math.prod(node.shape[axis] for axis in axes), inverse)
    found = _complex_along(e, x, axes, inverse)
    return Complex(_scaled(e, found.re, factor), _scaled(e, found.im, factor))


def _r2c(node: NodeContext) -> Complex:
    """Of real numbers; `onesided` leaves out the half of the last axis that is conjugate to the other."""
    e, x, axes = node.emit, node.x(), _axes(node)
    factor = _factor(node, math.prod(shape_of(x)[axis] for axis in axes), inverse=False)
    x = _scaled(e, x, factor)
    if not node.arg("onesided"):
        return _complex_along(e, Complex(x, e.like(0, x)), axes, inverse=False)
    *others, last = axes
    re, im = _along(e, (x,), last, lambda part: e.emit_all(ops.RfftOp(part)))
    return _complex_along(e, Complex(re, im), others, inverse=False)


def _c2r(node: NodeContext) -> SSAValue:
    """Real numbers of the half of a transform that `onesided` leaves."""
    e, axes, length = node.emit, _axes(node), node.arg("last_dim_size")
    *others, last = axes
    x = _complex_along(e, Complex.of(e, node.raw("self")), others, inverse=True)
    half = list(shape_of(x.re))
    half[last] = length // 2 + 1
    parts = [e.slice(part, [0] * len(half), half, [1] * len(half)) for part in (x.re, x.im)]
    (found,) = _along(e, parts, last, lambda re, im: e.emit_all(ops.IrfftOp(re, im, length)))
    return _scaled(e, found, _factor(node, math.prod(node.shape[axis] for axis in axes), inverse=True))


TABLE: Table = {
    "aten._fft_c2c.default": _c2c,
    "aten._fft_r2c.default": _r2c,
    "aten._fft_c2r.default": _c2r,
}

"""Local response normalization: each element divided by a power of the squares of near channels."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.importers.emit import dtype_of
from cgc.importers.tensorflow.node import NodeContext, Table


def _sum_of_near_channels(node: NodeContext, x: SSAValue) -> SSAValue:
    """For each channel the sum over those at most `depth_radius` away; none lie beyond the first and last."""
    e, shape, radius = node.emit, shape_of(x), int(node.attr("depth_radius"))
    *outer, channels = shape
    radius = min(radius, channels - 1)
    border = [0] * len(outer) + [radius]
    padded = e.pad(x, border, border)
    steps, zeros = [1] * len(shape), [0] * len(outer)
    parts = [
        e.slice(padded, [*zeros, start], [*outer, start + channels], steps) for start in range(2 * radius + 1)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = e.add(total, part)
    return total


def _scale(node: NodeContext, x: SSAValue) -> SSAValue:
    """`bias + alpha * sum of squares`: what is raised to the power of -beta."""
    e = node.emit
    squares = e.scaled(_sum_of_near_channels(node, e.mul(x, x)), node.attr("alpha"))
    return e.add(squares, e.scalar(node.attr("bias"), dtype_of(x)))


def _lrn(node: NodeContext) -> SSAValue:
    """`x * scale**-beta`."""
    e, x = node.emit, node.x(0)
    power = e.scalar(-node.attr("beta"), dtype_of(x))
    return e.mul(x, e.binary(ops.PowOp, _scale(node, x), power))


def _lrn_grad(node: NodeContext) -> SSAValue:
    """Inputs: the gradient dy, x, y.

    `dy * scale**-beta - 2 * alpha * beta * x * sum of near dy * y / scale`.
    """
    e, (dy, x, y) = node.emit, node.all()
    scale = _scale(node, x)
    own = e.mul(dy, e.binary(ops.PowOp, scale, e.scalar(-node.attr("beta"), dtype_of(x))))
    near = _sum_of_near_channels(node, e.div(e.mul(dy, y), scale))
    return e.sub(own, e.mul(e.scaled(x, 2 * node.attr("alpha") * node.attr("beta")), near))


TABLE: Table = {"LRN": _lrn, "LRNGrad": _lrn_grad}

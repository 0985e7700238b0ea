"""Random numbers: they depend only on the seed, the step and the position in the program.

A resumed run draws the numbers of an unbroken one. PyTorch's own generators are not reproduced.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import FLOATS
from cgc.importers.aten.handlers.reduction import top_k
from cgc.importers.aten.node import NodeContext, Table
from cgc.importers.diagnostics import Kind, RefusedError
from cgc.importers.emit import Shape


def uniform(node: NodeContext, shape: Shape) -> SSAValue:
    """Return numbers in [0, 1), other ones for each operation."""
    node.step.draws += 1
    op = ops.RandomUniformOp(node.step.global_step, shape, node.step.seed, node.step.draws)
    return node.emit.emit(op)


def _normal(node: NodeContext, shape: Shape) -> SSAValue:
    node.step.draws += 1
    op = ops.RandomNormalOp(node.step.global_step, shape, node.step.seed, node.step.draws)
    return node.emit.emit(op)


def _below(node: NodeContext, probability: float, shape: Shape) -> SSAValue:
    """Draw truth values with a probability of True."""
    drawn = uniform(node, shape)
    return node.emit.compare("LT", drawn, node.emit.scalar(probability, "float32"))


def _bernoulli(node: NodeContext) -> SSAValue:
    return node.emit.cast(_below(node, node.arg("p"), node.shape), node.dtype)


def _bernoulli_of(node: NodeContext) -> SSAValue:
    """Draw with the probabilities in `self`."""
    e = node.emit
    drawn = uniform(node, node.shape)
    return e.cast(e.compare("LT", drawn, e.cast(node.x(), "float32")), node.dtype)


def _native_dropout(node: NodeContext) -> tuple[SSAValue, SSAValue]:
    """Return x / (1 - p) where it is kept, and the mask."""
    e, x, p = node.emit, node.x("input"), node.arg("p")
    if not node.arg("train"):
        return x, e.full(True, node.shape, "bool")
    mask = _below(node, 1 - p, node.shape)
    return e.select(mask, e.scale(x, 1 / (1 - p) if p < 1 else 0.0), e.like(0, x)), mask


def _native_dropout_backward(node: NodeContext) -> SSAValue:
    e, grad = node.emit, node.x("grad_output")
    return e.select(node.x("mask"), e.scale(grad, node.arg("scale")), e.like(0, grad))


def _rand(node: NodeContext) -> SSAValue:
    return node.emit.cast(uniform(node, node.shape), _float(node))


def _randn(node: NodeContext) -> SSAValue:
    return node.emit.cast(_normal(node, node.shape), _float(node))


def _uniform_between(node: NodeContext) -> SSAValue:
    e, low, high = node.emit, node.arg("from"), node.arg("to")
    drawn = e.add(e.scale(uniform(node, node.shape), high - low), e.scalar(low, "float32"))
    return e.cast(drawn, _float(node))


def _normal_functional(node: NodeContext) -> SSAValue:
    e = node.emit
    drawn = e.scale(_normal(node, node.shape), node.arg("std"))
    return e.cast(e.add(drawn, e.scalar(node.arg("mean"), "float32")), _float(node))


def _exponential(node: NodeContext) -> SSAValue:
    """-log(1 - u) / lambda."""
    e = node.emit
    drawn = e.unary(ops.Log1pOp, e.unary(ops.NegOp, uniform(node, node.shape)))
    return e.cast(e.scale(drawn, -1 / node.arg("lambd")), _float(node))


def _randint(node: NodeContext) -> SSAValue:
    low, high = node.arg("low", 0), node.arg("high")
    if high - low > 2**23:
        raise RefusedError(
            Kind.USAGE, f"draws from {high - low} integers, expected at most {2**23}, as from float32"
        )
    e = node.emit
    drawn = e.unary(ops.FloorOp, e.scale(uniform(node, node.shape), high - low))
    return e.cast(e.add(drawn, e.scalar(low, "float32")), node.dtype)


def _float(node: NodeContext) -> str:
    if node.dtype not in FLOATS:
        raise RefusedError(Kind.TYPE, f"draws {node.dtype}, expected floats")
    return node.dtype


def _randperm(node: NodeContext) -> SSAValue:
    """Return the order of as many random numbers."""
    (size,) = node.shape
    return node.emit.cast(top_k(node.emit, uniform(node, (size,)), 0, size, largest=True)[1], node.dtype)


TABLE: Table = {
    "aten.bernoulli.p": _bernoulli,
    "aten.bernoulli.default": _bernoulli_of,
    "aten.native_dropout.default": _native_dropout,
    "aten.native_dropout_backward.default": _native_dropout_backward,
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand,
    "aten.randn.default": _randn,
    "aten.randn_like.default": _randn,
    "aten.uniform.default": _uniform_between,
    "aten.normal_functional.default": _normal_functional,
    "aten.exponential.default": _exponential,
    "aten.randint.default": _randint,
    "aten.randint.low": _randint,
    "aten.randint_like.default": _randint,
    "aten.randint_like.low_dtype": _randint,
    "aten.randperm.default": _randperm,
}

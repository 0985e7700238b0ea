"""Activation functions and their gradients."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.emit import Maker, dtype_of
from cgc.importers.tensorflow.handlers.elementwise import unary
from cgc.importers.tensorflow.node import Handler, NodeContext, Table

# Klambauer et al. 2017, to the digits that TensorFlow uses.
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


def _two(op_type: Maker) -> Handler:
    return lambda node: node.emit.emit(op_type(node.x(0), node.x(1)))


def _relu6(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x(0)
    return e.binary(ops.MinOp, e.unary(ops.ReluOp, x), e.scalar(6, dtype_of(x)))


def _relu6_grad(node: NodeContext) -> SSAValue:
    """`dy` where 0 < x < 6, else 0."""
    e, (dy, x) = node.emit, node.all()
    zero = e.scalar(0, dtype_of(x))
    below = e.select(e.compare("LT", x, e.scalar(6, dtype_of(x))), dy, zero)
    return e.emit(ops.ReluGradOp(below, x))


def _leaky_relu(node: NodeContext) -> SSAValue:
    return node.emit.emit(ops.LeakyReluOp(node.x(0), node.attr("alpha")))


def _leaky_relu_grad(node: NodeContext) -> SSAValue:
    return node.emit.emit(ops.LeakyReluGradOp(node.x(0), node.x(1), node.attr("alpha")))


def _selu(node: NodeContext) -> SSAValue:
    """`scale * x` above 0, `scale * alpha * (exp(x) - 1)` below."""
    e, x = node.emit, node.x(0)
    zero = e.scalar(0, dtype_of(x))
    # exp only of negative elements: the unused side must not overflow.
    negative = e.scale(e.unary(ops.Expm1Op, e.binary(ops.MinOp, x, zero)), _SELU_SCALE_ALPHA)
    return e.select(e.compare("GT", x, zero), e.scale(x, _SELU_SCALE), negative)


def _selu_grad(node: NodeContext) -> SSAValue:
    """`dy * scale` where the output is positive, `dy * (y + scale * alpha)` elsewhere."""
    e, (dy, y) = node.emit, node.all()
    dtype = dtype_of(y)
    slope = e.add(y, e.scalar(_SELU_SCALE_ALPHA, dtype))
    is_negative = e.compare("LT", y, e.scalar(0, dtype))
    return e.mul(dy, e.select(is_negative, slope, e.scalar(_SELU_SCALE, dtype)))


def _one_plus_abs(node: NodeContext, x: SSAValue) -> SSAValue:
    return node.emit.add(node.emit.unary(ops.AbsOp, x), node.emit.scalar(1, dtype_of(x)))


def _softsign(node: NodeContext) -> SSAValue:
    x = node.x(0)
    return node.emit.div(x, _one_plus_abs(node, x))


def _softsign_grad(node: NodeContext) -> SSAValue:
    """`dy / (1 + |x|)**2`."""
    dy, x = node.all()
    base = _one_plus_abs(node, x)
    return node.emit.div(dy, node.emit.mul(base, base))


TABLE: Table = {
    "Relu": unary(ops.ReluOp),
    "Elu": unary(ops.EluOp),
    "Softplus": unary(ops.SoftplusOp),
    # Operands in TensorFlow's order, which is CIRH's: (dy, x), (dy, y) or (y, dy).
    "ReluGrad": _two(ops.ReluGradOp),
    "EluGrad": _two(ops.EluGradOp),
    "SoftplusGrad": _two(ops.SoftplusGradOp),
    "SigmoidGrad": _two(ops.SigmoidGradOp),
    "TanhGrad": _two(ops.TanhGradOp),
    "Relu6": _relu6,
    "Relu6Grad": _relu6_grad,
    "LeakyRelu": _leaky_relu,
    "LeakyReluGrad": _leaky_relu_grad,
    "Selu": _selu,
    "SeluGrad": _selu_grad,
    "Softsign": _softsign,
    "SoftsignGrad": _softsign_grad,
}

"""Activations and their gradients."""

from __future__ import annotations

from functools import partial

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.importers.aten.node import NodeContext, Table


def _relu(node: NodeContext) -> SSAValue:
    return node.emit.unary(ops.ReluOp, node.x())


def _threshold_backward(node: NodeContext) -> SSAValue:
    """Return the gradient where `self` lies above the threshold, else 0."""
    e, grad, x, threshold = node.emit, node.x("grad_output"), node.x(), node.arg("threshold")
    if threshold == 0:
        return e.binary(ops.ReluGradOp, grad, x)
    return e.select(e.compare("GT", x, e.like(threshold, x)), grad, e.like(0, grad))


def _gelu(node: NodeContext) -> SSAValue:
    return node.emit.emit(ops.GeluOp(node.x(), node.arg("approximate") == "tanh"))


def _gelu_backward(node: NodeContext) -> SSAValue:
    approximate = node.arg("approximate") == "tanh"
    gradient = partial(ops.GeluGradOp, approximate=approximate)
    return node.emit.binary(gradient, node.x("grad_output"), node.x())


def _sigmoid_backward(node: NodeContext) -> SSAValue:
    return node.emit.binary(ops.SigmoidGradOp, node.x("output"), node.x("grad_output"))


def _tanh_backward(node: NodeContext) -> SSAValue:
    return node.emit.binary(ops.TanhGradOp, node.x("output"), node.x("grad_output"))


def _silu(node: NodeContext) -> SSAValue:
    e, x = node.emit, node.x()
    return e.mul(x, e.unary(ops.SigmoidOp, x))


def _silu_backward(node: NodeContext) -> SSAValue:
    """Grad * s * (1 + x * (1 - s)) with s = sigmoid(x)."""
    e, grad, x = node.emit, node.x("grad_output"), node.x()
    s = e.unary(ops.SigmoidOp, x)
    inner = e.add(e.like(1, x), e.mul(x, e.sub(e.like(1, s), s)))
    return e.mul(e.mul(grad, s), inner)


def _leaky_relu(node: NodeContext) -> SSAValue:
    return node.emit.emit(ops.LeakyReluOp(node.x(), node.arg("negative_slope")))


def _leaky_relu_backward(node: NodeContext) -> SSAValue:
    """Return the gradient; the sign of x is that of the result, so `self` may be either."""
    gradient = partial(ops.LeakyReluGradOp, alpha=node.arg("negative_slope"))
    return node.emit.binary(gradient, node.x("grad_output"), node.x())


def _elu(node: NodeContext) -> SSAValue:
    """Scale * x above 0, else scale * alpha * (exp(input_scale * x) - 1)."""
    e, x = node.emit, node.x()
    alpha, scale, input_scale = (node.arg(name) for name in ("alpha", "scale", "input_scale"))
    if alpha == scale == input_scale == 1:
        return e.unary(ops.EluOp, x)
    inner = x if input_scale == 1 else e.scale(x, input_scale)
    below = e.scale(e.unary(ops.Expm1Op, inner), alpha * scale)
    above = x if scale == 1 else e.scale(x, scale)
    return e.select(e.compare("GT", x, e.like(0, x)), above, below)


def _elu_backward(node: NodeContext) -> SSAValue:
    """Return the gradient, computed from the result (`is_result`) or from x."""
    e, grad, y = node.emit, node.x("grad_output"), node.x("self_or_result")
    alpha, scale, input_scale = (node.arg(name) for name in ("alpha", "scale", "input_scale"))
    if node.arg("is_result"):
        slope = e.scale(e.add(y, e.like(alpha * scale, y)), input_scale)
    else:
        slope = e.scale(e.unary(ops.ExpOp, e.scale(y, input_scale)), alpha * scale * input_scale)
    return e.mul(grad, e.select(e.compare("GT", y, e.like(0, y)), e.like(scale, y), slope))


def _softplus(node: NodeContext) -> SSAValue:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x lies above the threshold."""
    e, x, beta = node.emit, node.x(), node.arg("beta")
    scale = x if beta == 1 else e.scale(x, beta)
    soft = e.unary(ops.SoftplusOp, scale)
    soft = soft if beta == 1 else e.scale(soft, 1 / beta)
    return e.select(e.compare("GT", scale, e.like(node.arg("threshold"), x)), x, soft)


def _softplus_backward(node: NodeContext) -> SSAValue:
    e, grad, x, beta = node.emit, node.x("grad_output"), node.x(), node.arg("beta")
    scale = x if beta == 1 else e.scale(x, beta)
    soft = e.mul(grad, e.unary(ops.SigmoidOp, scale))
    return e.select(e.compare("GT", scale, e.like(node.arg("threshold"), x)), grad, soft)


def _log_sigmoid_forward(node: NodeContext) -> tuple[SSAValue, None]:
    """-softplus(-x); the buffer of CPUs is not needed, as the gradient takes x."""
    e = node.emit
    return e.unary(ops.NegOp, e.unary(ops.SoftplusOp, e.unary(ops.NegOp, node.x()))), None


def _log_sigmoid_backward(node: NodeContext) -> SSAValue:
    """Grad * sigmoid(-x)."""
    e, x = node.emit, node.x()
    return e.mul(node.x("grad_output"), e.unary(ops.SigmoidOp, e.unary(ops.NegOp, x)))


def _shrink_backward(node: NodeContext) -> SSAValue:
    """Return the gradient outside of [-lambd, lambd]; hardshrink names its gradient in another way."""
    e, x = node.emit, node.x()
    grad = node.x("grad_out" if "grad_out" in node.node.arguments else "grad_output")
    outside = e.compare("GT", e.unary(ops.AbsOp, x), e.like(node.arg("lambd"), x))
    return e.select(outside, grad, e.like(0, grad))


TABLE: Table = {
    "aten.hardshrink_backward.default": _shrink_backward,
    "aten.softshrink_backward.default": _shrink_backward,
    "aten.relu.default": _relu,
    "aten.threshold_backward.default": _threshold_backward,
    "aten.gelu.default": _gelu,
    "aten.gelu_backward.default": _gelu_backward,
    "aten.sigmoid_backward.default": _sigmoid_backward,
    "aten.tanh_backward.default": _tanh_backward,
    "aten.silu.default": _silu,
    "aten.silu_backward.default": _silu_backward,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.leaky_relu_backward.default": _leaky_relu_backward,
    "aten.elu.default": _elu,
    "aten.elu_backward.default": _elu_backward,
    "aten.softplus.default": _softplus,
    "aten.softplus_backward.default": _softplus_backward,
    "aten.log_sigmoid_forward.default": _log_sigmoid_forward,
    "aten.log_sigmoid_backward.default": _log_sigmoid_backward,
}

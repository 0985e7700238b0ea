"""Activations and their gradients, as scalar arithmetic; the formulas of `cgc.lowering`."""

from __future__ import annotations

import math

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    GeluGradOp,
    LeakyReluGradOp,
    LeakyReluOp,
)
from cgc.lair.elementwise import sigmoid
from cgc.lair.scalar import Scalar
from cgc.lair.structure import Formula


def _softplus(_op: CirhOp, x: Scalar) -> Scalar:
    return x.max(0) + (-x.abs()).apply("exp").apply("log1p")


def _relu_grad(_op: CirhOp, grad: Scalar, features: Scalar) -> Scalar:
    return features.compare("GT", 0).select(grad, 0)


def _leaky_relu(op: LeakyReluOp, x: Scalar) -> Scalar:
    return x.compare("GT", 0).select(x, x * op.alpha)


def _leaky_relu_grad(op: LeakyReluGradOp, grad: Scalar, features: Scalar) -> Scalar:
    return features.compare("GT", 0).select(grad, grad * op.alpha)


def _elu(_op: CirhOp, x: Scalar) -> Scalar:
    return x.compare("GT", 0).select(x, x.min(0).apply("expm1"))


def _elu_grad(op: ops.EluGradOp, grad: Scalar, x: Scalar) -> Scalar:
    slope = x.min(0).apply("exp") if op.from_features else x + 1
    return x.compare("LT", 0).select(grad * slope, grad)


def gelu(x: Scalar, approximate: bool) -> Scalar:
    """`x * Phi(x)`, or its tanh formula."""
    if approximate:
        return x * 0.5 * (_gelu_inner(x).apply("tanh") + 1)
    return x * 0.5 * ((x * math.sqrt(0.5)).apply("erf") + 1)


def _gelu_grad(op: GeluGradOp, grad: Scalar, x: Scalar) -> Scalar:
    if op.approximate:
        tanh = _gelu_inner(x).apply("tanh")
        slope = (x * x * (3 * 0.044715) + 1) * math.sqrt(2 / math.pi)
        return grad * ((tanh + 1) * 0.5 + x * 0.5 * (x.constant(1) - tanh * tanh) * slope)
    distribution = ((x * math.sqrt(0.5)).apply("erf") + 1) * 0.5
    density = (x * x * -0.5).apply("exp") * (1 / math.sqrt(2 * math.pi))
    return grad * (distribution + x * density)


def _gelu_inner(x: Scalar) -> Scalar:
    return (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)


def _hard_sigmoid(_op: CirhOp, x: Scalar) -> Scalar:
    return (x * (1 / 6) + 0.5).max(0).min(1)


def _hard_sigmoid_grad(_op: CirhOp, grad: Scalar, features: Scalar) -> Scalar:
    return features.abs().compare("LT", 3).select(grad * (1 / 6), 0)


FORMULAS: dict[type[CirhOp], Formula] = {
    ops.ReluOp: lambda _op, x: x.max(0),
    ops.EluOp: _elu,
    ops.SoftplusOp: _softplus,
    ops.GeluOp: lambda op, x: gelu(x, op.approximate),
    ops.LeakyReluOp: _leaky_relu,
    ops.HardSigmoidOp: _hard_sigmoid,
    ops.ReluGradOp: _relu_grad,
    ops.LeakyReluGradOp: _leaky_relu_grad,
    ops.GeluGradOp: _gelu_grad,
    ops.SoftplusGradOp: lambda _op, grad, features: grad * sigmoid(features),
    ops.SigmoidGradOp: lambda _op, outputs, grad: grad * outputs * (outputs.constant(1) - outputs),
    ops.TanhGradOp: lambda _op, outputs, grad: grad * (outputs.constant(1) - outputs * outputs),
    ops.EluGradOp: _elu_grad,
    ops.HardSigmoidGradOp: _hard_sigmoid_grad,
}

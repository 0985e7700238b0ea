"""Loop nests of elementwise ops, activations and optimizer updates: scalar formulas as in `cgc.lowering`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.activation import COMPOSITES
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    AdamOp,
    AdamWOp,
    ArangeOp,
    CastOp,
    CompareOp,
    CompositeOp,
    GeluGradOp,
    LeakyReluGradOp,
    LeakyReluOp,
    MomentumOp,
)
from cgc.cirh.types import tensor_of
from cgc.lair.affine import affine_map, dim, identity
from cgc.lair.build import (
    FLOAT_NAMES,
    Array,
    Builder,
    Formula,
    Read,
    Rule,
    Scalar,
    build_indexed,
    dtype_of,
    loop_index,
    result_dtype,
)


def _function(name: str) -> Formula:
    return lambda _op, x, *others: x.apply(name, *others)


def _power(_op: CirhOp, base: Scalar, exponent: Scalar) -> Scalar:
    return base.apply("powf" if base.is_float else "ipowi", exponent)


def _floor_div(_op: CirhOp, x: Scalar, y: Scalar) -> Scalar:
    return (x / y).apply("floor") if x.is_float else x / y


def floor_mod(_op: CirhOp, x: Scalar, y: Scalar) -> Scalar:
    """Compute the remainder with the sign of the divisor."""
    rest = x.remainder(y)
    if x.is_unsigned:
        return rest
    wrong_sign = rest.compare("LT", 0) ^ y.compare("LT", 0)
    return (rest.compare("NE", 0) & wrong_sign).select(rest + y, rest)


def _sign(_op: CirhOp, x: Scalar) -> Scalar:
    sign = x.compare("GT", 0).select(1, x.compare("LT", 0).select(-1, x.constant(0)))
    return x.is_nan().select(x, sign) if x.is_float else sign


def _not(_op: CirhOp, x: Scalar) -> Scalar:
    return x ^ (1 if x.dtype == "bool" else -1)


def _is_finite(_op: CirhOp, x: Scalar) -> Scalar:
    return x.abs().compare("LT", math.inf)


def _compare(op: CompareOp, x: Scalar, y: Scalar) -> Scalar:
    return x.compare(op.direction, y)


def _cast(op: CastOp, x: Scalar) -> Scalar:
    target = dtype_of(tensor_of(op.result))
    if op.truncate and x.dtype == "float32" and target in FLOAT_NAMES - {"float32"}:
        # Round to the nearest, then step one unit back if the magnitude has grown.
        nearest = x.to(target)
        grown = nearest.to("float32").abs().compare("GT", x.abs())
        bits = nearest.bits_as("int16")
        return grown.select(bits - 1, bits).bits_as(target)
    return x.to(target)


def _extend_signed(op: CirhOp, x: Scalar) -> Scalar:
    """Add bits, copies of the highest one."""
    target = dtype_of(tensor_of(op.results[0]))
    if x.dtype == "bool":
        return (-x.to("int32")).to(target)
    return x.read_as("int").to(target)


def _extend_unsigned(op: CirhOp, x: Scalar) -> Scalar:
    """Add bits, all zero."""
    read = x if x.dtype == "bool" else x.read_as("uint")
    return read.to(dtype_of(tensor_of(op.results[0])))


def sigmoid(x: Scalar) -> Scalar:
    """Compute `1 / (1 + exp(-x))`."""
    return x.constant(1) / ((-x).apply("exp") + 1)


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
    """Compute `x * Phi(x)`, or its tanh formula."""
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


def bias_activation(builder: Builder, op: CompositeOp, x: Array, bias: Array) -> Array:
    """Compute the activation of x plus bias."""
    kind, approximation = COMPOSITES[op.function]
    reads = [Read(x, identity(x.rank)), Read(bias, affine_map(x.rank, [dim(x.rank - 1)]))]
    if kind is ops.GeluOp:
        return builder.parallel(
            x.shape,
            reads,
            x.dtype,
            lambda element, term: gelu(element + term, approximation == "TANH"),
        )
    formula = FORMULAS[kind]
    return builder.parallel(x.shape, reads, x.dtype, lambda element, term: formula(op, element + term))


def _gradient_descent(_op: CirhOp, param: Scalar, lr: Scalar, grad: Scalar) -> Scalar:
    return param - grad * lr


def _momentum(
    op: MomentumOp, param: Scalar, accum: Scalar, lr: Scalar, grad: Scalar, momentum: Scalar
) -> Sequence[Scalar]:
    new = accum * momentum + grad
    step = grad * lr + new * momentum * lr if op.use_nesterov else new * lr
    return param - step, new


def _adam(
    op: AdamOp | AdamWOp,
    param: Scalar,
    m: Scalar,
    v: Scalar,
    beta1_power: Scalar,
    beta2_power: Scalar,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    epsilon: Scalar,
    grad: Scalar,
) -> Sequence[Scalar]:
    one = param.constant(1)
    new_m = m + (grad - m) * (one - beta1)
    new_v = v + (grad * grad - v) * (one - beta2)
    direction = grad * (one - beta1) + beta1 * new_m if op.use_nesterov else new_m
    if op.corrected_epsilon:
        rate, root = lr / (one - beta1_power), (new_v / (one - beta2_power)).apply("sqrt")
    else:
        rate, root = lr * (one - beta2_power).apply("sqrt") / (one - beta1_power), new_v.apply("sqrt")
    return param - direction * rate / (root + epsilon), new_m, new_v


def _adam_w(op: AdamWOp, param: Scalar, m: Scalar, v: Scalar, *rest: Scalar) -> Sequence[Scalar]:
    *hyperparameters, weight_decay = rest
    lr = hyperparameters[2]
    return _adam(op, param - param * (lr * weight_decay), m, v, *hyperparameters)


def _rms_prop(
    _op: CirhOp,
    param: Scalar,
    ms: Scalar,
    mom: Scalar,
    lr: Scalar,
    rho: Scalar,
    momentum: Scalar,
    epsilon: Scalar,
    grad: Scalar,
) -> Sequence[Scalar]:
    new_ms = ms + (grad * grad - ms) * (rho.constant(1) - rho)
    new_mom = mom * momentum + grad * lr / (new_ms + epsilon).apply("sqrt")
    return param - new_mom, new_ms, new_mom


def _adagrad(_op: CirhOp, param: Scalar, accum: Scalar, lr: Scalar, grad: Scalar) -> Sequence[Scalar]:
    new = accum + grad * grad
    return param - grad * lr * new.apply("rsqrt"), new


def arange(builder: Builder, op: ArangeOp) -> Array:
    """Compute `start + step * i`."""
    dtype = result_dtype(op)
    unsigned = dtype.startswith("u")
    counted = "uint32" if unsigned else "int32"
    start, step = (
        int(np.array(n, np.int64).astype(counted)) for n in (op.start, op.step)
    )  # wraps, as the sum

    def body(block: Block, *_old: Scalar) -> Scalar:
        return (loop_index(block, 0).to(counted) * step + start).to(dtype)

    return build_indexed(builder, op, [], body)


FORMULAS: dict[type[CirhOp], Formula] = {
    ops.AddOp: lambda _op, x, y: x + y,
    ops.SubOp: lambda _op, x, y: x - y,
    ops.MulOp: lambda _op, x, y: x * y,
    ops.DivOp: lambda _op, x, y: x / y,
    ops.PowOp: _power,
    ops.MaxOp: lambda _op, x, y: x.max(y),
    ops.MinOp: lambda _op, x, y: x.min(y),
    ops.FloorDivOp: _floor_div,
    ops.FloorModOp: floor_mod,
    ops.Atan2Op: _function("atan2"),
    ops.AndOp: lambda _op, x, y: x & y,
    ops.OrOp: lambda _op, x, y: x | y,
    ops.XorOp: lambda _op, x, y: x ^ y,
    ops.NegOp: lambda _op, x: -x,
    ops.AbsOp: lambda _op, x: x.abs(),
    ops.ExpOp: _function("exp"),
    ops.Expm1Op: _function("expm1"),
    ops.LogOp: _function("log"),
    ops.Log1pOp: _function("log1p"),
    ops.SqrtOp: _function("sqrt"),
    ops.RsqrtOp: _function("rsqrt"),
    ops.ReciprocalOp: lambda _op, x: x.constant(1) / x,
    ops.SinOp: _function("sin"),
    ops.CosOp: _function("cos"),
    ops.TanhOp: _function("tanh"),
    ops.SigmoidOp: lambda _op, x: sigmoid(x),
    ops.SignOp: _sign,
    ops.FloorOp: _function("floor"),
    ops.CeilOp: _function("ceil"),
    ops.RoundOp: _function("round"),
    ops.ErfOp: _function("erf"),
    ops.NotOp: _not,
    ops.IsFiniteOp: _is_finite,
    ops.CompareOp: _compare,
    ops.SelectOp: lambda _op, condition, on_true, on_false: condition.select(on_true, on_false),
    ops.ClampOp: lambda _op, x, low, high: x.max(low).min(high),
    ops.CastOp: _cast,
    ops.ExtSIOp: _extend_signed,
    ops.ExtUIOp: _extend_unsigned,
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
    ops.GradientDescentOp: _gradient_descent,
    ops.MomentumOp: _momentum,
    ops.AdamOp: _adam,
    ops.AdamWOp: _adam_w,
    ops.RMSPropOp: _rms_prop,
    ops.AdagradOp: _adagrad,
}

RULES: dict[type[CirhOp], Rule] = {
    ops.CompositeOp: bias_activation,
    ops.ArangeOp: arange,
}

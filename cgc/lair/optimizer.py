"""Optimizer updates, as scalar arithmetic; the formulas of `cgc.lowering`."""

from __future__ import annotations

from collections.abc import Sequence

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import (
    AdamOp,
    AdamWOp,
    MomentumOp,
)
from cgc.lair.scalar import Scalar
from cgc.lair.structure import Formula


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


FORMULAS: dict[type[CirhOp], Formula] = {
    ops.GradientDescentOp: _gradient_descent,
    ops.MomentumOp: _momentum,
    ops.AdamOp: _adam,
    ops.AdamWOp: _adam_w,
    ops.RMSPropOp: _rms_prop,
    ops.AdagradOp: _adagrad,
}

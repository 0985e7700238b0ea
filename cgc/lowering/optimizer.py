"""Lowerings of the optimizer updates, with the arithmetic of TensorFlow's ResourceApply* kernels.

Source of the formulas: tensorflow/core/kernels/training_ops.cc. Hyperparameters are rank-0 values of the
program.
"""

from __future__ import annotations

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import AdamOp, AdamWOp, MomentumOp
from cgc.lowering.base import Table


def gradient_descent(_op: CirhOp, param: jax.Array, lr: jax.Array, grad: jax.Array) -> jax.Array:
    """Compute `param - lr * grad`."""
    return param - grad * lr


def momentum(
    op: MomentumOp, param: jax.Array, accum: jax.Array, lr: jax.Array, grad: jax.Array, momentum_: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return (param, accum); the accumulator is not scaled by the rate."""
    accum = accum * momentum_ + grad
    if op.use_nesterov:
        return param - (grad * lr + accum * momentum_ * lr), accum
    return param - accum * lr, accum


def adam(
    op: AdamOp | AdamWOp,
    param: jax.Array,
    m: jax.Array,
    v: jax.Array,
    beta1_power: jax.Array,
    beta2_power: jax.Array,
    lr: jax.Array,
    beta1: jax.Array,
    beta2: jax.Array,
    epsilon: jax.Array,
    grad: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (param, m, v)."""
    one = lax.full_like(beta1, 1)
    m = m + (grad - m) * (one - beta1)
    v = v + (grad * grad - v) * (one - beta2)
    direction = grad * (one - beta1) + beta1 * m if op.use_nesterov else m
    if op.corrected_epsilon:
        rate, root = lr / (one - beta1_power), lax.sqrt(v / (one - beta2_power))
    else:
        rate, root = lr * lax.sqrt(one - beta2_power) / (one - beta1_power), lax.sqrt(v)
    return param - (direction * rate) / (root + epsilon), m, v


def adam_w(
    op: AdamWOp,
    param: jax.Array,
    m: jax.Array,
    v: jax.Array,
    beta1_power: jax.Array,
    beta2_power: jax.Array,
    lr: jax.Array,
    beta1: jax.Array,
    beta2: jax.Array,
    epsilon: jax.Array,
    grad: jax.Array,
    weight_decay: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (param, m, v); the decay does not pass through the moments."""
    decayed = param - param * (lr * weight_decay)
    return adam(op, decayed, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad)


def rms_prop(
    _op: CirhOp,
    param: jax.Array,
    ms: jax.Array,
    mom: jax.Array,
    lr: jax.Array,
    rho: jax.Array,
    momentum_: jax.Array,
    epsilon: jax.Array,
    grad: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (param, ms, mom); epsilon is added under the root."""
    ms = ms + (grad * grad - ms) * (lax.full_like(rho, 1) - rho)
    mom = mom * momentum_ + (grad * lr) / lax.sqrt(ms + epsilon)
    return param - mom, ms, mom


def adagrad(
    _op: CirhOp, param: jax.Array, accum: jax.Array, lr: jax.Array, grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return (param, accum); without epsilon, the accumulator starts above zero."""
    accum = accum + grad * grad
    return param - grad * lr * lax.rsqrt(accum), accum


LOWERINGS: Table = {
    ops.GradientDescentOp: gradient_descent,
    ops.MomentumOp: momentum,
    ops.AdamOp: adam,
    ops.AdamWOp: adam_w,
    ops.RMSPropOp: rms_prop,
    ops.AdagradOp: adagrad,
}

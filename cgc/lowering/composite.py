"""Lowering of the named chains of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from cgc.cirh.base import CirhOp
from cgc.cirh.ops import CompositeOp
from cgc.lowering import elementwise, linear


def composite(op: CompositeOp, x: jax.Array, bias: jax.Array) -> jax.Array:
    """The activation of x plus bias."""
    return _ACTIVATIONS[op.function](op, linear.bias_add(op, x, bias))


_ACTIVATIONS: dict[str, Callable[[CirhOp, jax.Array], jax.Array]] = {
    "BiasRelu": elementwise.relu,
    "BiasGelu": lambda _, x: elementwise.gelu_of(x, approximate=False),
    "BiasGeluTanh": lambda _, x: elementwise.gelu_of(x, approximate=True),
    "BiasTanh": lambda _, x: lax.tanh(x),
    "BiasSigmoid": lambda _, x: lax.logistic(x),
    "BiasElu": elementwise.elu,
    "BiasSoftplus": elementwise.softplus,
    "BiasHardSigmoid": elementwise.hard_sigmoid,
}

"""Lowering of the named chains of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import CompositeOp
from cgc.lowering import activation, linear
from cgc.lowering.table import Table


def composite(op: CompositeOp, x: jax.Array, bias: jax.Array) -> jax.Array:
    """The activation of x plus bias."""
    return _ACTIVATIONS[op.function](op, linear.bias_add(op, x, bias))


_ACTIVATIONS: dict[str, Callable[[CirhOp, jax.Array], jax.Array]] = {
    "BiasRelu": activation.relu,
    "BiasGelu": lambda _, x: activation.gelu_of(x, approximate=False),
    "BiasGeluTanh": lambda _, x: activation.gelu_of(x, approximate=True),
    "BiasTanh": lambda _, x: lax.tanh(x),
    "BiasSigmoid": lambda _, x: lax.logistic(x),
    "BiasElu": activation.elu,
    "BiasSoftplus": activation.softplus,
    "BiasHardSigmoid": activation.hard_sigmoid,
}


LOWERINGS: Table = {
    ops.CompositeOp: composite,
}

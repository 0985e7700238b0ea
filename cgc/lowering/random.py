"""Lowerings of the random ops."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from cgc.cirh import ops
from cgc.cirh.ops import (
    KeyedRandomNormalOp,
    KeyedRandomUniformOp,
    RandomMultinomialOp,
    RandomNormalOp,
    RandomUniformOp,
    StatelessRandomUniformOp,
)
from cgc.lowering import counter_random
from cgc.lowering.dtypes import result_shape
from cgc.lowering.table import Table

Key = tuple[jax.Array, jax.Array]


def random_uniform(op: RandomUniformOp, step: jax.Array, *first: jax.Array) -> jax.Array:
    """Uniform in [0, 1), a function of the op's seeds and the step."""
    part = _part(op.elements, first)
    return counter_random.uniform(_key(op.seed, op.op_seed), _stream(step), result_shape(op), part)


def random_normal(op: RandomNormalOp, step: jax.Array, *first: jax.Array) -> jax.Array:
    """Standard normal, a function of the op's seeds and the step."""
    part = _part(op.elements, first)
    return counter_random.normal(_key(op.seed, op.op_seed), _stream(step), result_shape(op), part)


def random_multinomial(op: RandomMultinomialOp, step: jax.Array, logits: jax.Array) -> jax.Array:
    """Classes drawn by the largest of logit plus Gumbel noise (Gumbel 1954), `[B, num_samples]`."""
    batch, classes = logits.shape
    uniform = counter_random.uniform(
        _key(op.seed, op.op_seed), _stream(step), (batch, op.num_samples, classes)
    )
    noise = -lax.log(-lax.log(lax.max(uniform, np.finfo(np.float32).tiny)))
    return jnp.argmax(logits.astype(jnp.float32)[:, None, :] + noise, 2).astype(jnp.int32)


def keyed_random_uniform(
    op: KeyedRandomUniformOp, key: jax.Array, step: jax.Array, *first: jax.Array
) -> jax.Array:
    """Uniform in [0, 1), a function of a key and the step; such an op is in a layer, which devices share."""
    shape = result_shape(op)
    part = _part(op.elements, first) or (jnp.uint32(0), math.prod(shape))
    return counter_random.uniform(_words(key), _stream(step), shape, part)


def keyed_random_normal(
    op: KeyedRandomNormalOp, key: jax.Array, step: jax.Array, *first: jax.Array
) -> jax.Array:
    """Standard normal, a function of a key and the step."""
    part = _part(op.elements, first)
    return counter_random.normal(_words(key), _stream(step), result_shape(op), part)


def stateless_random_uniform(op: StatelessRandomUniformOp, key: jax.Array) -> jax.Array:
    """Uniform in [0, 1), a function of a key of two integers that the program computes."""
    return counter_random.uniform(_words(key), jnp.uint32(0), result_shape(op))


def _part(elements: int | None, first: tuple[jax.Array, ...]) -> counter_random.Part | None:
    return None if elements is None else (first[0].astype(jnp.uint32), elements)


def _key(seed: int, op_seed: int) -> Key:
    left, right = counter_random.op_key(seed, op_seed)
    return jnp.uint32(left), jnp.uint32(right)


def _words(key: jax.Array) -> Key:
    words = lax.bitcast_convert_type(key, jnp.uint32)
    return words[0], words[1]


def _stream(step: jax.Array) -> jax.Array:
    return lax.convert_element_type(step, jnp.uint32)


LOWERINGS: Table = {
    ops.RandomUniformOp: random_uniform,
    ops.RandomNormalOp: random_normal,
    ops.RandomMultinomialOp: random_multinomial,
    ops.KeyedRandomUniformOp: keyed_random_uniform,
    ops.KeyedRandomNormalOp: keyed_random_normal,
    ops.StatelessRandomUniformOp: stateless_random_uniform,
}

"""Layers of the example networks, in the style of tf.compat.v1: a name scope, its variables, a result.

Every variable has a seed made of its name: its first value does not depend on what else is in the graph.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1

Initializer = Callable[..., Any]
Activation = Callable[[Any], Any]


ACTIVATIONS: dict[str, Activation] = {
    "relu": tf.nn.relu,
    "gelu": tf.nn.gelu,
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "tanh": tf.tanh,
}
"""By the names that parameter files use; `gelu_tanh` is GELU by its approximate formula."""


def seed_of(name: str) -> int:
    """A seed for the random numbers of something with this name in the present variable scope."""
    return zlib.crc32(f"{v1.get_variable_scope().name}/{name}".encode()) & 0x7FFFFFFF


def normal(name: str, stddev: float) -> Initializer:
    """A normal distribution cut off at two standard deviations, as published Transformers begin with."""
    initializer: Initializer = v1.truncated_normal_initializer(stddev=stddev, seed=seed_of(name))
    return initializer


def dense(
    name: str,
    inputs: Any,
    size: int,
    *,
    activation: Activation | None = None,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
) -> Any:
    """A fully connected layer over the last axis.

    Args:
        name: scope of its variables `kernel` [features, size] and `bias` [size].
        inputs: [..., features]; leading axes are one for the multiplication.
        size: number of results.
        activation: applied to them.
        use_bias: whether there is a bias.
        kernel_initializer: Glorot's uniform one by default.
    """
    with v1.variable_scope(name):
        *leading, features = inputs.shape
        initializer = kernel_initializer or v1.glorot_uniform_initializer(seed=seed_of("kernel"))
        kernel = v1.get_variable("kernel", [features, size], initializer=initializer)
        rows = inputs if len(leading) == 1 else tf.reshape(inputs, [-1, features])
        result = tf.matmul(rows, kernel)
        if use_bias:
            bias = v1.get_variable("bias", [size], initializer=v1.zeros_initializer())
            result = tf.nn.bias_add(result, bias)
        if activation is not None:
            result = activation(result)
        return result if len(leading) == 1 else tf.reshape(result, [*leading, size])


def dropout(name: str, inputs: Any, rate: float) -> Any:
    """Zeros for a fraction of the elements, the others scaled up; nothing where the rate is 0."""
    return tf.nn.dropout(inputs, rate=rate, seed=seed_of(name), name=name) if rate else inputs


def layer_norm(name: str, inputs: Any, epsilon: float = 1e-5) -> Any:
    """Normalizes over the last axis; variables `gamma` and `beta`."""
    with v1.variable_scope(name):
        size = inputs.shape[-1]
        gamma = v1.get_variable("gamma", [size], initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", [size], initializer=v1.zeros_initializer())
        mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)


def embedding_table(name: str, count: int, size: int, stddev: float) -> Any:
    """The variable `name` [count, size]."""
    return v1.get_variable(name, [count, size], initializer=normal(name, stddev))


def sinusoids(length: int, size: int) -> Any:
    """The position code of Vaswani et al. 2017, section 3.5: [length, size], sines first, then cosines.

    It is computed in the graph, from its two axes.
    """
    frequencies = tf.exp(tf.range(size // 2, dtype=tf.float32) * (-math.log(10000.0) / (size // 2)))
    angles = tf.range(length, dtype=tf.float32)[:, None] * frequencies[None, :]
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=1)

"""Layers of the example networks, in the style of tf.compat.v1: a name scope, its variables, a result.

The seed of every variable is derived from its name: initial values do not depend on the rest of the graph.
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
"""Activations by their names in parameter files; `gelu_tanh` is the approximation of GELU by tanh."""


def seed_of(name: str) -> int:
    """Return the seed of a variable or layer with this name in the current variable scope."""
    return zlib.crc32(f"{v1.get_variable_scope().name}/{name}".encode()) & 0x7FFFFFFF


def normal(name: str, stddev: float) -> Initializer:
    """Return a normal initializer truncated at two standard deviations, as in published Transformers."""
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
    """Add a fully connected layer over the last axis.

    Args:
        name: Scope of its variables `kernel` [features, size] and `bias` [size].
        inputs: Tensor [..., features]; leading axes are flattened for the multiplication.
        size: Number of outputs.
        activation: Function applied to the outputs.
        use_bias: Add a bias.
        kernel_initializer: Initializer of the kernel; Glorot's uniform one by default.
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
    """Set a fraction of the elements to 0 and scale up the others; do nothing if the rate is 0."""
    return tf.nn.dropout(inputs, rate=rate, seed=seed_of(name), name=name) if rate else inputs


def layer_norm(name: str, inputs: Any, epsilon: float = 1e-5) -> Any:
    """Normalize over the last axis; variables `gamma` and `beta`."""
    with v1.variable_scope(name):
        size = inputs.shape[-1]
        gamma = v1.get_variable("gamma", [size], initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", [size], initializer=v1.zeros_initializer())
        mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)


def embedding_table(name: str, count: int, size: int, stddev: float) -> Any:
    """Return the variable `name` [count, size] of an embedding."""
    return v1.get_variable(name, [count, size], initializer=normal(name, stddev))


def sinusoids(length: int, size: int) -> Any:
    """Return the position encoding of Vaswani et al. 2017, section 3.5: [length, size], sines, then cosines.

    It is computed in the graph, from its two axes.
    """
    frequencies = tf.exp(tf.range(size // 2, dtype=tf.float32) * (-math.log(10000.0) / (size // 2)))
    angles = tf.range(length, dtype=tf.float32)[:, None] * frequencies[None, :]
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=1)

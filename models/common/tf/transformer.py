"""Attention, feed-forward layers and blocks of Transformers.

Tensors are [batch, length, hidden]; an attention bias is added to the scores [batch, heads, queries, keys].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from models.common.tf.layers import Activation, Initializer, dense, dropout, layer_norm, normal

v1 = tf.compat.v1

_MASKED = -1e4
"""Score of a hidden key: representable in float16, and its exponential is 0."""


@dataclass(frozen=True)
class BlockShape:
    """The sizes and rates of all blocks of a network.

    Attributes:
        hidden_size: Width of the tensors between blocks.
        num_heads: Number of attention heads.
        head_size: Width of a head.
        filter_size: Width between the two feed-forward layers.
        activation: Activation between them.
        norm_first: Normalize the input of a sub-layer (True), or its sum with the residual (False).
        epsilon: Epsilon of layer norm.
        dropout_rate: Dropout after each sub-layer.
        attention_dropout_rate: Dropout of attention probabilities.
        stddev: Standard deviation of initial kernels; None for Glorot's uniform distribution.
        output_stddev: Standard deviation of kernels before a residual sum; by default the same.
    """

    hidden_size: int
    num_heads: int
    head_size: int
    filter_size: int
    activation: Activation
    norm_first: bool
    epsilon: float
    dropout_rate: float
    attention_dropout_rate: float
    stddev: float | None = None
    output_stddev: float | None = None

    def without_dropout(self) -> BlockShape:
        """Return the shape for evaluation and prediction."""
        return replace(self, dropout_rate=0.0, attention_dropout_rate=0.0)


def padding_bias(mask: Any) -> Any:
    """Return the bias [batch, 1, 1, keys] that hides keys where a mask of integers [batch, keys] is 0."""
    return tf.cast(1 - mask, tf.float32)[:, None, None, :] * _MASKED


def causal_bias(length: int) -> Any:
    """Return the bias [1, 1, length, length] that hides later keys from a query."""
    visible = tf.linalg.band_part(tf.ones([length, length]), -1, 0)
    return ((1.0 - visible) * _MASKED)[None, None, :, :]


def attention(name: str, shape: BlockShape, queries: Any, memory: Any, bias: Any) -> Any:
    """Add multi-head attention of `queries` [batch, m, hidden] to `memory` [batch, n, hidden]."""
    with v1.variable_scope(name):
        query = _heads("query", shape, queries)
        key = _heads("key", shape, memory)
        value = _heads("value", shape, memory)
        scores = tf.matmul(query, key, transpose_b=True) * (1.0 / math.sqrt(shape.head_size))
        probabilities = dropout("dropout", tf.nn.softmax(scores + bias), shape.attention_dropout_rate)
        context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])
        joined = tf.reshape(context, [*context.shape[:2], shape.num_heads * shape.head_size])
        return _dense("output", shape, joined, shape.hidden_size, stddev=shape.output_stddev)


def feed_forward(name: str, shape: BlockShape, inputs: Any) -> Any:
    """Add two fully connected layers over each position."""
    with v1.variable_scope(name):
        hidden = _dense("inner", shape, inputs, shape.filter_size, activation=shape.activation)
        return _dense("output", shape, hidden, shape.hidden_size, stddev=shape.output_stddev)


def block(
    name: str, shape: BlockShape, x: Any, bias: Any, memory: Any = None, memory_bias: Any = None
) -> Any:
    """Add a layer of an encoder or, with a memory to attend to, of a decoder."""
    with v1.variable_scope(name):
        x = _residual("attention", shape, x, lambda y: attention("self", shape, y, y, bias))
        if memory is not None:
            x = _residual(
                "cross_attention", shape, x, lambda y: attention("cross", shape, y, memory, memory_bias)
            )
        return _residual("feed_forward", shape, x, lambda y: feed_forward("layers", shape, y))


def _residual(name: str, shape: BlockShape, x: Any, layer: Any) -> Any:
    with v1.variable_scope(name):
        if shape.norm_first:
            normalized = layer_norm("layer_norm", x, shape.epsilon)
            return x + dropout("dropout", layer(normalized), shape.dropout_rate)
        return layer_norm("layer_norm", x + dropout("dropout", layer(x), shape.dropout_rate), shape.epsilon)


def _heads(name: str, shape: BlockShape, x: Any) -> Any:
    """Project, and split into heads: [batch, heads, length, head_size]."""
    projected = _dense(name, shape, x, shape.num_heads * shape.head_size)
    cut = tf.reshape(projected, [*x.shape[:2], shape.num_heads, shape.head_size])
    return tf.transpose(cut, [0, 2, 1, 3])


def _dense(
    name: str,
    shape: BlockShape,
    x: Any,
    size: int,
    *,
    activation: Activation | None = None,
    stddev: float | None = None,
) -> Any:
    wanted = stddev or shape.stddev
    initializer: Initializer | None = None
    if wanted is not None:
        initializer = normal(f"{name}/kernel", wanted)
    return dense(name, x, size, activation=activation, kernel_initializer=initializer)

"""An encoder and a decoder with relative positions in buckets, as T5: quotients of integers are float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1

BATCH, WIDTH, HEADS, BUCKETS, FARTHEST, VOCABULARY = 1, 8, 2, 32, 128, 20


def bucket_of(distance: Any, both_sides: bool) -> Any:
    """Near positions have a bucket each, those further away share logarithmic ones."""
    count, bucket = BUCKETS, tf.zeros_like(distance)
    if both_sides:
        count //= 2
        bucket += tf.cast(distance > 0, tf.int32) * count
        distance = tf.abs(distance)
    else:
        distance = tf.maximum(-distance, 0)
    near = count // 2
    scale = (count - near) / math.log(FARTHEST / near)
    far = near + tf.cast(tf.math.log(distance / near) * scale, tf.int32)
    return bucket + tf.where(distance < near, distance, tf.minimum(far, count - 1))


def variable(name: str, *shape: int) -> Any:
    return tf1.get_variable(name, shape, initializer=tf1.random_normal_initializer(stddev=0.2, seed=3))


def dense(x: Any, name: str, outputs: int = WIDTH) -> Any:
    return tf.tensordot(x, variable(name, x.shape[-1], outputs), 1)


def heads(x: Any) -> Any:
    return tf.transpose(tf.reshape(x, [BATCH, -1, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])


def attention(x: Any, memory: Any, bias: Any) -> Any:
    query, key, value = heads(dense(x, "q")), heads(dense(memory, "k")), heads(dense(memory, "v"))
    scores = tf.matmul(query, key, transpose_b=True) + bias
    mixed = tf.matmul(tf.nn.softmax(scores), value)
    return dense(tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [BATCH, -1, WIDTH]), "o")


def position_bias(length: int, both_sides: bool) -> Any:
    positions = tf.range(length)
    buckets = bucket_of(positions[None, :] - positions[:, None], both_sides)
    bias = tf.nn.embedding_lookup(variable("relative_attention_bias", BUCKETS, HEADS), buckets)
    return tf.transpose(bias, [2, 0, 1])[None]


def norm(x: Any, name: str) -> Any:
    variance = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    return (
        x
        * tf.math.rsqrt(variance + 1e-6)
        * tf1.get_variable(name, [WIDTH], initializer=tf1.ones_initializer())
    )


def block(x: Any, memory: Any = None) -> Any:
    """Self attention with the positions; a decoder's attends to earlier positions, and to the memory."""
    length = x.shape[1]
    with tf1.variable_scope("self_attention"):
        bias = position_bias(length, memory is None)
        if memory is not None:
            bias += (1 - tf.linalg.band_part(tf.ones([length, length]), -1, 0)) * -1e9
        x += attention(norm(x, "norm"), norm(x, "norm_2"), bias)
    if memory is not None:
        with tf1.variable_scope("cross_attention"):
            x += attention(norm(x, "norm"), memory, 0.0)
    with tf1.variable_scope("feed_forward"):
        return x + dense(tf.nn.relu(dense(norm(x, "norm"), "wi", 16)), "wo")


@pytest.mark.parametrize("length", [128, 512])
def test_encoder_and_decoder(length: int, graph: tf.Graph, both_ways: Callable[..., Any]) -> None:
    inputs = tf1.placeholder(tf.int32, [BATCH, length], "input_ids")
    targets = tf1.placeholder(tf.int32, [BATCH, length], "targets")
    table = variable("table", VOCABULARY, WIDTH)
    with tf1.variable_scope("encoder"):
        memory = block(tf.nn.embedding_lookup(table, inputs))
    with tf1.variable_scope("decoder"):
        shifted = tf.pad(targets, [[0, 0], [1, 0]])[:, :-1]
        hidden = block(tf.nn.embedding_lookup(table, shifted), memory)
    logits = tf.tensordot(hidden, table, [[2], [1]])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
    update = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, VOCABULARY, (2, BATCH, length), np.int32) for _ in range(2)]
    ran = both_ways([inputs, targets], {"loss": loss}, [update], batches)
    np.testing.assert_allclose(ran.compiled.series("loss"), ran.session.series("loss"), rtol=1e-5)
    for name, value in ran.session.variables.items():
        np.testing.assert_allclose(ran.compiled.variables[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("both_sides", [True, False])
def test_buckets_are_those_of_tensorflow(
    both_sides: bool, graph: tf.Graph, both_ways: Callable[..., Any]
) -> None:
    """Every one: where the logarithm is a whole number, the last bit decides."""
    x = tf1.placeholder(tf.int32, [], "x")
    positions = tf.range(300)
    y = bucket_of(positions[None, :] - positions[:, None], both_sides) + x
    ran = both_ways([x], {"y": y}, [], [[np.int32(0)]], mode="infer")
    np.testing.assert_array_equal(ran.compiled.series("y"), ran.session.series("y"))

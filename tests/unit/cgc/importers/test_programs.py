"""Odd but legal programs of tf.compat.v1, five steps each, against a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.errors import GraphImportError
from cgc.importers.tensorflow import import_step

tf1 = tf.compat.v1
Program = Callable[[Any, Any], tuple[Any, Any]]
PROGRAMS: dict[str, Program] = {}


def program(build: Program) -> Program:
    """Registers (x [8, 6], y [8] of 3 classes) -> loss, train op."""
    PROGRAMS[build.__name__] = build
    return build


def weight(name: str, *shape: int) -> Any:
    initializer = tf1.random_normal_initializer(stddev=0.4, seed=sum(map(ord, name)))
    return tf1.get_variable(name, shape, initializer=initializer)


def state(name: str, *shape: int) -> Any:
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer(), trainable=False)


def cross_entropy(logits: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def descend(loss: Any, rate: Any = 0.1) -> Any:
    step = tf1.train.get_or_create_global_step()
    return tf1.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)


@program
def numbers_for_several_axes(x: Any, y: Any) -> tuple[Any, Any]:
    w = weight("w", 6, 3)
    h = x @ w
    place = tf.stack([tf.range(8), y], 1)
    chosen = tf.gather_nd(h, place)
    grid = tf.scatter_nd(place, chosen, [8, 4])
    grid = tf.tensor_scatter_nd_update(grid, [[0, 3], [2, 1]], h[1, :2])
    grid = tf.tensor_scatter_nd_sub(tf.tensor_scatter_nd_add(grid, [[1], [1]], grid[:2]), [[5]], grid[5:6])
    loss = cross_entropy(h, y) + 0.1 * tf.reduce_sum(grid**2) + tf.reduce_mean(chosen)
    return loss, descend(loss)


@program
def merged_reversed_and_assigned_elements(x: Any, y: Any) -> tuple[Any, Any]:
    w, kept = weight("w", 6, 3), state("kept", 4, 3)
    h = x @ w
    merged = tf.dynamic_stitch([[0, 2, 4, 6], [7, 5, 3, 1]], [h[:4], h[4:]])
    turned = tf.reverse_sequence(h, y + 1, seq_axis=1, batch_axis=0)
    loss = cross_entropy(merged + turned, y)
    with tf.control_dependencies([descend(loss)]):
        sliced = kept[1:3, ::-2].assign(w[:2, 1:])
    with tf.control_dependencies([sliced]):
        numbered = tf1.scatter_nd_add(kept, [[0], [2]], w[1:3])
    return loss, tf.group(sliced, numbered)


@program
def sums_of_products(x: Any, y: Any) -> tuple[Any, Any]:
    w = weight("w", 2, 3, 3)
    h = tf.einsum("bij,ijk->bk", tf.reshape(x, [8, 2, 3]), w)
    outer = tf.einsum("...i,...j->...ij", h, h)
    back = tf.einsum("bij, bj -> ib", outer, h)
    summed = tf.einsum("ij->j", h) + tf.einsum("bij,k->k", tf.reshape(x, [8, 2, 3]), h[0])
    loss = cross_entropy(h, y) + 0.01 * tf.reduce_mean(back**2) + 0.01 * tf.reduce_sum(summed)
    return loss, descend(loss)


@program
def sums_over_the_batch_of_one_row_at_a_time(x: Any, y: Any) -> tuple[Any, Any]:
    w = weight("w", 6, 6)
    rows = tf.vectorized_map(lambda row: tf.tanh(tf.linalg.matvec(w, row)), x)
    means = tf.math.unsorted_segment_mean(rows, y, 3)
    loss = cross_entropy(rows @ weight("out", 6, 3), y) + tf.reduce_sum(means**2)
    return loss, descend(loss)


@program
def gradients_accumulated_over_two_steps(x: Any, y: Any) -> tuple[Any, Any]:
    w, total = weight("w", 6, 3), state("total", 6, 3)
    step = tf1.train.get_or_create_global_step()
    optimizer = tf1.train.AdamOptimizer(0.01)
    loss = cross_entropy(x @ w, y)
    ((gradient, _),) = optimizer.compute_gradients(loss, [w])

    def apply() -> Any:
        with tf.control_dependencies([optimizer.apply_gradients([(total / 2.0, w)])]):
            return tf.group(total.assign(tf.zeros_like(total)))

    with tf.control_dependencies([total.assign_add(gradient)]):
        applied = tf.cond(tf.equal(step % 2, 1), apply, tf.no_op)
    with tf.control_dependencies([applied]):
        return loss, step.assign_add(1)


@program
def averages_clipping_and_a_rate_that_branches(x: Any, y: Any) -> tuple[Any, Any]:
    w, b = weight("w", 6, 3), weight("b", 3)
    step = tf1.train.get_or_create_global_step()
    loss = cross_entropy(x @ w + b, y)
    rate = tf.cond(step < 2, lambda: 0.1 * tf.cast(step + 1, tf.float32), lambda: tf.constant(0.3))
    optimizer = tf1.train.MomentumOptimizer(rate, 0.9)
    pairs = optimizer.compute_gradients(loss)
    gradients, _ = tf.clip_by_global_norm([tf.clip_by_norm(g, 0.5) for g, _ in pairs], 0.3)
    train = optimizer.apply_gradients(zip(gradients, [v for _, v in pairs], strict=True), global_step=step)
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
    with tf.control_dependencies([train]):
        return loss, average.apply([w, b])


@program
def spectral_norm_and_gradient_of_a_gradient(x: Any, y: Any) -> tuple[Any, Any]:
    w = weight("w", 6, 3)
    u = tf1.get_variable("u", [1, 3], initializer=tf1.random_normal_initializer(seed=1), trainable=False)
    v = tf.nn.l2_normalize(u @ tf.transpose(w))
    new_u, v = tf.stop_gradient(tf.nn.l2_normalize(v @ w)), tf.stop_gradient(v)
    norm = (v @ w @ tf.transpose(new_u))[0, 0]
    with tf.control_dependencies([u.assign(new_u)]):
        loss = cross_entropy(tf.tanh(x @ (w / norm)), y)
    (slope,) = tf.gradients(loss, x)
    loss += tf.reduce_sum(slope**2)
    return loss, descend(loss)


@program
def losses_of_the_library(x: Any, y: Any) -> tuple[Any, Any]:
    h, target = x @ weight("w", 6, 3), tf.one_hot(y, 3)
    tf1.losses.softmax_cross_entropy(target, h, label_smoothing=0.1)
    tf1.losses.sigmoid_cross_entropy(target, h, label_smoothing=0.1)
    tf1.losses.sparse_softmax_cross_entropy(y, h, weights=tf.cast(y > 0, tf.float32))
    tf1.losses.huber_loss(target, h)
    tf1.losses.hinge_loss(target, h)
    tf1.losses.log_loss(target, tf.sigmoid(h))
    tf1.losses.mean_pairwise_squared_error(target, h)
    loss = tf1.losses.get_total_loss()
    loss += tf.reduce_mean(tf.nn.weighted_cross_entropy_with_logits(target, h, 2.0))
    loss += tf.reduce_mean(tf.nn.log_poisson_loss(target, h, compute_full_loss=True))
    return loss, descend(loss, 0.01)


@program
def scaled_losses_and_two_optimizers(x: Any, y: Any) -> tuple[Any, Any]:
    w, u = weight("w", 6, 3), weight("u", 6, 3)
    loss = cross_entropy(x @ w + x @ u, y)
    scale = tf1.mixed_precision.DynamicLossScale(initial_loss_scale=2.0**10, increment_period=2)
    adam = tf1.mixed_precision.MixedPrecisionLossScaleOptimizer(tf1.train.AdamOptimizer(0.01), scale)
    first = adam.minimize(loss, var_list=[w], global_step=tf1.train.get_or_create_global_step())
    second = tf1.train.RMSPropOptimizer(0.01).minimize(loss, var_list=[u])
    return loss, tf.group(first, second)


@pytest.mark.parametrize("name", PROGRAMS)
def test_trains_as_in_a_session(name: str, both_ways: Any) -> None:
    x, y = tf1.placeholder(tf.float32, [8, 6], "x"), tf1.placeholder(tf.int32, [8], "y")
    loss, train = PROGRAMS[name](x, y)
    rng = np.random.default_rng(1)
    batches = [
        (rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32)) for _ in range(5)
    ]
    run = both_ways([x, y], {"loss": loss}, [train], batches)
    np.testing.assert_allclose(run.compiled.series("loss"), run.session.series("loss"), rtol=1e-5)
    for variable, value in run.compiled.variables.items():
        expected = run.session.variables[variable]
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=variable)


def test_the_sign_of_zero_is_in_the_bits(graph: tf.Graph, compile_step: Any) -> None:
    x = tf1.placeholder(tf.float32, [6], "x")
    sign = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), tf.constant(tf.int32.min))
    imported = import_step(graph, inputs=[x], outputs={"sign": sign}, updates=[], mode="infer", seed=0)
    values = np.asarray([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf], np.float32)
    (found,) = compile_step(imported, {}, [(values,)]).series("sign")
    np.testing.assert_array_equal(found, values.view(np.int32) & np.int32(-(2**31)))


def test_other_bits_are_refused(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [6], "x")
    exponent = tf.bitwise.bitwise_and(tf.bitcast(x, tf.int32), 0x7F800000)
    with pytest.raises(GraphImportError, match="only the sign bit"):
        import_step(graph, inputs=[x], outputs={"y": exponent}, updates=[], mode="infer", seed=0)

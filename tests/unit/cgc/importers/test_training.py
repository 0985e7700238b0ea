"""Whole training steps: the same losses and variables as a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda: tf1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
    "adam_tuned": lambda: tf1.train.AdamOptimizer(0.01, beta1=0.8, beta2=0.95, epsilon=1e-4),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.005, decay=0.8, momentum=0.5),
    "rmsprop_centered": lambda: tf1.train.RMSPropOptimizer(0.005, centered=True),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
}


def assert_same_training(run: Any, losses: str = "loss") -> None:
    """Losses to 1e-5 relative, variables to 1e-4."""
    plain, compiled = run.session.series(losses), run.compiled.series(losses)
    assert plain[0] != plain[-1]
    np.testing.assert_allclose(compiled, plain, rtol=1e-5)
    for name, value in run.compiled.variables.items():
        np.testing.assert_allclose(value, run.session.variables[name], rtol=1e-4, atol=1e-5, err_msg=name)


def placeholders(size: int = 16) -> tuple[Any, Any]:
    return tf1.placeholder(tf.float32, [size, 20], "x"), tf1.placeholder(tf.int32, [size], "y")


def dense(x: Any, units: int, name: str) -> Any:
    with tf1.variable_scope(name):
        # Glorot's bound; a seed, because each test runs the initializer again.
        kernel = tf1.get_variable(
            "kernel", [x.shape[-1], units], initializer=tf1.glorot_uniform_initializer(seed=3)
        )
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, kernel), bias)


def mlp_loss(x: Any, y: Any, activation: Callable[[Any], Any] = tf.nn.relu) -> Any:
    logits = dense(activation(dense(x, 32, "hidden")), 5, "logits")
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_takes_tensorflows_steps(name: str, both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    loss = mlp_loss(x, y)
    step = tf1.train.get_or_create_global_step()
    train = OPTIMIZERS[name]().minimize(loss, global_step=step)
    run = both_ways([x, y], {"loss": loss}, [train], digits(8))
    assert_same_training(run)
    assert run.compiled.variables["global_step"] == 8


def test_fifty_adam_steps_of_an_mnist_sized_network(both_ways: Any) -> None:
    x, y = tf1.placeholder(tf.float32, [64, 28, 28]), tf1.placeholder(tf.int32, [64])
    h = tf.reshape(x, [64, 784])
    for i, units in enumerate((100, 60)):
        h = tf.nn.relu(dense(h, units, f"fc{i}"))
    loss = tf1.losses.sparse_softmax_cross_entropy(y, dense(h, 10, "logits"))
    train = tf1.train.AdamOptimizer(1e-3).minimize(loss, global_step=tf1.train.get_or_create_global_step())
    rng = np.random.default_rng(0)
    centers = rng.uniform(size=(10, 28, 28))
    batches = []
    for _ in range(50):
        labels = rng.integers(0, 10, 64).astype(np.int32)
        batches.append(((centers[labels] + rng.normal(size=(64, 28, 28))).astype(np.float32), labels))
    run = both_ways([x, y], {"loss": loss}, [train], batches)
    assert_same_training(run)
    assert run.session.series("loss")[-1] < 0.5 * run.session.series("loss")[0]


def test_clipping_decay_regularization_and_summaries(both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    step = tf1.train.get_or_create_global_step()
    loss = mlp_loss(x, y, tf.nn.gelu)
    loss += 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in tf1.trainable_variables() if "kernel" in v.name])
    rate = tf1.train.exponential_decay(0.02, step, decay_steps=3, decay_rate=0.7, staircase=True)
    optimizer = tf1.train.AdamOptimizer(rate)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
    tf1.summary.scalar("rate", rate)
    tf1.summary.histogram("kernel", variables[0])
    train = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    outputs = {"loss": loss, "norm": norm, "rate": rate}
    run = both_ways([x, y], outputs, [train], digits(7))
    assert_same_training(run)
    np.testing.assert_allclose(run.compiled.series("norm"), run.session.series("norm"), rtol=1e-4)
    np.testing.assert_allclose(run.compiled.series("rate"), run.session.series("rate"), rtol=1e-6)
    assert len(set(run.session.series("rate"))) == 3


@pytest.mark.parametrize("cycle", [False, True])
def test_polynomial_decay(cycle: bool, both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    step = tf1.train.get_or_create_global_step()
    loss = mlp_loss(x, y)
    rate = tf1.train.polynomial_decay(0.1, step, 4, 0.01, power=2.0, cycle=cycle)
    train = tf1.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    run = both_ways([x, y], {"loss": loss, "rate": rate}, [train], digits(6))
    assert_same_training(run)
    np.testing.assert_allclose(run.compiled.series("rate"), run.session.series("rate"), rtol=1e-6)


@pytest.mark.parametrize("decay", ["piecewise_constant", "cosine_decay", "inverse_time_decay"])
def test_other_schedules(decay: str, both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    step = tf1.train.get_or_create_global_step()
    loss = mlp_loss(x, y)
    rate = {
        "piecewise_constant": lambda: tf1.train.piecewise_constant(step, [2, 4], [0.1, 0.05, 0.01]),
        "cosine_decay": lambda: tf1.train.cosine_decay(0.1, step, 10),
        "inverse_time_decay": lambda: tf1.train.inverse_time_decay(0.1, step, 2, 0.5),
    }[decay]()
    train = tf1.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    run = both_ways([x, y], {"loss": loss, "rate": rate}, [train], digits(6))
    assert_same_training(run)
    np.testing.assert_allclose(run.compiled.series("rate"), run.session.series("rate"), rtol=1e-5)


def test_embedding_with_sparse_gradient(both_ways: Any) -> None:
    ids, y = tf1.placeholder(tf.int64, [8, 3]), tf1.placeholder(tf.int32, [8])
    table = tf1.get_variable("table", [11, 4], initializer=tf1.random_normal_initializer(seed=1))
    logits = dense(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1), 3, "logits")
    loss = tf1.losses.sparse_softmax_cross_entropy(y, logits)
    train = tf1.train.GradientDescentOptimizer(0.5).minimize(loss)
    rng = np.random.default_rng(2)
    batches = [(rng.integers(0, 11, (8, 3)), rng.integers(0, 3, 8).astype(np.int32)) for _ in range(5)]
    assert_same_training(both_ways([ids, y], {"loss": loss}, [train], batches))


def test_embedding_under_adam_with_its_gradient_made_dense(both_ways: Any) -> None:
    ids, y = tf1.placeholder(tf.int32, [8, 3]), tf1.placeholder(tf.int32, [8])
    table = tf1.get_variable("table", [11, 4], initializer=tf1.random_normal_initializer(seed=1))
    logits = dense(tf.reduce_sum(tf.nn.embedding_lookup(table, ids), axis=1), 3, "logits")
    loss = tf1.losses.sparse_softmax_cross_entropy(y, logits)
    optimizer = tf1.train.AdamOptimizer(0.05)
    gradients = [(tf.convert_to_tensor(g), v) for g, v in optimizer.compute_gradients(loss)]
    train = optimizer.apply_gradients(gradients)
    rng = np.random.default_rng(2)
    batches = [
        tuple(rng.integers(0, n, s).astype(np.int32) for n, s in ((11, (8, 3)), (3, 8))) for _ in range(5)
    ]
    assert_same_training(both_ways([ids, y], {"loss": loss}, [train], batches))


def test_exponential_moving_average(both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    loss = mlp_loss(x, y)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    average = tf1.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([train]):
        update = average.apply(tf1.trainable_variables())
    run = both_ways([x, y], {"loss": loss}, [update], digits(5))
    assert_same_training(run)
    assert "hidden/kernel/ExponentialMovingAverage" in run.compiled.variables


def test_reads_before_and_after_an_update(both_ways: Any) -> None:
    """A read that nothing orders sees the value before the step, one after an update the value after."""
    x = tf1.placeholder(tf.float32, [])
    counter = tf1.get_variable("counter", [], initializer=tf1.constant_initializer(10.0))
    update = counter.assign_add(x, read_value=False)
    with tf.control_dependencies([update]):
        after = counter.read_value()
        doubled = counter.assign(after * 2, read_value=False)
    with tf.control_dependencies([doubled]):
        final = counter.read_value()
    before = counter.read_value()
    with tf.control_dependencies([before]):
        ordered = tf.group(doubled)
    batches = [(np.float32(1.0),), (np.float32(5.0),)]
    run = both_ways([x], {"before": before, "after": after, "final": final}, [ordered], batches)
    steps = [{k: float(v) for k, v in step.items()} for step in run.compiled.outputs]
    assert steps == [
        {"before": 10.0, "after": 11.0, "final": 22.0},
        {"before": 22.0, "after": 27.0, "final": 54.0},
    ]
    assert run.compiled.variables["counter"] == 54.0


def test_evaluation_with_streaming_metrics(both_ways: Any, digits: Any) -> None:
    x, y = placeholders()
    logits = dense(x, 5, "logits")
    predicted = tf.argmax(logits, axis=1)
    accuracy, accuracy_update = tf1.metrics.accuracy(y, predicted)
    mean, mean_update = tf1.metrics.mean(tf.reduce_sum(tf.abs(logits), axis=1))
    outputs = {"accuracy": accuracy_update, "mean": mean_update, "old": accuracy, "mean_old": mean}
    run = both_ways([x, y], outputs, [accuracy_update, mean_update], digits(4), mode="eval")
    for name in ("accuracy", "mean"):
        np.testing.assert_allclose(run.compiled.series(name), run.session.series(name), rtol=1e-5)
    assert run.compiled.series("old")[0] == 0
    assert 0 < run.compiled.series("accuracy")[-1] < 1
    assert run.compiled.variables["accuracy/count"] == 64


def test_functions_and_branches_are_imported_in_place(both_ways: Any) -> None:
    x = tf1.placeholder(tf.float32, [3])
    total = tf1.get_variable("total", [], initializer=tf1.zeros_initializer())

    @tf.function
    def scaled(value: Any) -> Any:
        return value * tf.reduce_max(value)

    def grow() -> Any:
        with tf.control_dependencies([total.assign_add(1.0)]):
            return scaled(x) + 1.0

    largest = tf.reduce_max(x)
    chosen = tf.cond(largest > 2.0, grow, lambda: x * tf.nn.relu(x))
    same = tf.cond(largest > 0.0, lambda: tf.constant(2.5), lambda: tf.constant(2.5))
    fixed = tf.cond(tf.constant(True), lambda: x, lambda: -x)
    outputs = {"chosen": chosen, "same": same, "fixed": fixed}
    batches = [(np.asarray(values, np.float32),) for values in ([1, -2, 3], [0.5, -1, 1], [4, 0, 1])]
    run = both_ways([x], outputs, [chosen], batches)
    for name in outputs:
        np.testing.assert_allclose(run.compiled.series(name), run.session.series(name), rtol=1e-6)
    assert run.compiled.variables["total"] == run.session.variables["total"] == 2


def test_gradient_through_a_branch(both_ways: Any, digits: Any) -> None:
    x, y = placeholders()

    def activation(h: Any) -> Any:
        return tf.cond(tf.reduce_mean(h) > 0, lambda: tf.nn.relu(h), lambda: tf.tanh(h))

    loss = mlp_loss(x, y, activation)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert_same_training(both_ways([x, y], {"loss": loss}, [train], digits(4)))

"""Batch norm, however a program writes it, has the kernel and the rate of the op, and the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.driver import validate_step
from cgc.execution.compilation import CompileOptions
from cgc.importers.tensorflow import import_keras_step
from cgc.lowering.interpret import step_function
from cgc.performance import estimate
from cgc.placement import place
from cs_toolkit.fabric import load_fabric
from cs_toolkit.step import Precision
from tests.programs.tf import fused_layers as p

v1 = tf.compat.v1
Moments = tuple[Any, Any]
BATCH, SIDE, FILTERS, CLASSES = 8, 16, (16, 32), 10
EPSILON, MOMENTUM = 1e-3, 0.9
INPUTS: list[p.Input] = [((BATCH, SIDE, SIDE, 3), tf.float32), ((BATCH,), tf.int32)]


def moving(name: str, value: Any, updates: list[Any]) -> None:
    initial = v1.zeros_initializer() if name == "mean" else v1.ones_initializer()
    average = v1.get_variable(f"moving_{name}", value.shape, initializer=initial, trainable=False)
    updates.append(v1.assign_sub(average, (average - value) * (1 - MOMENTUM)))


def averaged(found: Moments, updates: list[Any]) -> Moments:
    for name, value in zip(("mean", "variance"), found, strict=True):
        moving(name, tf.reshape(value, [-1]), updates)
    return found


def fused(x: Any, updates: list[Any]) -> Any:
    y, mean, variance = v1.nn.fused_batch_norm(x, p.scale(x), p.offset(x), epsilon=EPSILON)
    averaged((mean, variance), updates)
    return y


def of_moments(x: Any, updates: list[Any]) -> Any:
    found = averaged(tf.nn.moments(x, [0, 1, 2]), updates)
    return tf.nn.batch_normalization(x, *found, p.offset(x), p.scale(x), EPSILON)


def own_moments(x: Any, keepdims: bool) -> Moments:
    mean = tf.reduce_mean(x, [0, 1, 2], keepdims=keepdims)
    return mean, tf.reduce_mean(tf.square(x - mean), [0, 1, 2], keepdims=keepdims)


def by_root(x: Any, updates: list[Any]) -> Any:
    mean, variance = averaged(own_moments(x, keepdims=True), updates)
    return (x - mean) * tf.math.rsqrt(variance + EPSILON) * p.scale(x) + p.offset(x)


def by_division(x: Any, updates: list[Any]) -> Any:
    mean, variance = averaged(own_moments(x, keepdims=False), updates)
    return p.scale(x) * ((x - mean) / tf.sqrt(variance + EPSILON)) + p.offset(x)


def scaled_first(x: Any, updates: list[Any]) -> Any:
    mean, variance = averaged(own_moments(x, keepdims=True), updates)
    return p.scale(x) * (x - mean) / tf.sqrt(variance + EPSILON) + p.offset(x)


def scaled_first_by_root(x: Any, updates: list[Any]) -> Any:
    mean, variance = averaged(tf.nn.moments(x, [0, 1, 2], keepdims=True), updates)
    return p.scale(x) * (x - mean) * tf.math.rsqrt(variance + EPSILON) + p.offset(x)


def scaled_root(x: Any, updates: list[Any]) -> Any:
    mean, variance = averaged(own_moments(x, keepdims=False), updates)
    return (x - mean) * (tf.math.rsqrt(variance + EPSILON) * p.scale(x)) + p.offset(x)


def by_keras(x: Any, updates: list[Any]) -> Any:
    layer = keras.layers.BatchNormalization(epsilon=EPSILON, momentum=MOMENTUM)
    return layer(x, training=True)


MANNERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "moments": of_moments,
    "by_root": by_root,
    "by_division": by_division,
    "scaled_first": scaled_first,
    "scaled_first_by_root": scaled_first_by_root,
    "scaled_root": scaled_root,
    "keras": by_keras,
}
HALVES = ("by_the_compiler", "by_casts")


def network(norm: Callable[[Any, list[Any]], Any], casts: bool, updates: list[Any]) -> Callable[..., Any]:
    """Two convolutions with batch norm, ReLU and pooling; in float16 between casts as a program does it."""
    half = tf.float16 if casts else tf.float32

    def normalized(x: Any) -> Any:
        if norm is fused:
            return fused(x, updates)
        return tf.cast(norm(tf.cast(x, tf.float32), updates), half)

    def loss(images: Any, labels: Any) -> Any:
        hidden = tf.cast(images, half)
        for index, filters in enumerate(FILTERS):
            with v1.variable_scope(f"conv{index}"):
                kernel = v1.get_variable("kernel", [3, 3, hidden.shape[-1], filters])
                hidden = tf.nn.conv2d(hidden, tf.cast(kernel, half), 1, "SAME")
                hidden = tf.nn.max_pool2d(tf.nn.relu(normalized(hidden)), 2, 2, "VALID")
        flat = tf.reshape(hidden, [BATCH, -1])
        matrix = v1.get_variable("head", [flat.shape[-1], CLASSES])
        logits = tf.cast(flat @ tf.cast(matrix, half), tf.float32)
        errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(errors)

    return loss


@cache
def step(norm: Callable[[Any, list[Any]], Any], casts: bool = False) -> ModuleOp:
    """Imported once: nobody changes it."""
    updates: list[Any] = []
    return p.training_step(network(norm, casts, updates), INPUTS, more_updates=updates)


def rate_and_kernels(module: ModuleOp, precision: Precision) -> tuple[float, Counter[str]]:
    fabric = load_fabric()
    graph = validate_step(module, CompileOptions(precision=precision), fabric).graph
    performance = estimate(graph, place(graph, fabric), fabric)
    return performance.overall.samples_per_s, Counter(kernel.family for kernel in graph.kernels)


@cache
def of_the_op(casts: bool, precision: Precision) -> tuple[float, Counter[str]]:
    return rate_and_kernels(step(fused, casts), precision)


@pytest.mark.parametrize(
    ("manner", "half"),
    [*((manner, None) for manner in MANNERS), *product(("moments", "by_division", "keras"), HALVES)],
)
def test_all_manners_have_the_kernel_and_the_rate_of_the_op(manner: str, half: str | None) -> None:
    casts = half == "by_casts"
    precision: Precision = "mixed_float16" if half else "float32"
    expected, kernels = of_the_op(casts, precision)
    rate, found = rate_and_kernels(step(MANNERS[manner], casts), precision)
    assert found == kernels
    assert kernels["normalization"] == len(FILTERS)
    assert rate == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_keras_model_under_a_policy_has_no_generated_kernel(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        x = keras.Input(INPUTS[0][0][1:], batch_size=BATCH)
        hidden = x
        for filters in FILTERS:
            hidden = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(hidden)
            hidden = keras.layers.ReLU()(keras.layers.BatchNormalization()(hidden))
            hidden = keras.layers.MaxPool2D()(hidden)
        logits = keras.layers.Dense(CLASSES, dtype="float32")(keras.layers.Flatten()(hidden))
        model = keras.Model(x, logits)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    module = import_keras_step(model, tuple(tf.TensorSpec(*spec) for spec in INPUTS)).module
    half = policy == "mixed_float16"
    expected, kernels = of_the_op(half, "mixed_float16" if half else "float32")
    rate, found = rate_and_kernels(module, "mixed_float16" if half else "float32")
    assert found == kernels
    assert rate == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("manner", MANNERS)
def test_training_equals_plain_tensorflow(manner: str) -> None:
    """Loss, new weights and moving averages of a step, by TensorFlow's own session and as compiled."""
    rng = np.random.default_rng(3)
    images = rng.standard_normal(INPUTS[0][0]).astype(np.float32)
    labels = rng.integers(0, CLASSES, INPUTS[1][0]).astype(np.int32)
    found = p.fused(step(MANNERS[manner]))
    assert p.op_counts(found)["FusedBatchNormGrad"] == len(FILTERS)
    specs = step_interface(found).state
    state = [np.asarray(value) for value in p.random_values(specs, rng)]
    compiled = jax.tree.leaves(jax.jit(step_function(found))(tuple(state), (images, labels)))

    keras.utils.clear_session(free_memory=False)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        counter = v1.train.get_or_create_global_step()
        fresh: list[Any] = []
        loss = network(MANNERS[manner], False, fresh)(tf.constant(images), tf.constant(labels))
        trained = v1.trainable_variables()
        pairs = list(zip(tf.gradients(loss, trained), trained, strict=True))
        initial = {variable.initializer for variable in v1.global_variables()}
        fresh += [
            op for op in graph.get_operations() if op.type == "AssignVariableOp" and op not in initial
        ]  # those of Keras layers
        variables = {f"state.model.{variable.op.name}": variable for variable in v1.global_variables()}
        session.run(v1.global_variables_initializer())
        loaded = [
            (variables[spec.name].initializer, value)
            for spec, value in zip(specs, state, strict=True)
            if spec.name in variables
        ]
        session.run([op for op, _ in loaded], {op.inputs[1]: value for op, value in loaded})
        with tf.control_dependencies(fresh):
            train = v1.train.GradientDescentOptimizer(0.1).apply_gradients(pairs, counter)
        expected_loss, _ = session.run([loss, train])
        expected = session.run(variables)
    for spec, got in zip(specs, compiled, strict=False):
        if spec.name in expected:
            np.testing.assert_allclose(got, expected[spec.name], rtol=2e-4, atol=2e-5, err_msg=spec.name)
    np.testing.assert_allclose(compiled[-1], expected_loss, rtol=1e-5)

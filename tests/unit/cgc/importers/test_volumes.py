"""Networks on volumes: values, gradients and training as a plain TensorFlow session has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.importers.tensorflow import import_step
from cgc.kernels import match_kernels
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline

tf1 = tf.compat.v1
VOLUME = (2, 5, 6, 7, 4)


def conv(strides: Sequence[int], padding: str, dilations: Sequence[int] = (1, 1, 1)) -> Callable[..., Any]:
    return lambda x, w: tf.nn.conv3d(x, w, [1, *strides, 1], padding, dilations=[1, *dilations, 1])


def transposed(sizes: Sequence[int], stride: int) -> Callable[..., Any]:
    return lambda x, w: tf.nn.conv3d_transpose(x, w, [2, *sizes, 3], [1, stride, stride, stride, 1], "SAME")


CASES: dict[str, tuple[Sequence[tuple[int, ...]], Callable[..., Any]]] = {
    "same": ([VOLUME, (3, 3, 3, 4, 5)], conv((1, 1, 1), "SAME")),
    "valid": ([VOLUME, (2, 3, 1, 4, 5)], conv((1, 2, 1), "VALID")),
    "strides": ([VOLUME, (3, 3, 3, 4, 5)], conv((2, 2, 3), "SAME")),
    "dilated": ([VOLUME, (2, 2, 2, 4, 5)], conv((1, 1, 1), "SAME", (2, 1, 3))),
    "transposed": ([(2, 3, 3, 4, 5), (3, 3, 3, 3, 5)], transposed((6, 5, 8), 2)),
    "max_pool": ([VOLUME], lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME")),
    # of activations, where windows have several largest elements
    "max_pool_overlap": ([VOLUME], lambda x: tf.nn.max_pool3d(tf.round(x) + 0 * x, 3, [1, 2, 1], "VALID")),
    "avg_pool": ([VOLUME], lambda x: tf.nn.avg_pool3d(x, [2, 3, 2], 2, "SAME")),
    "avg_pool_whole": ([VOLUME], lambda x: tf.nn.avg_pool3d(x, [5, 6, 7], 1, "VALID")),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_tensorflows(name: str, both_ways: Any) -> None:
    shapes, build = CASES[name]
    rng = np.random.default_rng(len(name))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    inputs = [tf1.placeholder(tf.float32, shape) for shape in shapes]
    value = build(*inputs)
    # a loss with another gradient at each element, so that none can be mistaken for its neighbor's
    weights = rng.normal(size=value.shape).astype(np.float32)
    gradients = tf1.gradients(tf.reduce_sum(tf.sin(value) * weights), inputs)
    outputs = {"value": value, **{f"gradient{i}": gradient for i, gradient in enumerate(gradients)}}
    run = both_ways(inputs, outputs, [], [arrays], mode="eval")
    for key, expected in run.session.outputs[0].items():
        scale = max(1.0, float(np.abs(expected).max()))
        got = run.compiled.outputs[0][key]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6 * scale, err_msg=key)


def variable(name: str, shape: Sequence[int]) -> Any:
    return tf1.get_variable(name, shape, initializer=tf1.glorot_uniform_initializer(seed=len(shape)))


def network(size: int = 4) -> tuple[list[Any], Any, list[Any]]:
    """Inputs, loss and updates of a classifier of volumes."""
    x, labels = tf1.placeholder(tf.float32, [size, 6, 8, 8, 2]), tf1.placeholder(tf.int32, [size])
    with tf1.variable_scope("conv1"):
        h = tf.nn.conv3d(x, variable("kernel", [3, 3, 3, 2, 6]), [1] * 5, "SAME")
        h = tf.nn.relu(tf.nn.bias_add(h, variable("bias", [6])))
    with tf1.variable_scope("pool1"):
        h = tf.nn.max_pool3d(h, 2, 2, "VALID")
    with tf1.variable_scope("conv2"):
        h = tf.nn.relu(tf.nn.conv3d(h, variable("kernel", [2, 2, 2, 6, 8]), [1, 1, 2, 2, 1], "SAME"))
    with tf1.variable_scope("logits"):
        logits = tf.matmul(tf.reduce_mean(h, [1, 2, 3]), variable("kernel", [8, 3]))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    step = tf1.train.get_or_create_global_step()
    return [x, labels], loss, [tf1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)]


def test_a_network_trains_as_tensorflow_does(both_ways: Any) -> None:
    inputs, loss, updates = network()
    rng = np.random.default_rng(2)
    centers = rng.normal(size=(3, 6, 8, 8, 2))
    batches = []
    for _ in range(12):
        labels = rng.integers(0, 3, 4).astype(np.int32)
        batches.append(((centers[labels] + rng.normal(size=(4, 6, 8, 8, 2))).astype(np.float32), labels))
    run = both_ways(inputs, {"loss": loss}, updates, batches)
    plain = run.session.series("loss")
    assert plain[-1] < plain[0]
    np.testing.assert_allclose(run.compiled.series("loss"), plain, rtol=1e-5)


def test_a_layer_with_its_gradients_and_update_is_one_kernel(graph: tf.Graph) -> None:
    inputs, loss, updates = network()
    step = import_step(graph, inputs=inputs, outputs={"loss": loss}, updates=updates, mode="train", seed=1)
    run_pipeline(step.module, DEFAULT_PIPELINE)
    kernels = match_kernels(step.module).by_name
    assert [kernels[name].family for name in ("conv1", "pool1", "conv2")] == [
        "convolution",
        "pooling",
        "convolution",
    ]
    second = kernels["conv2"]
    assert second.ops.count("cirh.Convolution") == 3
    assert "cirh.Adam" in second.ops
    assert "cirh.MaxPoolGrad" in kernels["pool1"].ops
    # 3 x 2 x 2 places, windows of 2 x 2 x 2 with 6 channels
    assert [second.parameters[key] for key in ("rows", "inputs", "outputs")] == [12, 48, 8]

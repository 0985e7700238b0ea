"""Convolutional networks: values, gradients and training as a plain TensorFlow session has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh import ops
from cgc.errors import GraphImportError
from cgc.importers.tensorflow import import_step
from cgc.kernels import match_kernels
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline

tf1 = tf.compat.v1
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """`build` takes one placeholder of each shape and gives a tensor."""

    name: str
    shapes: Sequence[Shape]
    build: Callable[..., Any]
    positive: bool = False


def conv(strides: Any, padding: Any, dilations: Any = 1) -> Callable[..., Any]:
    return lambda x, w: tf.nn.conv2d(x, w, strides, padding, dilations=dilations)


def depthwise(stride: int, padding: str, dilations: Any = None) -> Callable[..., Any]:
    return lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, stride, stride, 1], padding, dilations=dilations)


def max_pool(ksize: Any, strides: Any, padding: Any) -> Callable[..., Any]:
    # of activations, where a window often has several largest elements
    return lambda x: tf.nn.max_pool2d(tf.nn.relu(x), ksize, strides, padding)


def avg_pool(ksize: Any, strides: Any, padding: str) -> Callable[..., Any]:
    return lambda x: tf.nn.avg_pool2d(x, ksize, strides, padding)


def transposed(size: int, stride: int, padding: str) -> Callable[..., Any]:
    return lambda x, w: tf.nn.conv2d_transpose(x, w, [2, size, size, 3], stride, padding)


def batch_norm(is_training: bool, factor: float = 1.0) -> Callable[..., Any]:
    def build(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        # without a running average TensorFlow takes vectors of no element in their place
        used = (mean, variance) if factor != 1 or not is_training else (tf.zeros(0), tf.zeros(0))
        y, moved_mean, moved_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=used[0],
            variance=used[1],
            epsilon=0.01,
            exponential_avg_factor=factor,
            is_training=is_training,
        )
        return [y, tf.stop_gradient(moved_mean), tf.stop_gradient(moved_variance)]

    return build


NORM_SHAPES = [(3, 4, 5, 6), *[(6,)] * 4]
CASES = [
    Case("conv_same", [(2, 6, 7, 3), (3, 3, 3, 4)], conv(1, "SAME")),
    Case("conv_valid", [(2, 6, 7, 3), (3, 2, 3, 4)], conv(1, "VALID")),
    Case("conv_1x1", [(2, 4, 4, 3), (1, 1, 3, 4)], conv(1, "SAME")),
    Case("conv_strides_even_size", [(2, 8, 6, 3), (3, 3, 3, 4)], conv(2, "SAME")),
    Case("conv_strides_odd_size", [(2, 7, 9, 2), (5, 3, 2, 3)], conv([1, 2, 3, 1], "SAME")),
    Case("conv_strides_leave_a_rest", [(2, 8, 9, 2), (3, 3, 2, 3)], conv(2, "VALID")),
    Case("conv_stride_above_window", [(2, 7, 7, 2), (1, 1, 2, 3)], conv(3, "SAME")),
    Case("conv_even_window", [(2, 6, 6, 2), (4, 2, 2, 3)], conv(1, "SAME")),
    Case(
        "conv_explicit",
        [(2, 5, 6, 2), (3, 3, 2, 3)],
        conv([1, 2, 1, 1], [[0, 0], [2, 1], [0, 3], [0, 0]]),
    ),
    Case("conv_dilated", [(2, 9, 9, 2), (3, 3, 2, 3)], conv(1, "SAME", [1, 2, 2, 1])),
    Case("conv_dilated_valid", [(2, 9, 8, 2), (3, 2, 2, 3)], conv(1, "VALID", [1, 2, 3, 1])),
    Case("depthwise_same", [(2, 6, 7, 3), (3, 3, 3, 1)], depthwise(1, "SAME")),
    Case("depthwise_multiplier", [(2, 7, 7, 3), (3, 3, 3, 2)], depthwise(2, "SAME")),
    Case("depthwise_valid", [(2, 8, 7, 3), (2, 3, 3, 2)], depthwise(2, "VALID")),
    Case("depthwise_of_one_channel", [(2, 6, 6, 1), (3, 3, 1, 3)], depthwise(1, "VALID")),
    Case("transposed_same", [(2, 4, 4, 5), (3, 3, 3, 5)], transposed(8, 2, "SAME")),
    Case("transposed_odd", [(2, 4, 4, 5), (3, 3, 3, 5)], transposed(7, 2, "SAME")),
    Case("transposed_valid", [(2, 3, 3, 2), (2, 2, 3, 2)], transposed(6, 2, "VALID")),
    Case("max_pool_tiles", [(2, 6, 8, 3)], max_pool(2, 2, "VALID")),
    Case("max_pool_tiles_of_two_sizes", [(2, 6, 8, 3)], max_pool([3, 2], [3, 2], "SAME")),
    Case("max_pool_rest", [(2, 7, 9, 3)], max_pool(2, 2, "VALID")),
    Case("max_pool_padded", [(2, 7, 9, 3)], max_pool(2, 2, "SAME")),
    Case("max_pool_overlap", [(2, 7, 8, 3)], max_pool(3, 2, "SAME")),
    Case("max_pool_overlap_valid", [(2, 7, 8, 3)], max_pool(3, 1, "VALID")),
    Case("max_pool_gaps", [(2, 8, 8, 3)], max_pool(2, 3, "SAME")),
    Case(
        "max_pool_explicit", [(2, 6, 6, 3)], max_pool(3, 2, [[0, 0], [1, 1], [1, 0], [0, 0]]), positive=True
    ),
    Case("avg_pool_tiles", [(2, 6, 8, 3)], avg_pool(2, 2, "VALID")),
    Case("avg_pool_overlap", [(2, 7, 8, 3)], avg_pool(3, 2, "SAME")),
    Case("avg_pool_rest", [(2, 7, 9, 3)], avg_pool([3, 2], 3, "VALID")),
    Case("avg_pool_whole", [(2, 7, 5, 3)], avg_pool([7, 5], 1, "VALID")),
    Case("batch_norm", NORM_SHAPES, batch_norm(True), positive=True),
    Case("batch_norm_running", NORM_SHAPES, batch_norm(True, 0.25), positive=True),
    Case("batch_norm_frozen", NORM_SHAPES, batch_norm(False), positive=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_gradients_are_tensorflows(case: Case, both_ways: Any) -> None:
    rng = np.random.default_rng(len(case.name))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in case.shapes]
    if case.positive:
        arrays = [np.abs(array) + 0.1 for array in arrays]
    inputs = [tf1.placeholder(tf.float32, shape) for shape in case.shapes]
    built = case.build(*inputs)
    values = built if isinstance(built, list) else [built]
    # a loss with another gradient at each element, so that none can be mistaken for its neighbor's
    weights = rng.normal(size=values[0].shape).astype(np.float32)
    gradients = tf1.gradients(tf.reduce_sum(tf.sin(values[0]) * weights), inputs)
    outputs = {f"value{i}": value for i, value in enumerate(values)}
    outputs |= {f"gradient{i}": gradient for i, gradient in enumerate(gradients) if gradient is not None}
    run = both_ways(inputs, outputs, [], [arrays], mode="eval")
    for name, expected in run.session.outputs[0].items():
        got = run.compiled.outputs[0][name]
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6 * scale, err_msg=name)


def variable(name: str, shape: Sequence[int], initializer: Any, trainable: bool = True) -> Any:
    return tf1.get_variable(name, shape, initializer=initializer, trainable=trainable)


def normalized(x: Any, updates: list[Any]) -> Any:
    """Batch normalization with running moments, as a layer does it in training."""
    channels = [x.shape[-1]]
    zeros, ones = tf1.zeros_initializer(), tf1.ones_initializer()
    scale, offset = variable("gamma", channels, ones), variable("beta", channels, zeros)
    y, mean, variance = tf1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-3)
    for name, start, value in (("moving_mean", zeros, mean), ("moving_variance", ones, variance)):
        moving = variable(name, channels, start, trainable=False)
        updates.append(tf1.assign_sub(moving, (moving - value) * 0.1))
    return y


def convolved(x: Any, filters: int, stride: int = 1, bias: bool = True) -> Any:
    initializer = tf1.glorot_uniform_initializer(seed=filters)
    kernel = variable("kernel", [3, 3, x.shape[-1], filters], initializer)
    y = tf.nn.conv2d(x, kernel, stride, "SAME")
    return tf.nn.bias_add(y, variable("bias", [filters], tf1.zeros_initializer())) if bias else y


def network(size: int = 8) -> tuple[list[Any], Any, list[Any]]:
    """Inputs, loss and updates of a small network with every kind of layer."""
    x, labels = tf1.placeholder(tf.float32, [size, 12, 12, 2]), tf1.placeholder(tf.int32, [size])
    updates: list[Any] = []
    with tf1.variable_scope("conv1"):
        h = tf.nn.relu(convolved(x, 8))
    with tf1.variable_scope("pool1"):
        h = tf.nn.max_pool2d(h, 2, 2, "VALID")
    with tf1.variable_scope("conv2"):
        h = convolved(h, 12, stride=2, bias=False)
    with tf1.variable_scope("bn"):
        h = tf.nn.relu(normalized(h, updates))
    with tf1.variable_scope("logits"):
        h = tf.reshape(h, [size, -1])
        kernel = variable("kernel", [h.shape[-1], 5], tf1.glorot_uniform_initializer(seed=3))
        logits = tf.nn.bias_add(tf.matmul(h, kernel), variable("bias", [5], tf1.zeros_initializer()))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    step = tf1.train.get_or_create_global_step()
    with tf1.control_dependencies(updates):
        train = tf1.train.MomentumOptimizer(0.02, 0.9).minimize(loss, global_step=step)
    return [x, labels], loss, [train]


def batches(count: int, size: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    centers = rng.normal(size=(5, 12, 12, 2))
    found = []
    for _ in range(count):
        labels = rng.integers(0, 5, size).astype(np.int32)
        images = centers[labels] + rng.normal(size=(size, 12, 12, 2))
        found.append((images.astype(np.float32), labels))
    return found


def test_twenty_steps_train_as_tensorflow_does(both_ways: Any) -> None:
    inputs, loss, updates = network()
    run = both_ways(inputs, {"loss": loss}, updates, batches(20))
    plain = run.session.series("loss")
    assert plain[-1] < 0.5 * plain[0]
    np.testing.assert_allclose(run.compiled.series("loss"), plain, rtol=1e-5)
    assert any(name.endswith("moving_variance") for name in run.compiled.variables)
    for name, value in run.compiled.variables.items():
        np.testing.assert_allclose(value, run.session.variables[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_op_of_a_network_is_in_one_kernel_and_a_layer_is_together(graph: tf.Graph) -> None:
    inputs, loss, updates = network()
    step = import_step(graph, inputs=inputs, outputs={"loss": loss}, updates=updates, mode="train", seed=1)
    # without the gradient by the batch, which nothing reads
    run_pipeline(step.module, DEFAULT_PIPELINE)
    kernels = match_kernels(step.module)
    found = sorted(index for kernel in kernels.kernels for index in kernel.op_indices)
    count = sum(1 for op in step.module.walk() if op.name.startswith("cirh."))
    assert found == list(range(count))
    first, second = (kernels.by_name[name] for name in ("conv1", "conv2"))
    assert (first.family, second.family) == ("convolution", "convolution")
    assert first.ops.count("cirh.Convolution") == 2
    assert second.ops.count("cirh.Convolution") == 3
    assert {"cirh.Composite", "cirh.ReluGrad", "cirh.BiasAddGrad", "cirh.Momentum"} <= set(first.ops)
    sizes = {name: second.parameters[name] for name in ("rows", "inputs", "outputs", "passes")}
    assert sizes == {"rows": 9, "inputs": 72, "outputs": 12, "passes": 3}
    owners = {op: kernel.name for kernel in kernels.kernels for op in kernel.ops}
    assert owners["cirh.Pool"] == owners["cirh.MaxPoolGrad"] == "pool1"
    assert owners["cirh.FusedBatchNorm"] == owners["cirh.FusedBatchNormGrad"] == "bn"
    assert [kernel.name for kernel in kernels.kernels if kernel.generated] == []
    families = {name: kernels.by_name[name].family for name in ("pool1", "bn", owners["cirh.MatMul"])}
    assert list(families.values()) == ["pooling", "normalization", "fully_connected"]
    # scale and offset by the optimizer, both moments by the layer, and the activation
    updated = kernels.by_name["bn"].ops
    assert updated.count("cirh.Momentum") == 2
    assert updated.count("cirh.Sub") >= 4
    assert {"cirh.Relu", "cirh.ReluGrad"} <= set(updated)


def separable(size: int = 8) -> tuple[list[Any], Any, list[Any]]:
    """Depthwise and pointwise convolution, average pooling, a transposed convolution back to the image."""
    x = tf1.placeholder(tf.float32, [size, 8, 8, 3])
    with tf1.variable_scope("depthwise"):
        kernel = variable("kernel", [3, 3, 3, 2], tf1.glorot_uniform_initializer(seed=1))
        h = tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME")
    with tf1.variable_scope("pointwise"):
        kernel = variable("kernel", [1, 1, 6, 8], tf1.glorot_uniform_initializer(seed=2))
        h = tf.nn.elu(tf.nn.conv2d(h, kernel, 1, "SAME"))
    with tf1.variable_scope("pool"):
        h = tf.nn.avg_pool2d(h, 3, 2, "SAME")
    with tf1.variable_scope("up"):
        kernel = variable("kernel", [4, 4, 3, 8], tf1.glorot_uniform_initializer(seed=4))
        y = tf.nn.conv2d_transpose(h, kernel, [size, 8, 8, 3], 2, "SAME")
        y = tf.nn.bias_add(y, variable("bias", [3], tf1.zeros_initializer()))
    loss = tf.reduce_mean(tf.square(y - x))
    train = tf1.train.AdamOptimizer(0.01).minimize(loss, global_step=tf1.train.get_or_create_global_step())
    return [x], loss, [train]


def test_separable_and_transposed_convolutions_train_as_tensorflow_does(both_ways: Any) -> None:
    inputs, loss, updates = separable()
    x = np.random.default_rng(3).normal(size=(20, 8, 8, 8, 3)).astype(np.float32)
    run = both_ways(inputs, {"loss": loss}, updates, [(batch,) for batch in x])
    plain = run.session.series("loss")
    assert plain[-1] < plain[0]
    np.testing.assert_allclose(run.compiled.series("loss"), plain, rtol=1e-5)
    for name, value in run.compiled.variables.items():
        np.testing.assert_allclose(value, run.session.variables[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_kernels_of_separable_and_transposed_convolutions(graph: tf.Graph) -> None:
    inputs, loss, updates = separable()
    step = import_step(graph, inputs=inputs, outputs={"loss": loss}, updates=updates, mode="train", seed=1)
    run_pipeline(step.module, DEFAULT_PIPELINE)
    kernels = match_kernels(step.module).by_name
    sizes = {
        name: tuple(kernels[name].parameters[key] for key in ("rows", "inputs", "outputs", "passes"))
        for name in ("depthwise", "pointwise", "up")
    }
    # a row of a depthwise convolution is that of one channel; a transposed one multiplies as its gradient
    assert sizes == {"depthwise": (64, 9, 6, 2), "pointwise": (64, 6, 8, 3), "up": (16, 48, 8, 3)}
    assert {kernels[name].family for name in sizes} == {"convolution"}
    assert all("cirh.Adam" in kernels[name].ops for name in sizes)
    assert [op for op in kernels["pool"].ops if "Pool" in op] == ["cirh.Pool", "cirh.AvgPoolGrad"]
    assert kernels["pool"].family == "pooling"


def test_pooling_over_channels_is_refused(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [2, 4, 4, 6])
    y = tf.nn.max_pool2d(x, [1, 1, 1, 3], [1, 1, 1, 3], "VALID")
    with pytest.raises(GraphImportError, match=r"ksize is \[1, 1, 1, 3\]"):
        import_step(graph, inputs=[x], outputs={"y": y}, updates=[], mode="eval", seed=1)


def test_a_convolution_has_the_genuine_names_and_attributes(graph: tf.Graph) -> None:
    x, w = tf1.placeholder(tf.float32, [2, 8, 8, 3]), tf1.placeholder(tf.float32, [3, 3, 3, 4])
    y = tf.nn.conv2d(x, w, 2, "SAME")
    step = import_step(graph, inputs=[x, w], outputs={"y": y}, updates=[], mode="eval", seed=1)
    (op,) = [op for op in step.module.walk() if isinstance(op, ops.ConvolutionOp)]
    assert (op.conv_pass_direction, op.data_format, op.groups) == ("FWD", "NHWC", 1)
    # SAME of an even size puts the odd row and column of padding at the end
    assert (op.padding, op.stride, op.dilation) == ((0, 1, 0, 1), (2, 2), (1, 1))

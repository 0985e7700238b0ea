"""Resizing, borders, blocks, and images with channels first: values and gradients as TensorFlow has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from cgc.errors import GraphImportError
from cgc.importers.tensorflow import import_step
from cgc.lowering.interpret import step_function
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline

tf1 = tf.compat.v1
Shape = tuple[int, ...]
IMAGE = (2, 6, 4, 3)


@dataclass(frozen=True)
class Case:
    """`build` takes a placeholder of each shape; `reference` says the same where a session lacks the op."""

    name: str
    build: Callable[..., Any]
    shapes: Sequence[Shape] = (IMAGE,)
    reference: Callable[..., Any] | None = None


def nearest(*size: int, **flags: bool) -> Callable[[Any], Any]:
    return lambda x: tf.raw_ops.ResizeNearestNeighbor(images=x, size=size, **flags)


def bilinear(*size: int, **flags: bool) -> Callable[[Any], Any]:
    return lambda x: tf.raw_ops.ResizeBilinear(images=x, size=size, **flags)


def padded(mode: str, *amounts: tuple[int, int]) -> Callable[[Any], Any]:
    return lambda x: tf.pad(x, [(0, 0), *amounts, (0, 0)], mode)


def last(x: Any) -> Any:
    return tf.transpose(x, (0, 2, 3, 1))


def first(x: Any) -> Any:
    return tf.transpose(x, (0, 3, 1, 2))


def channels_first(name: str, function: Callable[..., Any], *shapes: Shape) -> Case:
    """The op on NCHW; in a session on NHWC between transposes. Further operands have no such order."""
    return Case(
        f"nchw_{name}",
        lambda x, *others: function(x, *others, data_format="NCHW"),
        shapes,
        lambda x, *others: first(function(last(x), *others, data_format="NHWC")),
    )


def conv(strides: Any, padding: str, dilations: Any = 1) -> Callable[..., Any]:
    return lambda x, w, data_format: tf.nn.conv2d(x, w, strides, padding, data_format, dilations)


def explicit_conv(x: Any, w: Any, data_format: str) -> Any:
    space = [[1, 0], [0, 2]]
    padding = [[0, 0], [0, 0], *space] if data_format == "NCHW" else [[0, 0], *space, [0, 0]]
    return tf.nn.conv2d(x, w, 1, padding, data_format)


def transposed(x: Any, w: Any, data_format: str) -> Any:
    shape = [2, 3, 8, 10] if data_format == "NCHW" else [2, 8, 10, 3]
    return tf.nn.conv2d_transpose(x, w, shape, 2, "SAME", data_format)


def depthwise(x: Any, w: Any, data_format: str) -> Any:
    return tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", data_format)


def bias_add(x: Any, bias: Any, data_format: str) -> Any:
    return tf.nn.bias_add(x, bias, data_format)


def batch_norm(x: Any, scale: Any, offset: Any, data_format: str) -> Any:
    return tf1.nn.fused_batch_norm(x, scale, offset, epsilon=0.01, data_format=data_format)[0]


def pool(function: Any) -> Callable[..., Any]:
    return lambda x, data_format: function(x, [3, 2], 2, "SAME", data_format)


def grouped(x: Any, w: Any) -> Any:
    return tf.nn.conv2d(x, w, 2, "SAME")


def grouped_reference(x: Any, w: Any) -> Any:
    parts = zip(tf.split(x, 3, 3), tf.split(w, 3, 3), strict=True)
    return tf.concat([tf.nn.conv2d(a, b, 2, "SAME") for a, b in parts], 3)


TRANSFORMS = np.array([[0.9, 0.2, -0.7, -0.1, 1.1, 0.4, 0.01, -0.02], [1.3, -0.4, 3.2, 0.5, 0.8, -4.1, 0, 0]])


def transformed(mode: str, interpolation: str, height: int, width: int, rows: int = 2) -> Callable[..., Any]:
    """Pixels read from other places, many of them outside of the image; one transform may serve all."""
    return lambda x: tf.raw_ops.ImageProjectiveTransformV3(
        images=x,
        transforms=tf.constant(TRANSFORMS[:rows], tf.float32),
        output_shape=[height, width],
        fill_value=0.3,
        interpolation=interpolation,
        fill_mode=mode,
    )


def max_pool_with_places(batch: bool) -> Callable[..., Any]:
    def build(x: Any) -> Any:
        found, places = tf.nn.max_pool_with_argmax(x, 3, 2, "SAME", include_batch_in_index=batch)
        return found + tf.cast(places, tf.float32)

    return build


def max_pool_v2(x: Any) -> Any:
    return tf.raw_ops.MaxPoolV2(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def batch_norm_of_moments(x: Any, scale: Any, offset: Any) -> Any:
    """Batch normalization that is not fused."""
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 0.01)


CASES = [
    Case("nearest_twice", nearest(12, 8)),
    Case("nearest_thrice_once_half_pixel", nearest(18, 4, half_pixel_centers=True)),
    Case("nearest_odd", nearest(7, 9)),
    Case("nearest_odd_half_pixel", nearest(7, 9, half_pixel_centers=True)),
    Case("nearest_corners", nearest(11, 3, align_corners=True)),
    Case("nearest_smaller", nearest(3, 2)),
    Case("bilinear_twice", bilinear(12, 8, half_pixel_centers=True)),
    Case("bilinear_twice_legacy", bilinear(12, 8)),
    Case("bilinear_odd", bilinear(7, 9, half_pixel_centers=True)),
    Case("bilinear_corners", bilinear(11, 7, align_corners=True)),
    Case("bilinear_smaller", bilinear(2, 3, half_pixel_centers=True)),
    Case("bilinear_to_one", bilinear(1, 1, align_corners=True)),
    Case("image_resize", lambda x: tf.image.resize(x, [9, 8])),
    Case("bicubic", lambda x: tf.image.resize(x, [4, 7], "bicubic")),
    Case("bicubic_legacy", lambda x: tf1.image.resize_bicubic(x, [9, 3])),
    *(
        Case(f"antialiased_{kind}", lambda x, kind=kind: tf.image.resize(x, [4, 7], kind, antialias=True))
        for kind in ("bilinear", "bicubic", "lanczos3", "gaussian", "mitchellcubic")
    ),
    Case("lanczos5", lambda x: tf.image.resize(x, [4, 7], "lanczos5")),
    Case("reflect", padded("REFLECT", (2, 1), (0, 3))),
    Case("symmetric", padded("SYMMETRIC", (6, 1), (2, 0))),
    Case("depth_to_space", lambda x: tf.nn.depth_to_space(x, 2), [(2, 3, 2, 12)]),
    Case("space_to_depth", lambda x: tf.nn.space_to_depth(x, 2)),
    Case("space_to_batch", lambda x: tf.space_to_batch(x, [2, 3], [[1, 1], [0, 2]])),
    Case("batch_to_space", lambda x: tf.batch_to_space(x, [2, 3], [[0, 1], [2, 0]]), [(12, 3, 2, 5)]),
    Case("max_pool_v2", max_pool_v2),
    Case("max_pool_with_places", max_pool_with_places(batch=False)),
    Case("max_pool_with_places_in_batch", max_pool_with_places(batch=True)),
    *(
        Case(f"transform_{mode}_{how}".lower(), transformed(mode, how, *size))
        for mode, how, size in (
            ("CONSTANT", "BILINEAR", (6, 4)),
            ("CONSTANT", "NEAREST", (4, 7)),
            ("REFLECT", "BILINEAR", (4, 7)),
            ("WRAP", "BILINEAR", (6, 4)),
            ("NEAREST", "BILINEAR", (6, 4)),
        )
    ),
    Case("transform_reflect_nearest", transformed("REFLECT", "NEAREST", 6, 4, rows=1)),
    Case("conv1d", lambda x, w: tf.nn.conv1d(x, w, 2, "SAME"), [(2, 9, 3), (4, 3, 5)]),
    Case(
        "depthwise_dilated",
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", dilations=[2, 2]),
        [(2, 7, 6, 3), (3, 3, 3, 2)],
    ),
    Case("grouped", grouped, [(2, 6, 5, 6), (3, 3, 2, 9)], grouped_reference),
    Case("batch_norm_of_moments", batch_norm_of_moments, [IMAGE, (3,), (3,)]),
    channels_first("conv", conv([2, 1], "SAME"), (2, 3, 7, 6), (3, 3, 3, 4)),
    channels_first("conv_dilated", conv(1, "VALID", 2), (2, 3, 7, 8), (3, 3, 3, 4)),
    channels_first("conv_explicit", explicit_conv, (2, 3, 5, 6), (3, 3, 3, 4)),
    channels_first("transposed", transposed, (2, 5, 4, 5), (3, 3, 3, 5)),
    channels_first("depthwise", depthwise, (2, 3, 5, 6), (3, 3, 3, 2)),
    channels_first("bias", bias_add, (2, 3, 5, 6), (3,)),
    channels_first("batch_norm", batch_norm, (2, 3, 5, 6), (3,), (3,)),
    channels_first("max_pool", pool(tf.nn.max_pool2d), (2, 3, 7, 6)),
    channels_first("avg_pool", pool(tf.nn.avg_pool2d), (2, 3, 7, 6)),
]


def values_and_gradients(
    build: Callable[..., Any], inputs: Sequence[Any], rng: np.random.Generator
) -> dict[str, Any]:
    """The loss has a different gradient at each element, so that none can be mistaken for its neighbor's."""
    value = build(*inputs)
    weights = rng.normal(size=value.shape).astype(np.float32)
    gradients = tf1.gradients(tf.reduce_sum(tf.sin(value) * weights), inputs)
    return {"value": value, **{f"gradient{i}": gradient for i, gradient in enumerate(gradients)}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_gradients_are_tensorflows(case: Case, graph: tf.Graph) -> None:
    arrays = [np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate(case.shapes)]
    inputs = [tf1.placeholder(tf.float32, shape) for shape in case.shapes]
    outputs = values_and_gradients(case.build, inputs, np.random.default_rng(9))
    plain = values_and_gradients(case.reference or case.build, inputs, np.random.default_rng(9))
    with tf1.Session() as session:
        expected = session.run(plain, dict(zip(inputs, arrays, strict=True)))
    step = import_step(graph, inputs=inputs, outputs=outputs, updates=[], mode="eval", seed=1)
    _, found = jax.jit(step_function(step.module))((), tuple(arrays))
    for (name, value), got in zip(expected.items(), found, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=5e-6, err_msg=name)


def test_transposes_between_ops_with_channels_first_cancel_out(graph: tf.Graph) -> None:
    x, w = tf1.placeholder(tf.float32, [2, 3, 8, 8]), tf1.placeholder(tf.float32, [3, 3, 3, 3])
    y = tf.nn.conv2d(x, w, 1, "SAME", data_format="NCHW")
    y = tf.nn.max_pool2d(y, 2, 2, "SAME", data_format="NCHW")
    y = tf.nn.conv2d(y, w, 1, "SAME", data_format="NCHW")
    step = import_step(graph, inputs=[x, w], outputs={"y": y}, updates=[], mode="eval", seed=1)
    run_pipeline(step.module, DEFAULT_PIPELINE)
    names = [op.name for op in step.module.walk()]
    assert names.count("cirh.Convolution") == 2
    assert names.count("cirh.Transpose") == 2


def test_a_strange_op_and_a_window_over_channels_are_reported_together(graph: tf.Graph) -> None:
    x = tf1.placeholder(tf.float32, [2, 8, 8, 4])
    moved = tf.raw_ops.Dilation2D(
        input=x, filter=tf.zeros([3, 3, 4]), strides=[1] * 4, rates=[1] * 4, padding="SAME", name="widen"
    )
    y = tf.nn.max_pool2d(x, [1, 1, 1, 2], [1, 1, 1, 2], "VALID", name="over_channels")
    with pytest.raises(GraphImportError) as caught:
        import_step(graph, inputs=[x], outputs={"y": y, "z": moved}, updates=[], mode="eval", seed=1)
    message = str(caught.value)
    assert "Dilation2D: node 'widen'" in message
    assert "result float32[2,8,8,4]" in message
    assert "over_channels" in message
    assert "expected 1 for batch and for channels" in message
    assert message.count(__file__) == 2

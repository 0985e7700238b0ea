"""Convolution, pooling and batch normalization against their definitions, written out in numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from xdsl.utils.test_value import create_ssa_value

from cgc.cirh import ops
from cgc.cirh.types import element_type, tensor_type
from cgc.lowering import convolution, windows
from cgc.lowering.jax_table import lower

Array = Any
GEOMETRY = [
    ((1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((2, 1), (1, 0, 2, 1), (1, 1), 1),
    ((1, 2), (1, 1, 1, 1), (2, 1), 1),
    ((1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((2, 2), (0, 1, 0, 1), (1, 2), 4),
    # windows that do not overlap, and rows at the end that no window reaches
    ((3, 4), (1, 0, 2, 1), (1, 2), 1),
    ((3, 2), (0, 0, 0, 0), (1, 1), 2),
    ((2, 1), (0, 0, 1, 0), (1, 1), 1),
]


def convolved(x: Array, kernel: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """The convolution in float64, one output place after the other."""
    top, bottom, left, right = padding
    padded = np.pad(x.astype(np.float64), [(0, 0), (top, bottom), (left, right), (0, 0)])
    height, width, inner, outputs = kernel.shape
    spans = [(n - 1) * d + 1 for n, d in zip((height, width), dilation, strict=True)]
    counts = [(s - span) // t + 1 for s, span, t in zip(padded.shape[1:3], spans, stride, strict=True)]
    y = np.zeros((len(x), *counts, outputs))
    for i, j in np.ndindex(*counts):
        top, left = i * stride[0], j * stride[1]
        window = padded[:, top : top + spans[0] : dilation[0], left : left + spans[1] : dilation[1]]
        for group in range(groups):
            channels = slice(group * inner, (group + 1) * inner)
            results = slice(group * outputs // groups, (group + 1) * outputs // groups)
            y[:, i, j, results] = np.einsum(
                "nhwc,hwcd->nd", window[..., channels], kernel[..., results].astype(np.float64)
            )
    return y


@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
def test_convolution_and_its_two_gradients(geometry: Any, run_op: Any, rng: np.random.Generator) -> None:
    groups = geometry[3]
    x = rng.normal(size=(2, 6, 7, 4)).astype(np.float32)
    kernel = rng.normal(size=(3, 2, 4 // groups, 8)).astype(np.float32)
    expected = convolved(x, kernel, *geometry)
    y = run_op(lambda a, b: ops.ConvolutionOp(a, b, *geometry), x, kernel)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    grad = rng.normal(size=y.shape).astype(np.float32)
    by_x = run_op(lambda a, b: ops.ConvolutionOp(a, b, *geometry, "BWD_INPUT", x.shape), grad, kernel)
    by_kernel = run_op(lambda a, b: ops.ConvolutionOp(a, b, *geometry, "BWD_KERNEL", kernel.shape), x, grad)
    # the gradients of a function that is linear in each operand, along a random direction
    for direction, gradient, moved in (
        (rng.normal(size=x.shape), by_x, lambda d: convolved(d, kernel, *geometry)),
        (rng.normal(size=kernel.shape), by_kernel, lambda d: convolved(x, d, *geometry)),
    ):
        along = np.vdot(moved(direction), grad)
        assert np.vdot(direction, gradient) == pytest.approx(along, rel=1e-4, abs=1e-4)


def test_16_bit_convolution_is_rounded_once(run_op: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(1, 5, 5, 64)).astype(np.float16)
    kernel = rng.normal(size=(5, 5, 64, 2)).astype(np.float16)
    y = run_op(ops.ConvolutionOp, x, kernel)
    expected = np.einsum("nhwc,hwcd->nd", x.astype(np.float64), kernel.astype(np.float64))
    np.testing.assert_allclose(y.reshape(1, 2), expected, rtol=2**-10, atol=1e-3)


@pytest.mark.parametrize("image", [(2, 5, 8, 3), (2, 5, 6, 4), (2, 5, 9, 16)], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_of_few_channels_is_that_of_its_columns(
    image: Any, stride: int, run_op: Any, rng: np.random.Generator
) -> None:
    geometry = ((1, stride), (1, 1, 1, 2), (2, 1), 1)
    x, kernel = rng.normal(size=image), rng.normal(size=(3, 3, image[3], 8))
    x, kernel = x.astype(np.float32), kernel.astype(np.float32)
    y = run_op(lambda a, b: ops.ConvolutionOp(a, b, *geometry), x, kernel)
    np.testing.assert_allclose(y, convolved(x, kernel, *geometry), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [(8, 4), (1, 8), (3, 9)], ids=str)
@pytest.mark.parametrize("padding", [(1, 1, 0, 1), (0, 0, 0, 0), (4, 0, 1, 2)], ids=str)
def test_gradient_by_the_kernel_of_large_images(
    channels: Any, padding: Any, run_op: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_WORK", "_CACHED", "_LARGE"):
        monkeypatch.setattr(convolution, limit, 0)
    inputs, outputs = channels
    x = rng.normal(size=(3, 16, 14, inputs)).astype(np.float32)
    top, bottom, left, right = padding
    padded = np.pad(x.astype(np.float64), [(0, 0), (top, bottom), (left, right), (0, 0)])
    kernel = (3, 2, inputs, outputs)
    height, width = padded.shape[1] - 2, padded.shape[2] - 1
    grad = rng.normal(size=(3, height, width, outputs)).astype(np.float32)
    expected = np.zeros(kernel)
    for i, j in np.ndindex(*kernel[:2]):
        place = padded[:, i : i + height, j : j + width]
        expected[i, j] = np.einsum("nhwc,nhwk->ck", place, grad.astype(np.float64))
    got = run_op(
        lambda a, b: ops.ConvolutionOp(a, b, (1, 1), padding, (1, 1), 1, "BWD_KERNEL", kernel), x, grad
    )
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def repeated(op: Any, prepare: Callable[[Any], Any], *operands: Array) -> str:
    """Compile an op in a loop, the first operand prepared in each iteration, and return XLA's program."""

    def loop(first: Any, *others: Any) -> Any:
        def turn(_: Any, x: Any) -> Any:
            return x + jnp.sum(lower(op, prepare(first + x), *others)[0])

        return jax.lax.fori_loop(0, 4, turn, 0.0)

    text: str = jax.jit(loop).lower(*operands).compile().as_text()
    return text


def symbolic(*shapes: tuple[int, ...]) -> list[Any]:
    return [create_ssa_value(tensor_type(shape, element_type("float32"))) for shape in shapes]


def test_few_channels_become_many_in_the_form_that_xla_gets() -> None:
    image, kernel = (2, 8, 8, 16), (3, 3, 16, 16)
    op = ops.ConvolutionOp(*symbolic(image, kernel), (1, 1), (1, 1, 1, 1))
    text = repeated(op, lambda x: x, np.ones(image, np.float32), np.ones(kernel, np.float32))
    # two columns of 16 channels each
    assert re.findall(r"= f32\[([\d,]+)\]\S* convolution\(", text) == ["2,8,4,32"]


def test_windows_of_few_elements_are_rows_of_a_product() -> None:
    image, kernel = (2, 8, 8, 1), (3, 3, 1, 32)
    op = ops.ConvolutionOp(*symbolic(image, kernel), (1, 1), (1, 1, 1, 1))
    text = repeated(op, lambda x: x, np.ones(image, np.float32), np.ones(kernel, np.float32))
    assert " convolution(" not in text
    assert re.findall(r"= f32\[([\d,]+)\]\S* dot\(", text) == ["128,32"]


def test_what_computes_the_image_is_not_fused_into_its_transposition() -> None:
    image, grad, kernel = (4, 8, 8, 32), (4, 8, 8, 24), (3, 3, 32, 24)
    op = ops.ConvolutionOp(*symbolic(image, grad), (1, 1), (1, 1, 1, 1), (1, 1), 1, "BWD_KERNEL", kernel)
    arrays = [np.ones(shape, np.float32) for shape in (image, grad)]
    text = repeated(op, lambda x: jnp.maximum(x * x, 0.5), *arrays)
    computations = re.split(r"\n(?=%|ENTRY)", text)
    moved = [c for c in computations if re.search(r"f32\[32,8,8,4\]\S* (transpose|copy)\(", c)]
    assert moved
    assert not [c for c in moved if "multiply(" in c or "maximum(" in c]


@pytest.mark.parametrize("channels", [(16, 16), (3, 24)], ids=str)
def test_gradient_by_the_kernel_of_large_images_takes_one_sample_at_a_time(channels: Any) -> None:
    image, grad, kernel = (32, 32, 32, channels[0]), (32, 32, 32, channels[1]), (3, 3, *channels)
    op = ops.ConvolutionOp(*symbolic(image, grad), (1, 1), (1, 1, 1, 1), (1, 1), 1, "BWD_KERNEL", kernel)
    text = repeated(op, lambda x: x, *(np.ones(shape, np.float32) for shape in (image, grad)))
    # the three columns of the window are channels of x; the operand with more channels is the kernel
    result = {(16, 16): "1,3,16,48", (3, 24): "1,3,9,24"}[channels]
    assert re.findall(r"= f32\[([\d,]+)\]\S* convolution\(", text) == [result]
    assert re.findall(r"dim_labels=(\S+?)[,\s]", text) == ["b01f_01io->b01f"]


def test_gradient_by_a_depthwise_kernel_has_a_sum_for_each_column() -> None:
    image, kernel = (2, 6, 6, 8), (5, 3, 1, 16)
    op = ops.ConvolutionOp(
        *symbolic(image, (*image[:3], 16)), (1, 1), (2, 2, 1, 1), (1, 1), 8, "BWD_KERNEL", kernel
    )
    arrays = [np.ones(shape, np.float32) for shape in (image, (*image[:3], 16))]
    text = repeated(op, lambda x: jnp.maximum(x * x, 0.5), *arrays)
    # A sum over the samples, rows and columns of an image is one of a channel.
    assert len(re.findall(r"= f32\[16\]\S* reduce\(", text)) == kernel[1]


@pytest.mark.parametrize("direction", ["FWD", "BWD_INPUT", "BWD_KERNEL"])
def test_many_groups_are_a_loop_with_the_same_bits(
    direction: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, kernel = (2, 5, 4, 16), (3, 3, 2, 24)
    result = (*image[:3], kernel[3])
    shapes = {"FWD": (image, kernel), "BWD_INPUT": (result, kernel), "BWD_KERNEL": (image, result)}[direction]
    wanted = {"BWD_INPUT": image, "BWD_KERNEL": kernel}.get(direction)
    op = ops.ConvolutionOp(*symbolic(*shapes), (1, 1), (1, 1, 1, 1), (1, 1), 8, direction, wanted)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    looped = repeated(op, lambda x: x, *arrays)
    results = [np.asarray(jax.jit(lambda *a: lower(op, *a))(*arrays)[0])]
    monkeypatch.setattr(convolution, "_MANY", 9)
    jax.clear_caches()
    results.append(np.asarray(jax.jit(lambda *a: lower(op, *a))(*arrays)[0]))
    assert " while(" in looped
    assert len(re.findall(r" (convolution|dot)\(", looped)) == 1
    np.testing.assert_array_equal(*results)


def test_places_of_windows_that_tile_the_image_are_no_array_of_its_size() -> None:
    image, window = (4, 8, 8, 24), ((2, 2), (2, 2), (0, 0, 0, 0))
    op = ops.MaxPoolGradOp(*symbolic(image, (4, 4, 4, 24)), *window)
    text = repeated(op, jnp.cos, np.ones(image, np.float32), np.ones((4, 4, 4, 24), np.float32))
    loops = [line for line in text.splitlines() if " while(" in line]
    assert loops
    # what the loop reads in each turn without changing it would be among its operands
    assert not [line for line in loops if re.search(r"[su]\d+\[4,", line)]


def test_windows_that_overlap_are_searched_once() -> None:
    image, window = (2, 12, 12, 8), ((3, 3), (2, 2), (0, 1, 0, 1))
    op = ops.MaxPoolGradOp(*symbolic(image, (2, 6, 6, 8)), *window)
    text = repeated(op, lambda x: x * 2, np.ones(image, np.float32), np.ones((2, 6, 6, 8), np.float32))
    computations = re.split(r"\n(?=%|ENTRY)", text)
    compared = [c for c in computations if "direction=EQ" in c]
    assert compared
    assert not [c for c in compared if "maximum(" in c]


WINDOWS = [
    ((2, 2), (2, 2), (0, 0, 0, 0)),
    ((3, 2), (1, 2), (1, 0, 0, 1)),
    ((3, 3), (2, 2), (1, 1, 1, 1)),
    ((1, 2), (2, 3), (0, 0, 1, 0)),
    ((3, 2), (3, 1), (0, 0, 0, 0)),
    ((2, 3), (1, 2), (1, 0, 1, 2)),
    # one window with all elements
    ((30, 20), (30, 20), (3, 21, 0, 12)),
]


def windows_of(x: Array, window: Any) -> Any:
    """Return, for each position of the result, the rows and columns of x that its window covers."""
    ksize, strides, padding = window
    counts = [
        (size + low + high - length) // stride + 1
        for size, length, stride, low, high in zip(
            x.shape[1:3], ksize, strides, padding[::2], padding[1::2], strict=True
        )
    ]
    for place in np.ndindex(*counts):
        starts = [p * stride - low for p, stride, low in zip(place, strides, padding[::2], strict=True)]
        yield (
            place,
            [
                slice(max(0, start), min(size, start + length))
                for start, length, size in zip(starts, ksize, x.shape[1:3], strict=True)
            ],
        )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("direction", ["FWD", "BWD_INPUT", "BWD_KERNEL"])
def test_convolutions_in_a_loop_have_the_form_of_the_fast_routine(direction: str, groups: int) -> None:
    # In any other form a convolution inside a loop takes 10 to 50 times as long.
    image, kernel = (2, 6, 6, 4), (3, 3, 4 // groups, 8)
    operands = {
        "FWD": (image, kernel),
        "BWD_INPUT": (grad := (2, 3, 3, 8), kernel),
        "BWD_KERNEL": (image, grad),
    }
    wanted = {"BWD_INPUT": image, "BWD_KERNEL": kernel}.get(direction)
    values = symbolic(*operands[direction])
    op = ops.ConvolutionOp(*values, (2, 2), (0, 1, 0, 1), (1, 1), groups, direction, wanted)
    text = repeated(op, lambda x: x, *(np.ones(shape, np.float32) for shape in operands[direction]))
    labels = re.findall(r"dim_labels=(\S+?)[,\s]", text)
    assert labels == ["b01f_01io->b01f"] * groups
    assert "feature_group_count" not in text


@pytest.mark.parametrize("many", [1, 64])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_pooling_and_its_gradients(
    window: Any, many: int, run_op: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_MANY_PLACES", many)
    # few different values, so that windows have several largest ones
    x = rng.integers(-2, 3, (2, 6, 8, 3)).astype(np.float32)
    largest = run_op(lambda a: ops.PoolOp(a, "MAX", *window), x)
    mean = run_op(lambda a: ops.PoolOp(a, "AVG", *window), x)
    grad = rng.normal(size=largest.shape).astype(np.float32)
    by_largest = run_op(lambda a, b: ops.MaxPoolGradOp(a, b, *window), x, grad)
    by_mean = run_op(lambda b: ops.AvgPoolGradOp(b, x.shape, *window), grad)
    to_first, spread = np.zeros(x.shape), np.zeros(x.shape)
    for (i, j), (rows, columns) in windows_of(x, window):
        part = x[:, rows, columns]
        np.testing.assert_array_equal(largest[:, i, j], part.max((1, 2)))
        np.testing.assert_allclose(mean[:, i, j], part.mean((1, 2)), rtol=1e-6, atol=1e-6)
        spread[:, rows, columns] += grad[:, i : i + 1, j : j + 1] / (part.shape[1] * part.shape[2])
        first = part.reshape(2, -1, 3).argmax(1)
        for n, c in np.ndindex(2, 3):
            row, column = divmod(int(first[n, c]), part.shape[2])
            to_first[n, rows.start + row, columns.start + column, c] += grad[n, i, j, c]
    np.testing.assert_allclose(by_largest, to_first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_mean, spread, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [-np.inf, -3e38, 0.0])
def test_pooling_of_equal_elements_takes_the_first(value: float, run_op: Any) -> None:
    x = np.full((1, 4, 4, 1), value, np.float32)
    grad = np.arange(1, 5, dtype=np.float32).reshape(1, 2, 2, 1)
    for padding in ((0, 0, 0, 0), (0, 1, 0, 1)):
        got = run_op(lambda a, b, p=padding: ops.MaxPoolGradOp(a, b, (2, 2), (2, 2), p), x, grad)
        expected = np.kron(grad[0, :, :, 0], [[1, 0], [0, 0]])
        np.testing.assert_array_equal(got[0, :, :, 0], expected)


def test_gradients_of_overlapping_windows_are_summed_in_float32(run_op: Any) -> None:
    # 1 + 2^-11 + 2^-11, added in sequence in float16, stays 1
    x = np.array([0, 0, 1, 0, 0], np.float16).reshape(1, 1, 5, 1)
    grad = np.array([1, 2.0**-11, 2.0**-11], np.float16).reshape(1, 1, 3, 1)
    got = run_op(lambda a, b: ops.MaxPoolGradOp(a, b, (1, 3), (1, 1), (0, 0, 0, 0)), x, grad)
    np.testing.assert_array_equal(got.ravel(), np.float16([0, 0, 1 + 2.0**-10, 0, 0]))


def test_batch_norm_of_float16_samples_keeps_float32_moments(run_op: Any, rng: np.random.Generator) -> None:
    # a mean far from zero: moments of 16 bits would be wrong in the first digit
    x = (rng.normal(size=(64, 3)) + 200).astype(np.float16)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    y, mean, variance, saved_mean, saved_variance = run_op(
        lambda *v: ops.FusedBatchNormOp(*v, 1e-3, 0.5, True), x, ones, zeros, zeros, ones
    )
    wide = x.astype(np.float64)
    np.testing.assert_allclose(saved_mean, wide.mean(0), rtol=1e-6)
    np.testing.assert_allclose(saved_variance, wide.var(0), rtol=1e-4)
    np.testing.assert_allclose(mean, wide.mean(0) / 2, rtol=1e-6)
    np.testing.assert_allclose(variance, 0.5 + wide.var(0, ddof=1) / 2, rtol=1e-4)
    expected = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-3)
    np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)

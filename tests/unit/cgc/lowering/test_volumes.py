"""Convolution and pooling of volumes against their definitions, written out in numpy."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from xdsl.utils.test_value import create_ssa_value

from cgc.cirh import ops
from cgc.cirh.types import element_type, tensor_type
from cgc.lowering import windows
from cgc.lowering.jax_table import lower

Array = Any
GEOMETRY = [
    ((1, 1, 1), (0, 0, 0, 0, 0, 0), (1, 1, 1), 1),
    ((2, 1, 2), (1, 0, 2, 1, 0, 1), (1, 1, 1), 1),
    ((1, 2, 1), (1, 1, 1, 1, 1, 1), (2, 1, 2), 1),
    ((2, 2, 1), (0, 1, 0, 1, 1, 0), (1, 2, 1), 2),
    # a slice at the back that no window reaches
    ((3, 1, 1), (0, 0, 1, 1, 1, 1), (1, 1, 1), 4),
]


def padded(x: Array, padding: Any, filler: float = 0.0) -> Array:
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return np.pad(x.astype(np.float64), [(0, 0), *pairs, (0, 0)], constant_values=filler)


def convolved(x: Array, kernel: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """The convolution in float64, one output place after the other."""
    x = padded(x, padding)
    *window, inner, outputs = kernel.shape
    spans = [(n - 1) * d + 1 for n, d in zip(window, dilation, strict=True)]
    counts = [(s - span) // t + 1 for s, span, t in zip(x.shape[1:4], spans, stride, strict=True)]
    y = np.zeros((len(x), *counts, outputs))
    for place in np.ndindex(*counts):
        starts = [p * s for p, s in zip(place, stride, strict=True)]
        part = x[
            (slice(None), *(slice(a, a + n, d) for a, n, d in zip(starts, spans, dilation, strict=True)))
        ]
        for group in range(groups):
            channels = slice(group * inner, (group + 1) * inner)
            results = slice(group * outputs // groups, (group + 1) * outputs // groups)
            y[(slice(None), *place, results)] = np.einsum(
                "nabcd,abcde->ne", part[..., channels], kernel[..., results].astype(np.float64)
            )
    return y


@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
def test_convolution_and_its_two_gradients(geometry: Any, run_op: Any, rng: np.random.Generator) -> None:
    groups = geometry[3]
    x = rng.normal(size=(2, 5, 6, 7, 4)).astype(np.float32)
    kernel = rng.normal(size=(2, 3, 2, 4 // groups, 8)).astype(np.float32)
    y = run_op(lambda a, b: ops.ConvolutionOp(a, b, *geometry), x, kernel)
    np.testing.assert_allclose(y, convolved(x, kernel, *geometry), rtol=1e-5, atol=1e-5)
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
    x = rng.normal(size=(1, 3, 5, 5, 64)).astype(np.float16)
    kernel = rng.normal(size=(3, 5, 5, 64, 2)).astype(np.float16)
    y = run_op(ops.ConvolutionOp, x, kernel)
    expected = np.einsum("nabcd,abcde->ne", x.astype(np.float64), kernel.astype(np.float64))
    np.testing.assert_allclose(y.reshape(1, 2), expected, rtol=2**-10, atol=1e-3)


def test_16_bit_gradients_of_overlapping_windows_are_rounded_once(run_op: Any) -> None:
    # 1 + 2^-11 + 2^-11, added in sequence in float16, stays 1
    x = np.array([0, 0, 1, 0, 0], np.float16).reshape(1, 1, 1, 5, 1)
    grad = np.array([1, 2.0**-11, 2.0**-11], np.float16).reshape(1, 1, 1, 3, 1)
    got = run_op(lambda a, b: ops.MaxPoolGradOp(a, b, (1, 1, 3), (1, 1, 1), (0,) * 6), x, grad)
    np.testing.assert_array_equal(got.ravel(), np.float16([0, 0, 1 + 2.0**-10, 0, 0]))


@pytest.mark.parametrize("direction", ["FWD", "BWD_INPUT", "BWD_KERNEL"])
def test_convolutions_in_a_loop_are_those_of_images_in_the_fast_form(direction: str) -> None:
    volume, kernel, grad = (2, 4, 6, 6, 4), (3, 3, 3, 4, 8), (2, 2, 3, 3, 8)
    shapes = {"FWD": (volume, kernel), "BWD_INPUT": (grad, kernel), "BWD_KERNEL": (volume, grad)}[direction]
    left, right = (create_ssa_value(tensor_type(shape, element_type("float32"))) for shape in shapes)
    wanted = {"BWD_INPUT": volume, "BWD_KERNEL": kernel}.get(direction)
    op = ops.ConvolutionOp(
        left, right, (2, 2, 2), (0, 1, 0, 1, 0, 1), conv_pass_direction=direction, shape=wanted
    )

    def repeated(a: Any, b: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, x: x + jnp.sum(lower(op, a + x, b)[0]), 0.0)

    arrays = [np.ones(shape, np.float32) for shape in shapes]
    text = jax.jit(repeated).lower(*arrays).compile().as_text()
    labels = re.findall(r"dim_labels=(\S+?)[,\s]", text)
    assert labels == ["b01f_01io->b01f"] * 3


WINDOWS = [
    ((2, 2, 2), (2, 2, 2), (0, 0, 0, 0, 0, 0)),
    ((3, 1, 2), (1, 2, 2), (1, 0, 0, 0, 0, 1)),
    ((2, 3, 3), (2, 2, 2), (1, 1, 1, 1, 1, 1)),
    ((1, 2, 7), (1, 2, 7), (0, 0, 0, 0, 0, 0)),
    ((6, 20, 8), (6, 20, 8), (1, 0, 0, 14, 1, 0)),
]


@pytest.mark.parametrize("many", [1, 64])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_pooling_and_its_gradients(
    window: Any, many: int, run_op: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_MANY_PLACES", many)
    ksize, strides, padding = window
    # few different values, so that windows have several largest ones
    x = rng.integers(-2, 3, (2, 5, 6, 7, 3)).astype(np.float32)
    largest = run_op(lambda a: ops.PoolOp(a, "MAX", *window), x)
    mean = run_op(lambda a: ops.PoolOp(a, "AVG", *window), x)
    grad = rng.normal(size=largest.shape).astype(np.float32)
    by_largest = run_op(lambda a, b: ops.MaxPoolGradOp(a, b, *window), x, grad)
    by_mean = run_op(lambda b: ops.AvgPoolGradOp(b, x.shape, *window), grad)
    wide, inside = padded(x, padding, -np.inf), padded(np.ones_like(x), padding)
    to_all, spread = np.zeros(wide.shape), np.zeros(wide.shape)
    for place in np.ndindex(*largest.shape[1:4]):
        cut = (
            slice(None),
            *(slice(p * s, p * s + k) for p, s, k in zip(place, strides, ksize, strict=True)),
        )
        part, own, count = wide[cut], (slice(None), *place), inside[cut].sum((1, 2, 3))
        np.testing.assert_array_equal(largest[own], part.max((1, 2, 3)))
        total = np.where(inside[cut] > 0, part, 0).sum((1, 2, 3))
        np.testing.assert_allclose(mean[own], total / count, rtol=1e-6, atol=1e-6)
        dy = grad[own][:, None, None, None]
        to_all[cut] += dy * (part == part.max((1, 2, 3), keepdims=True))
        spread[cut] += dy / count[:, None, None, None]
    back = tuple(slice(low, low + size) for low, size in zip((0, *padding[::2], 0), x.shape, strict=True))
    np.testing.assert_allclose(by_largest, to_all[back], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(by_mean, spread[back], rtol=1e-5, atol=1e-5)

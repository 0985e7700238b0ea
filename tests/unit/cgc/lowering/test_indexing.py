"""Ops that pick, order, scan and widen elements, against numpy and TensorFlow."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cgc.cirh import ops

tf = pytest.importorskip("tensorflow")

SLICES = [
    ((0, 1), (5, 7), (2, 3)),
    ((4, 6), (-1, 0), (-1, -2)),
    ((3, 0), (1, 7), (-1, 1)),
    ((2, 2), (2, 3), (1, -1)),
]


def python_slice(begin, end, strides):
    return tuple(slice(b, None if e < 0 else e, s) for b, e, s in zip(begin, end, strides, strict=True))


@pytest.mark.parametrize(("begin", "end", "strides"), SLICES)
def test_strided_slice_and_its_gradient(run_op, rng, begin, end, strides):
    x = rng.standard_normal((5, 7)).astype(np.float32)
    taken = x[python_slice(begin, end, strides)]
    np.testing.assert_array_equal(run_op(lambda v: ops.StridedSliceOp(v, begin, end, strides), x), taken)
    expected = np.zeros_like(x)
    expected[python_slice(begin, end, strides)] = taken
    got = run_op(lambda v: ops.StridedSliceGradOp(v, (5, 7), begin, end, strides), taken)
    np.testing.assert_array_equal(got, expected)


def test_unpad_is_the_inverse_of_pad(run_op, rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    padded = np.pad(x, ((1, 0), (2, 3)))
    np.testing.assert_array_equal(run_op(lambda v: ops.UnpadOp(v, (1, 2), (0, 3)), padded), x)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gather_nd(run_op, rng, depth):
    x = rng.integers(-100, 100, (3, 4, 5)).astype(np.int32)
    indices = np.stack([rng.integers(0, size, (2, 6)) for size in x.shape[:depth]], -1).astype(np.int32)
    np.testing.assert_array_equal(run_op(ops.GatherNdOp, x, indices), tf.gather_nd(x, indices))


def test_gather_nd_out_of_range_is_nan(run_op):
    got = run_op(ops.GatherNdOp, np.ones((2, 2), np.float32), np.array([[0, 0], [0, 2]], np.int32))
    np.testing.assert_array_equal(got, [1, np.nan])


@pytest.mark.parametrize(("lower", "upper"), [(0, 0), (-1, 0), (0, -1), (1, 2), (-1, -1), (2**63 - 1, 1)])
def test_matrix_band_part(run_op, rng, lower, upper):
    x = rng.standard_normal((2, 4, 5)).astype(np.float32)
    got = run_op(lambda v: ops.MatrixBandPartOp(v, lower, upper), x)
    np.testing.assert_array_equal(got, tf.linalg.band_part(x, min(lower, 4), upper))


def test_split(run_op, rng):
    x = rng.standard_normal((2, 6)).astype(np.float32)
    for got, wanted in zip(
        run_op(lambda v: ops.SplitOp(v, (1, 2, 3), -1), x), np.split(x, [1, 3], 1), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_repeat(run_op, rng, axis):
    x = rng.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_array_equal(run_op(lambda v: ops.RepeatOp(v, 3, axis), x), np.repeat(x, 3, axis))


def test_conditional_arange_numbers_the_tokens_of_a_padded_sequence(run_op):
    tokens = np.array([[True, True, False, True], [False, False, True, True]])
    got = run_op(lambda v: ops.ConditionalArangeOp(v, start=2, fill=1), tokens)
    np.testing.assert_array_equal(got, [[2, 3, 1, 4], [1, 1, 2, 3]])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_cum_prod(run_op, rng, exclusive, reverse):
    x = rng.standard_normal((3, 5)).astype(np.float32)
    got = run_op(lambda v: ops.CumProdOp(v, 1, exclusive, reverse), x)
    np.testing.assert_allclose(got, tf.math.cumprod(x, 1, exclusive, reverse), rtol=1e-6)


def test_top_k_takes_the_first_of_equals(run_op):
    x = np.array([[3, 1, 3, 2], [5, 5, 5, 6]], np.int32)
    values, indices = run_op(lambda v: ops.TopKOp(v, 3), x)
    expected = tf.math.top_k(x, 3)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(indices, expected.indices)


@pytest.mark.parametrize("reverse", [False, True])
def test_nth_order_statistic(run_op, rng, reverse):
    x = rng.standard_normal((4, 9)).astype(np.float32)
    got = run_op(lambda v: ops.NthOrderStatisticOp(v, 2, reverse), x)
    np.testing.assert_array_equal(got, np.sort(x)[:, -3 if reverse else 2])


def test_l2_norm_is_that_of_all_operands_together(run_op, rng):
    xs = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (5,), ())]
    got = run_op(ops.L2NormOp, *xs)
    np.testing.assert_allclose(got, tf.linalg.global_norm([tf.constant(x) for x in xs]), rtol=1e-6)


def test_reduce_bias(run_op, rng):
    grad = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(run_op(lambda v: ops.ReduceBiasOp(v, 1), grad), grad.sum((0, 2)), rtol=1e-5)


def test_dot_general(run_op, rng):
    lhs, rhs = (rng.standard_normal(s).astype(np.float32) for s in ((2, 5, 3, 4), (4, 2, 6, 3)))
    got = run_op(lambda a, b: ops.DotGeneralOp(a, b, (3,), (0,), (0, 2), (1, 3)), lhs, rhs)
    np.testing.assert_allclose(got, np.einsum("baxc,cbyx->bxay", lhs, rhs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "dtype", "signed", "unsigned"),
    [
        (np.array([-1, 1, -128], np.int8), "int32", [-1, 1, -128], [255, 1, 128]),
        (np.array([255, 1], np.uint8), "int32", [-1, 1], [255, 1]),
        (np.array([True, False]), "int8", [-1, 0], [1, 0]),
    ],
)
def test_extensions(run_op, values, dtype, signed, unsigned):
    np.testing.assert_array_equal(run_op(lambda v: ops.ExtSIOp(v, dtype), values), signed)
    np.testing.assert_array_equal(run_op(lambda v: ops.ExtUIOp(v, dtype), values), unsigned)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("exponent", [0, 7, -9, 200, -200])
def test_fscale(run_op, rng, dtype, exponent):
    x = rng.standard_normal(20).astype(dtype)
    got = run_op(ops.FscaleOp, x, np.int32(exponent))
    with np.errstate(over="ignore"):
        expected = np.ldexp(x.astype(np.float64), exponent).astype(dtype)
    tiny = np.abs(expected.astype(np.float64)) < float(ml_dtypes.finfo(np.float32).tiny)
    np.testing.assert_array_equal(np.where(tiny, 0, got), np.where(tiny, 0, expected))


def test_multinomial_draws_with_the_given_probabilities_and_repeats_itself(run_op):
    logits = np.log(np.float32([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]))

    def draw(step):
        return run_op(lambda s, v: ops.RandomMultinomialOp(s, v, 20000, 1, 2), np.int32(step), logits)

    first = draw(0)
    frequencies = [np.bincount(row, minlength=3) / 20000 for row in first]
    np.testing.assert_allclose(frequencies, np.exp(logits), atol=0.015)
    np.testing.assert_array_equal(draw(0), first)
    assert (draw(1) != first).any()

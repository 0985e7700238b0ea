"""Constants, movement, reductions and products against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from cgc.cirh import ops
from cgc.cirh.indexing import PADDING_INDEX
from cgc.errors import LoweringError


@pytest.mark.parametrize(
    "array",
    [
        np.float32([[1, 2], [3, 4]]),
        np.zeros((3, 0), np.float32),
        np.array(True),
        np.full((4, 5), -0.0, np.float32),
        np.full((2, 3), np.nan, np.float32),
        np.int64([-(2**31), 2**31 - 1]),
        np.array([1, 2, 300], ml_dtypes.bfloat16),
        np.uint32([2**32 - 1, 7]),
    ],
)
def test_constants_keep_every_bit(run_op, array):
    got = run_op(lambda: ops.ConstOp.from_array(array))
    expected = array.astype(np.int32) if array.dtype == np.int64 else array
    assert got.tobytes() == expected.tobytes()


def test_constant_beyond_32_bits_is_refused_with_its_value_and_place(run_op):
    def build():
        return ops.ConstOp.from_array(np.int64([1, 2**40])).set_origin("big/Const", "model.py:7")

    with pytest.raises(LoweringError, match=r"big/Const.*model\.py:7.* 1099511627776, .*32 bits"):
        run_op(build)


def test_arange(run_op):
    assert run_op(lambda: ops.ArangeOp(4, start=5, step=-2)).tolist() == [5, 3, 1, -1]
    assert run_op(lambda: ops.ArangeOp(3, dtype="float32")).tolist() == [0, 1, 2]
    assert run_op(lambda: ops.ArangeOp(3, 2**32 - 1, -(2**31) + 1, "uint32")).tolist() == [
        2**32 - 1,
        2**31,
        1,
    ]
    assert run_op(lambda: ops.ArangeOp(2, -(2**31), 2**32 - 1, "int32")).tolist() == [-(2**31), 2**31 - 1]
    assert run_op(lambda: ops.ArangeOp(1, 7, 2**62, "int8")).tolist() == [7]
    assert run_op(lambda: ops.ArangeOp(0, 2**40, dtype="int64")).tolist() == []
    with pytest.raises(LoweringError, match="Arange holds 2147483648, which does not fit into int32"):
        run_op(lambda: ops.ArangeOp(2, 2**31 - 1, dtype="int64"))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot(run_op, rng, axis):
    indices = rng.integers(-1, 6, (3, 4))
    on, off = np.float32(2), np.float32(-1)
    got = run_op(lambda i, a, b: ops.OneHotOp(i, a, b, depth=5, axis=axis), indices, on, off)
    hot = indices[..., None] == np.arange(5)
    np.testing.assert_array_equal(got, np.moveaxis(np.where(hot, on, off), -1, axis))


def test_reshape_transpose_and_broadcast(run_op, rng):
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(run_op(lambda v: ops.ReshapeOp(v, [6, 4]), x), x.reshape(6, 4))
    got = run_op(lambda v: ops.TransposeOp(v, [2, 0, 1]), x)
    np.testing.assert_array_equal(got, x.transpose(2, 0, 1))
    row = rng.standard_normal((1, 4)).astype(np.float32)
    got = run_op(lambda v: ops.BroadcastInDimOp(v, [3, 2, 4], [0, 2]), row)
    np.testing.assert_array_equal(got, np.broadcast_to(row[:, None, :], (3, 2, 4)))


def test_concat_slice_and_pad(run_op, rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)
    y = rng.standard_normal((4, 2)).astype(np.float32)
    got = run_op(lambda a, b: ops.ConcatOp([a, b], axis=1), x, y)
    np.testing.assert_array_equal(got, np.concatenate([x, y], 1))
    got = run_op(lambda v: ops.SliceOp(v, [1, 0], [4, 5], [2, 3]), x)
    np.testing.assert_array_equal(got, x[1:4:2, 0:5:3])
    got = run_op(lambda v, p: ops.PadOp(v, p, [1, 0], [0, 2]), x, np.float32(9))
    np.testing.assert_array_equal(got, np.pad(x, [(1, 0), (0, 2)], constant_values=9))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_gather(run_op, rng, axis, shape):
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    indices = rng.integers(0, x.shape[axis], shape)
    got = run_op(lambda v, i: ops.GatherOp(v, i, axis=axis), x, indices)
    np.testing.assert_array_equal(got, np.take(x, indices, axis))


def test_nothing_is_gathered_from_nothing(run_op):
    empty, none = np.zeros((2, 0), np.float32), np.zeros(0, np.int32)
    assert run_op(lambda v, i: ops.GatherOp(v, i, 1), empty, none).shape == (2, 0)
    assert run_op(ops.GatherNdOp, empty, np.zeros((0, 2), np.int32)).shape == (0,)


def test_gather_out_of_range_is_nan_not_a_neighbor(run_op):
    got = run_op(ops.GatherOp, np.float32([1, 2, 3]), np.int32([0, -1, 3]))
    np.testing.assert_array_equal(got, np.float32([1, np.nan, np.nan]))


@pytest.mark.parametrize("inner", [(), (3,), (2, 2)])
def test_scatter_adds_rows_and_drops_indices_out_of_range(run_op, rng, inner):
    indices = np.int32([3, 0, 3, -1, 5, 2])
    updates = rng.integers(-9, 9, (6, *inner)).astype(np.float32)
    got = run_op(lambda i, u: ops.ScatterNdOp(i, u, [5, *inner]), indices, updates)
    expected = np.zeros((5, *inner), np.float32)
    for row, index in enumerate(indices):
        if 0 <= index < 5:
            expected[index] += updates[row]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("inner", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8])
def test_scatter_into_rows_drops_indices_out_of_range(run_op, rng, dtype, inner):
    x = rng.integers(0, 9, (5, *inner)).astype(dtype)
    updates = rng.integers(0, 9, (5, *inner)).astype(dtype)
    indices = np.array([3, 0, -1, PADDING_INDEX, 5])
    replaced, increased = x.copy(), x.copy()
    replaced[[3, 0]] = updates[:2]
    increased[[3, 0]] += updates[:2]
    got = run_op(lambda v, i, u: ops.ScatterOp(v, i, u, "SET"), x, indices, updates)
    np.testing.assert_array_equal(got, replaced)
    got = run_op(lambda v, i, u: ops.ScatterOp(v, i, u, "ADD"), x, indices, updates)
    np.testing.assert_array_equal(got, increased)
    for kind, combine in (("MUL", np.multiply), ("MAX", np.maximum), ("MIN", np.minimum)):
        combined = x.copy()
        combined[[3, 0]] = combine(x[[3, 0]], updates[:2])
        got = run_op(lambda v, i, u, kind=kind: ops.ScatterOp(v, i, u, kind), x, indices, updates)
        np.testing.assert_array_equal(got, combined)


@pytest.mark.parametrize(("kind", "expected"), [("MUL", 24), ("MAX", 4), ("MIN", 2)])
def test_scatter_combines_rows_that_are_named_twice(run_op, kind, expected):
    operands = np.float32([1, 2]), np.int32([1, 1]), np.float32([3, 4])
    got = run_op(lambda v, i, u: ops.ScatterOp(v, i, u, kind), *operands)
    assert got.tolist() == [1, expected]


def test_scatter_counts_rows_that_are_named_twice(run_op):
    got = run_op(
        lambda v, i, u: ops.ScatterOp(v, i, u, "ADD"),
        np.float32([1, 2]),
        np.int32([1, 1]),
        np.float32([3, 4]),
    )
    assert got.tolist() == [1, 9]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_unique_pads_with_an_index_that_scatter_drops(run_op, dtype):
    x = np.array([7, 3, 7, 0, 3, 7], dtype)
    values, idx = run_op(lambda v: ops.UniqueOp(v, dtype), x)
    assert values.tolist() == [7, 3, 0, *[PADDING_INDEX] * 3]
    assert idx.tolist() == [0, 1, 0, 2, 1, 0]
    counts = run_op(lambda i, u: ops.ScatterNdOp(i, u, (6,)), idx, np.ones(6, np.float32))
    table = run_op(lambda t, i, u: ops.ScatterOp(t, i, u, "SET"), np.full(9, -1, np.float32), values, counts)
    assert table.tolist() == [1, -1, -1, 2, -1, -1, -1, 3, -1]


def test_unique_of_nothing_and_of_the_padding_itself(run_op):
    values, idx = run_op(ops.UniqueOp, np.zeros(0, np.int32))
    assert values.shape == idx.shape == (0,)
    values, idx = run_op(ops.UniqueOp, np.int32([PADDING_INDEX, 1]))
    assert (values.tolist(), idx.tolist()) == ([PADDING_INDEX, 1], [0, 1])


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("dimensions", [(0,), (1, 2), (0, 1, 2), ()])
@pytest.mark.parametrize(
    ("kind", "reference"),
    [("ADD", np.sum), ("MUL", np.prod), ("MAX", np.max), ("MIN", np.min), ("MEAN", np.mean)],
)
def test_reductions(run_op, rng, kind, reference, dimensions, keep_dims):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    got = run_op(lambda v: ops.ReduceOp(v, kind, dimensions, keep_dims), x)
    expected = reference(x.astype(np.float64), axis=dimensions, keepdims=keep_dims)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_logical_and_bitwise_reductions(run_op):
    flags = np.array([[True, False], [True, True]])
    assert run_op(lambda v: ops.ReduceOp(v, "AND", [1]), flags).tolist() == [False, True]
    assert run_op(lambda v: ops.ReduceOp(v, "OR", [0]), flags).tolist() == [True, True]
    assert run_op(lambda v: ops.ReduceOp(v, "AND", [0]), np.int32([0b110, 0b011])).item() == 0b010


def test_integers_keep_their_type_and_wrap(run_op):
    assert run_op(lambda v: ops.ReduceOp(v, "ADD", [0]), np.uint8([200, 100])).item() == 44
    assert run_op(lambda v: ops.CumSumOp(v, 0), np.int8([100, 100])).tolist() == [100, -56]


@pytest.mark.parametrize(("kind", "sign"), [("MAX", -1), ("MIN", 1)])
def test_extremes_of_no_elements_are_infinite_as_in_tensorflow(run_op, kind, sign):
    got = run_op(lambda v: ops.ReduceOp(v, kind, [0]), np.zeros((0, 2), np.float32))
    assert got.tolist() == [sign * np.inf] * 2


@pytest.mark.parametrize("kind", ["ADD", "MEAN"])
def test_16_bit_sums_do_not_overflow_or_stall_on_the_way(run_op, kind):
    """In float16 the sum would stop growing at 2048, and the mean overflow at 65504."""
    x = np.full(4096, 1 if kind == "ADD" else 100, np.float16)
    assert run_op(lambda v: ops.ReduceOp(v, kind, [0]), x).item() == (4096 if kind == "ADD" else 100)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_argmax_takes_the_first_of_equals(run_op, dtype):
    x = np.float32([[1, 3, 3], [5, 2, 5]])
    assert run_op(lambda v: ops.ArgMaxOp(v, 1, dtype), x).tolist() == [1, 0]
    assert run_op(lambda v: ops.ArgMaxOp(v, 0, dtype), x).tolist() == [1, 0, 1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumsum(run_op, rng, axis, exclusive, reverse):
    x = rng.integers(-9, 9, (4, 5)).astype(np.float32)
    got = run_op(lambda v: ops.CumSumOp(v, axis, exclusive, reverse), x)
    turned = np.flip(x, axis) if reverse else x
    expected = np.cumsum(turned, axis) - (turned if exclusive else 0)
    np.testing.assert_array_equal(got, np.flip(expected, axis) if reverse else expected)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_matmul(run_op, rng, batch, transpose_a, transpose_b):
    a = rng.standard_normal((*batch, 4, 5)).astype(np.float32)
    b = rng.standard_normal((*batch, 5, 6)).astype(np.float32)
    given_a = np.swapaxes(a, -1, -2) if transpose_a else a
    given_b = np.swapaxes(b, -1, -2) if transpose_b else b
    got = run_op(lambda x, y: ops.MatMulOp(x, y, transpose_a, transpose_b), given_a, given_b)
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-6)


def test_float32_products_have_full_precision(run_op, rng):
    """A product in TF32 or bfloat16 would be wrong in the third or fourth digit."""
    a = rng.standard_normal((64, 512)).astype(np.float32)
    b = rng.standard_normal((512, 64)).astype(np.float32)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(run_op(ops.MatMulOp, a, b), expected, atol=1e-4)


def test_16_bit_products_are_accumulated_in_float32(run_op):
    ones = np.ones((1, 4096), np.float16)
    assert run_op(lambda a, b: ops.MatMulOp(a, b, transpose_b=True), ones, ones).item() == 4096


def test_integer_products(run_op):
    a, b = np.int32([[1, 2], [3, 4]]), np.int32([[5, 6], [7, 8]])
    assert run_op(ops.MatMulOp, a, b).tolist() == (a @ b).tolist()


def test_bias_and_its_gradient(run_op, rng):
    x = rng.integers(-9, 9, (2, 3, 4)).astype(np.float32)
    bias = np.float32([1, 2, 3, 4])
    np.testing.assert_array_equal(run_op(ops.BiasAddOp, x, bias), x + bias)
    np.testing.assert_array_equal(run_op(ops.BiasAddGradOp, x), x.sum((0, 1)))

"""Values of folded ops against other sources: exact fractions, Python's own arithmetic, tables by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.passes.constant_fold import evaluate

Make = Callable[..., CirhOp]


def value_of(make: Make, *arrays: Any) -> np.ndarray | None:
    constants = [ops.ConstOp.from_array(array) for array in arrays]
    return evaluate(make(*constants), [constant.to_array() for constant in constants])


def nearest(exact: Fraction, dtype: type) -> Any:
    """The value of a dtype nearest to an exact number, ties to even, among the neighbors of a guess."""
    guess = np.asarray(float(exact)).astype(dtype)
    around = [np.nextafter(guess, dtype(-np.inf)), guess, np.nextafter(guess, dtype(np.inf))]
    distances = [abs(Fraction(float(candidate)) - exact) for candidate in around]
    best = [
        candidate for candidate, distance in zip(around, distances, strict=True) if distance == min(distances)
    ]
    even = [candidate for candidate in best if candidate.view(f"u{candidate.itemsize}") % 2 == 0]
    return best[0] if len(best) == 1 else even[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (ops.AddOp, lambda a, b: a + b),
        (ops.SubOp, lambda a, b: a - b),
        (ops.MulOp, lambda a, b: a * b),
        (ops.DivOp, lambda a, b: a / b),
    ],
)
def test_basic_arithmetic_is_correctly_rounded(
    dtype: type, make: Make, exact: Callable[..., Fraction]
) -> None:
    rng = np.random.default_rng(1)
    lhs, rhs = (rng.uniform(0.01, 9, 200).astype(dtype) for _ in range(2))
    result = value_of(make, lhs, rhs)
    assert result is not None
    for a, b, got in zip(lhs, rhs, result, strict=True):
        assert got == nearest(exact(Fraction(float(a)), Fraction(float(b))), dtype)


def test_bfloat16_is_computed_in_float32_and_rounded() -> None:
    lhs, rhs = np.float32([1.0, 3.0]), np.float32([2**-9, 1 / 3])
    bf16 = ml_dtypes.bfloat16
    result = value_of(ops.AddOp, lhs.astype(bf16), rhs.astype(bf16))
    assert result is not None
    assert result.dtype == bf16
    assert result.tolist() == [1.0, 3.328125]


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (ops.ExpOp, math.exp),
        (ops.Expm1Op, math.expm1),
        (ops.LogOp, math.log),
        (ops.Log1pOp, math.log1p),
        (ops.SqrtOp, math.sqrt),
        (ops.RsqrtOp, lambda x: 1 / math.sqrt(x)),
        (ops.ReciprocalOp, lambda x: 1 / x),
        (ops.SinOp, math.sin),
        (ops.CosOp, math.cos),
        (ops.TanhOp, math.tanh),
        (ops.SigmoidOp, lambda x: 1 / (1 + math.exp(-x))),
        (ops.ErfOp, math.erf),
        (ops.SoftplusOp, lambda x: math.log1p(math.exp(x))),
        (ops.EluOp, lambda x: x),
        (ops.FloorOp, math.floor),
        (ops.CeilOp, math.ceil),
        (ops.RoundOp, round),
        (ops.AbsOp, abs),
    ],
)
def test_functions_are_right_to_the_last_bit_of_float32(
    make: Make, function: Callable[[float], float]
) -> None:
    x = np.float32([0.5, 1.0, 1.5, 2.5, 3.1])
    result = value_of(make, x)
    assert result is not None
    expected = np.array([function(float(number)) for number in x]).astype(np.float32)
    assert np.abs(result.view(np.int32) - expected.view(np.int32)).max() <= 1


@pytest.mark.parametrize(
    ("make", "arrays", "expected"),
    [
        (ops.RoundOp, [np.float32([0.5, 1.5, -0.5, 2.5])], [0, 2, 0, 2]),
        (ops.SignOp, [np.float32([-3, 0, 5])], [-1, 0, 1]),
        (ops.EluOp, [np.float32([-np.inf, 2])], [-1, 2]),
        (ops.ReluOp, [np.int32([-1, 0, 4])], [0, 0, 4]),
        (ops.FloorDivOp, [np.int32([7, -7, 7]), np.int32([2, 2, -2])], [3, -4, -4]),
        (ops.FloorModOp, [np.int32([7, -7, 7]), np.int32([2, 2, -2])], [1, 1, -1]),
        (ops.PowOp, [np.int32([2, 3, 0]), np.int32([10, 3, 0])], [1024, 27, 1]),
        (ops.Atan2Op, [np.float32([0.0]), np.float32([1.0])], [0]),
        (ops.NotOp, [np.array([True, False])], [False, True]),
        (ops.NotOp, [np.uint8([0, 255])], [255, 0]),
        (ops.XorOp, [np.int32([5, 6]), np.int32([1, 6])], [4, 0]),
        (lambda a, b: ops.CompareOp(a, b, "LE"), [np.float32([1, 2]), np.float32([1, np.nan])], [1, 0]),
        (lambda a, b: ops.CompareOp(a, b, "NE"), [np.float32([1, 2]), np.float32([1, np.nan])], [0, 1]),
        (ops.SelectOp, [np.array([True, False]), np.int32([1, 2]), np.int32([3, 4])], [1, 4]),
        (ops.ClampOp, [np.float32([-5, 0.5, 9]), np.float32(0), np.float32(1)], [0, 0.5, 1]),
        (lambda x: ops.CastOp(x, "int32"), [np.float32([1.9, -1.9])], [1, -1]),
        (lambda x: ops.CastOp(x, "bool"), [np.float32([0.25, 0, np.nan])], [True, False, True]),
        (lambda x: ops.CastOp(x, "int8"), [np.int32([300, -129])], [44, 127]),
        (lambda i, a, b: ops.OneHotOp(i, a, b, 3), [np.int32([2, -1]), np.float32(5), np.float32(1)],
         [[1, 1, 5], [1, 1, 1]]),
        (lambda x: ops.BroadcastInDimOp(x, (2, 3), (0,)), [np.int32([1, 2])], [[1, 1, 1], [2, 2, 2]]),
        (lambda a, b: ops.ConcatOp([a, b], 0), [np.int32([1]), np.int32([2, 3])], [1, 2, 3]),
        (lambda x, v: ops.PadOp(x, v, (1,), (2,)), [np.int32([7]), np.int32(9)], [9, 7, 9, 9]),
        (lambda x, i: ops.GatherOp(x, i, 1), [np.int32([[1, 2, 3]]), np.int32([[2], [0]])], [[[3], [1]]]),
        (lambda i, u: ops.ScatterNdOp(i, u, (3,)), [np.int32([0, 2, 2, 5, -1]), np.int32([1, 2, 3, 4, 5])],
         [1, 0, 5]),
        (lambda x: ops.ReduceOp(x, "MEAN", (0,)), [np.float32([[1, 2], [3, 4]])], [2, 3]),
        (lambda x: ops.ReduceOp(x, "MAX", (0, 1), keep_dims=True), [np.int32([[1, 2], [3, 4]])], [[4]]),
        (lambda x: ops.ReduceOp(x, "OR", (0,)), [np.array([True, False])], True),
        (lambda x: ops.ReduceOp(x, "ADD", (0,)), [np.float32([1e8, 1, -1e8])], 1),
        (lambda x: ops.ArgMaxOp(x, 0), [np.float32([1, 5, 5])], 1),
        (lambda x: ops.CumSumOp(x, 0, reverse=True), [np.int32([1, 2, 3])], [6, 5, 3]),
        (lambda x: ops.CumSumOp(x, 0, exclusive=True, reverse=True), [np.int32([1, 2, 3])], [5, 3, 0]),
        (lambda a, b: ops.MatMulOp(a, b, True, True), [np.int32([[1], [2]]), np.int32([[3, 4]]).T], None),
        (ops.BiasAddOp, [np.int32([[1, 2]]), np.int32([10, 20])], [[11, 22]]),
        (ops.BiasAddGradOp, [np.int32([[[1, 2]], [[3, 4]]])], [4, 6]),
    ],
)  # fmt: skip
def test_values(make: Make, arrays: list[np.ndarray], expected: Any) -> None:
    if expected is None:
        arrays, expected = [np.int32([[1, 2], [3, 4]]), np.int32([[5, 6], [7, 8]])], [[23, 31], [34, 46]]
    result = value_of(make, *arrays)
    assert result is not None
    assert result.tolist() == expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ops.ArangeOp(3, 5, -2), [5, 3, 1]),
        (ops.ArangeOp(0, 300, 1, "uint8"), []),
        (ops.ArangeOp(2, 0, 128, "uint8"), [0, 128]),
        (ops.ArangeOp(1, 7, 2**63 - 1), [7]),
        (ops.ArangeOp(3, 0, 128, "bfloat16"), [0, 128, 256]),
        (ops.ArangeOp(2, 257, 2, "bfloat16"), [256, 260]),
        (ops.ArangeOp(2, 2**31 - 1, 1, "int64"), None),
    ],
)
def test_arange_counts_in_integers_within_32_bits(op: ops.ArangeOp, expected: list[int] | None) -> None:
    result = evaluate(op, [])
    assert (None if result is None else result.tolist()) == expected


@pytest.mark.parametrize(
    ("make", "arrays"),
    [
        (ops.FloorDivOp, [np.int32([1]), np.int32([0])]),
        (ops.MulOp, [np.int64([2**30]), np.int64([2])]),
        (ops.NegOp, [np.int64([2**40])]),
        (lambda x: ops.CastOp(x, "int32"), [np.float32([np.nan])]),
        (lambda x: ops.CastOp(x, "int32"), [np.float32([2**31])]),
        (lambda x: ops.ReduceOp(x, "ADD", (0,)), [np.zeros((0, 2), np.float32)]),
        (lambda x, i: ops.GatherOp(x, i), [np.float32([1]), np.int32([-1])]),
        (lambda x: ops.CumLogSumExpOp(x, 0), [np.float32([1])]),
        (lambda step: ops.RandomUniformOp(step, (4,), 1, 2), [np.int32(5)]),
    ],
)
def test_some_ops_are_left_to_the_device(make: Make, arrays: list[np.ndarray]) -> None:
    assert value_of(make, *arrays) is None


X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
MASK = np.array([[True, False, True, True]])
PICKED: list[tuple[Make, list[Any], Any]] = [
    (lambda x: ops.CumProdOp(x, 1, exclusive=True), [X[:1]], [[1, 1, 2, 6]]),
    (lambda x: ops.CumProdOp(x, 1, reverse=True), [X[:1]], [[24, 24, 12, 4]]),
    (lambda x: ops.MatrixBandPartOp(x, -1, 0), [np.ones((2, 3), bool)], [[1, 0, 0], [1, 1, 0]]),
    (lambda x: ops.MatrixBandPartOp(x, 0, -1), [np.ones((2, 3), bool)], [[1, 1, 1], [0, 1, 1]]),
    (lambda x: ops.StridedSliceOp(x, (2, 0), (-1, 4), (-2, 3)), [X], X[::-2, ::3]),
    (lambda g: ops.StridedSliceGradOp(g, (5,), (4,), (-1,), (-2,)), [X[0, :3]], [3, 0, 2, 0, 1]),
    (lambda x: ops.UnpadOp(x, (1, 0), (0, 3)), [X], X[1:, :1]),
    (ops.GatherNdOp, [X, np.int32([[2, 1], [0, 3]])], [10, 4]),
    (ops.GatherNdOp, [X, np.int32([[1], [0]])], X[[1, 0]]),
    (lambda x: ops.RepeatOp(x, 2, 0), [X[:2, 0]], [1, 1, 5, 5]),
    (lambda x: ops.ConditionalArangeOp(x, start=2, fill=-1), [MASK], [[2, -1, 3, 4]]),
    (lambda x: ops.ExtSIOp(x, "int32"), [np.uint8([200, 3])], [-56, 3]),
    (lambda x: ops.ExtUIOp(x, "int32"), [np.int8([-56, 3])], [200, 3]),
    (lambda x: ops.ExtSIOp(x, "int8"), [MASK[0]], [-1, 0, -1, -1]),
]


@pytest.mark.parametrize(("make", "arrays", "expected"), PICKED)
def test_ops_that_pick_elements(make: Make, arrays: list[Any], expected: Any) -> None:
    np.testing.assert_array_equal(value_of(make, *arrays), expected)


def test_coordinates_out_of_range_are_left_to_the_device() -> None:
    assert value_of(ops.GatherNdOp, X, np.int32([[3, 0]])) is None

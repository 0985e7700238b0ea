"""Elementwise lowerings against numpy in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from cgc.cirh import ops

FLOATS = np.array([-7.5, -3, -1.5, -1, -0.5, -1e-4, -0.0, 0, 1e-4, 0.5, 1, 1.5, 2.5, 3, 7.5], np.float32)
POSITIVE = np.array([1e-6, 0.1, 0.5, 1, 1.5, 2, 10, 1000], np.float32)

erf = np.vectorize(math.erf, otypes=[float])


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    ops.NegOp: np.negative,
    ops.AbsOp: np.abs,
    ops.ExpOp: np.exp,
    ops.Expm1Op: np.expm1,
    ops.SinOp: np.sin,
    ops.CosOp: np.cos,
    ops.TanhOp: np.tanh,
    ops.SigmoidOp: sigmoid,
    ops.SignOp: np.sign,
    ops.FloorOp: np.floor,
    ops.CeilOp: np.ceil,
    ops.RoundOp: np.rint,
    ops.ErfOp: erf,
    ops.ReluOp: lambda x: np.maximum(x, 0),
    ops.EluOp: lambda x: np.where(x > 0, x, np.expm1(x)),
    ops.SoftplusOp: lambda x: np.logaddexp(x, 0),
    ops.GeluOp: gelu,
    ops.LeakyReluOp: lambda x: np.where(x > 0, x, np.float32(0.2) * x),
}


@pytest.mark.parametrize(("op", "reference"), UNARY.items(), ids=lambda p: getattr(p, "name", ""))
def test_unary_ops_are_their_functions(run_op, op, reference):
    expected = reference(FLOATS.astype(np.float64))
    np.testing.assert_allclose(run_op(op, FLOATS), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        (ops.LogOp, np.log),
        (ops.Log1pOp, np.log1p),
        (ops.SqrtOp, np.sqrt),
        (ops.RsqrtOp, lambda x: 1 / np.sqrt(x)),
        (ops.ReciprocalOp, lambda x: 1 / x),
    ],
)
def test_functions_of_positive_numbers(run_op, op, reference):
    expected = reference(POSITIVE.astype(np.float64))
    np.testing.assert_allclose(run_op(op, POSITIVE), expected, rtol=1e-6, atol=1e-7)


def test_halves_round_to_even(run_op):
    assert run_op(ops.RoundOp, np.float32([0.5, 1.5, 2.5, -0.5, -2.5])).tolist() == [0, 2, 2, 0, -2]


def test_extreme_arguments_stay_finite_where_the_function_is(run_op):
    far = np.float32([-1e4, -100, 100, 1e4])
    assert run_op(ops.SoftplusOp, far).tolist() == [0, 0, 100, 1e4]
    assert run_op(ops.SigmoidOp, far).tolist() == pytest.approx([0, 0, 1, 1])
    assert run_op(ops.EluOp, far).tolist() == [-1, -1, 100, 1e4]
    assert run_op(ops.TanhOp, far).tolist() == [-1, -1, 1, 1]


def test_nan_is_not_hidden_by_relu_and_max(run_op):
    nan = np.float32([np.nan])
    assert np.isnan(run_op(ops.ReluOp, nan)).all()
    assert np.isnan(run_op(ops.MaxOp, nan, np.float32([1]))).all()


def test_is_finite(run_op):
    values = np.float32([0, np.inf, -np.inf, np.nan, 3e38])
    assert run_op(ops.IsFiniteOp, values).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize("op", [ops.GeluOp, ops.GeluGradOp])
@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_and_its_gradient(run_op, op, approximate):
    function = gelu_tanh if approximate else gelu
    x = FLOATS.astype(np.float64)
    if op is ops.GeluOp:
        got = run_op(lambda v: op(v, approximate=approximate), FLOATS)
        np.testing.assert_allclose(got, function(x), rtol=2e-6, atol=2e-7)
    else:
        grad = np.linspace(-2, 2, len(x)).astype(np.float32)
        got = run_op(lambda g, f: op(g, f, approximate=approximate), grad, FLOATS)
        h = 1e-5
        expected = grad * (function(x + h) - function(x - h)) / (2 * h)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_gelu_is_exact_to_a_rounding_of_x(run_op):
    x = np.linspace(-12, 12, 2001).astype(np.float32)
    error = np.abs(run_op(ops.GeluOp, x) - gelu(x.astype(np.float64)))
    assert (error <= 2e-7 * np.maximum(np.abs(x), 1e-3)).all()


GRADS = {
    ops.ReluGradOp: lambda g, x: g * (x > 0),
    ops.LeakyReluGradOp: lambda g, x: np.where(x > 0, g, np.float32(0.2) * g),
    ops.SoftplusGradOp: lambda g, x: g * sigmoid(x),
    ops.EluGradOp: lambda g, y: np.where(y > 0, g, g * (y + 1)),
}


@pytest.mark.parametrize(("op", "reference"), GRADS.items(), ids=lambda p: getattr(p, "name", ""))
def test_gradients_of_activations(run_op, rng, op, reference):
    grad = rng.standard_normal(len(FLOATS)).astype(np.float32)
    got = run_op(op, grad, FLOATS)
    np.testing.assert_allclose(got, reference(grad.astype(np.float64), FLOATS), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("op", "reference"),
    [(ops.SigmoidGradOp, lambda y, g: g * y * (1 - y)), (ops.TanhGradOp, lambda y, g: g * (1 - y * y))],
)
def test_gradients_from_outputs(run_op, rng, op, reference):
    outputs = rng.uniform(-1, 1, 20).astype(np.float32)
    grad = rng.standard_normal(20).astype(np.float32)
    np.testing.assert_allclose(run_op(op, outputs, grad), reference(outputs, grad), rtol=1e-5, atol=1e-6)


def test_relu_grad_drops_infinite_gradients_of_dead_units(run_op):
    assert run_op(ops.ReluGradOp, np.float32([np.inf, np.nan]), np.float32([-1, 0])).tolist() == [0, 0]


BINARY = {
    ops.AddOp: np.add,
    ops.SubOp: np.subtract,
    ops.MulOp: np.multiply,
    ops.DivOp: np.divide,
    ops.MaxOp: np.maximum,
    ops.MinOp: np.minimum,
    ops.FloorDivOp: np.floor_divide,
    ops.FloorModOp: np.mod,
    ops.Atan2Op: np.arctan2,
}


@pytest.mark.parametrize(("op", "reference"), BINARY.items(), ids=lambda p: getattr(p, "name", ""))
def test_binary_ops_on_floats(run_op, rng, op, reference):
    left, right = rng.uniform(-9, 9, (2, 4, 25)).astype(np.float32)
    np.testing.assert_allclose(run_op(op, left, right), reference(left, right), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint32])
@pytest.mark.parametrize("op", [o for o in BINARY if o not in (ops.DivOp, ops.Atan2Op)])
def test_binary_ops_on_integers(run_op, rng, op, dtype):
    low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -11
    left, right = rng.integers(low, 11, (2, 50)).astype(dtype)
    right[right == 0] = 3
    np.testing.assert_array_equal(run_op(op, left, right), BINARY[op](left, right))


def test_power(run_op):
    base, exponent = np.float32([2, 9, 0.5, 10]), np.float32([3, 0.5, -2, 0])
    np.testing.assert_allclose(run_op(ops.PowOp, base, exponent), [8, 3, 4, 1], rtol=1e-6)
    assert run_op(ops.PowOp, np.int32([2, -3, 7]), np.int32([10, 3, 0])).tolist() == [1024, -27, 1]
    # 7 ** 100 modulo 2 ** 32
    assert run_op(ops.PowOp, np.int32([7]), np.int32([100])).tolist() == [1027218017]


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.uint8])
def test_logic_on_bools_and_bits(run_op, rng, dtype):
    left, right = rng.integers(0, 2 if dtype is np.bool_ else 100, (2, 40)).astype(dtype)
    assert (run_op(ops.AndOp, left, right) == left & right).all()
    assert (run_op(ops.OrOp, left, right) == left | right).all()
    assert (run_op(ops.XorOp, left, right) == left ^ right).all()
    assert (run_op(ops.NotOp, left) == ~left).all()


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("EQ", [False, True, False, False]),
        ("NE", [True, False, True, True]),
        ("LT", [True, False, False, False]),
        ("LE", [True, True, False, False]),
        ("GT", [False, False, True, False]),
        ("GE", [False, True, True, False]),
    ],
)
def test_comparisons_nan_included(run_op, direction, expected):
    left, right = np.float32([1, 2, 3, np.nan]), np.float32([2, 2, 2, np.nan])
    assert run_op(lambda a, b: ops.CompareOp(a, b, direction), left, right).tolist() == expected


def test_select_and_clamp(run_op):
    x = np.float32([-2, 0, 2])
    assert run_op(ops.SelectOp, x > 0, x, -x).tolist() == [2, 0, 2]
    assert run_op(ops.ClampOp, x, np.float32(-1), np.float32(1)).tolist() == [-1, 0, 1]


def test_cast_cuts_fractions_and_narrows_64_bits(run_op):
    x = np.float32([-1.9, -0.5, 0, 0.5, 2.9])
    assert run_op(lambda v: ops.CastOp(v, "int64"), x).tolist() == [-1, 0, 0, 0, 2]
    assert run_op(lambda v: ops.CastOp(v, "bool"), x).tolist() == [True, True, False, True, True]
    assert run_op(lambda v: ops.CastOp(v, "float32"), np.array([True, False])).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_cast_to_16_bits_rounds_or_truncates(run_op, rng, dtype):
    x = np.concatenate([rng.standard_normal(500) * 10.0 ** rng.integers(-6, 5, 500), [0, -0.0, np.inf, 1e38]])
    x = x.astype(np.float32)
    nearest = run_op(lambda v: ops.CastOp(v, dtype), x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(nearest, x.astype(dtype))
    cut = run_op(lambda v: ops.CastOp(v, dtype, truncate=True), x).astype(np.float32)
    assert (np.abs(cut) <= np.abs(x)).all()
    exact = nearest.astype(np.float32) == x
    np.testing.assert_array_equal(cut[exact], x[exact])
    inside = np.isfinite(nearest.astype(np.float32)) & np.isfinite(x)
    x, cut, nearest = x[inside], cut[inside], nearest[inside]
    unit = np.nextafter(nearest, dtype(np.inf)).astype(np.float32) - nearest.astype(np.float32)
    assert (np.abs(x - cut) <= 2 * np.abs(unit)).all()

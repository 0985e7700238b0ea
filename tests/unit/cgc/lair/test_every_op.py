"""Every op that becomes a loop nest, against its JAX lowering: out of range, 16 bits, no elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.ir import Block

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.types import tensor_type
from cgc.lair import from_jaxpr
from cgc.lair.build import Array, Builder
from cgc.lair.from_jaxpr import MAX_EQUATIONS, build_nests, is_expressible
from cgc.lair.lower import lower_group
from cgc.lair.nest import loop_program
from cgc.lair.passes import LairCsePass, LairDcePass, LairFusePass
from cgc.lowering.evaluate import PRIMITIVES, evaluate_lowering
from cgc.lowering.jax_table import lower
from tests.unit.cgc.lair_interpreter import run

Make = Callable[..., CirhOp]
Values = NDArray[Any]

GENERATOR = np.random.default_rng(7)
X = GENERATOR.normal(size=(4, 6)).astype(np.float32)
Y = GENERATOR.normal(size=(4, 6)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
ROW = GENERATOR.normal(size=6).astype(np.float32)
HALF = X.astype(np.float16)
CUBE = GENERATOR.normal(size=(2, 3, 4)).astype(np.float32)
COUNTS = GENERATOR.integers(-9, 10, (4, 6)).astype(np.int32)
DIVISORS = np.where(GENERATOR.random((4, 6)) < 0.5, -3, 4).astype(np.int32)
UNSIGNED = np.array([0, 1, 2**31, 2**32 - 1], np.uint32)
BYTES = np.array([0, 1, 128, 255], np.uint8)
SMALL = np.array([-128, -1, 0, 127], np.int8)
FLAGS = X > 0
OTHER_FLAGS = Y > 0
LABELS = np.array([1, 5, 0, 3], np.int32)
WRONG_LABELS = np.array([1, -1, 6, 3], np.int32)
EDGES = np.array([-2.5, -0.0, 0.0, 0.5, np.inf, np.nan], np.float32)
ONE, HALF_ONE = np.float32(1), np.float32(0.5)
RATES = [np.float32(value) for value in (0.9, 0.99, 0.01, 0.9, 0.99, 1e-3)]
MOMENTS = [X.mean(1, keepdims=True), 1 / np.sqrt(X.var(1, keepdims=True) + np.float32(1e-3))]


def named(names: str) -> list[Make]:
    return [getattr(ops, f"{name}Op") for name in names.split()]


CASES: list[tuple[str, Make, Sequence[Values]]] = [
    *[(op.name, op, (X, Y)) for op in named("Add Sub Mul Div Max Min FloorDiv FloorMod Atan2")],  # type: ignore[attr-defined]
    *[(f"{op.name} edges", op, (EDGES, EDGES[::-1].copy())) for op in named("Max Min Add Mul")],  # type: ignore[attr-defined]
    *[
        (f"{op.name} int", op, (COUNTS, DIVISORS))
        for op in named("Add Sub Mul Max Min FloorDiv FloorMod And Or Xor")
    ],  # type: ignore[attr-defined]
    *[
        (f"{op.name} unsigned", op, (UNSIGNED, UNSIGNED[::-1] | 1))
        for op in named("Add Mul Max Min FloorDiv FloorMod")
    ],  # type: ignore[attr-defined]
    *[(f"{op.name} bool", op, (FLAGS, OTHER_FLAGS)) for op in named("And Or Xor")],  # type: ignore[attr-defined]
    *[
        (op.name, op, (X,))  # type: ignore[attr-defined]
        for op in named(
            "Neg Abs Exp Expm1 Sin Cos Tanh Sigmoid Sign Floor Ceil Round Erf Relu Elu Softplus "
            "HardSigmoid Gelu LeakyRelu"
        )
    ],
    *[(op.name, op, (POSITIVE,)) for op in named("Log Log1p Sqrt Rsqrt Reciprocal")],  # type: ignore[attr-defined]
    *[(f"{op.name} edges", op, (EDGES,)) for op in named("Sign IsFinite Relu Abs Round")],  # type: ignore[attr-defined]
    *[
        (op.name, op, (X, Y))  # type: ignore[attr-defined]
        for op in named(
            "ReluGrad EluGrad LeakyReluGrad SigmoidGrad TanhGrad GeluGrad SoftplusGrad HardSigmoidGrad"
        )
    ],
    ("elu gradient of features", lambda g, x: ops.EluGradOp(g, x, from_features=True), (X, Y)),
    ("gelu tanh", lambda x: ops.GeluOp(x, approximate=True), (X,)),
    ("gelu tanh gradient", lambda g, x: ops.GeluGradOp(g, x, approximate=True), (X, Y)),
    ("pow", ops.PowOp, (POSITIVE, Y)),
    ("pow int", ops.PowOp, (COUNTS, np.abs(DIVISORS))),
    ("neg int", ops.NegOp, (COUNTS,)),
    ("not", ops.NotOp, (FLAGS,)),
    ("not int", ops.NotOp, (COUNTS,)),
    *[
        (f"compare {d}", lambda x, y, d=d: ops.CompareOp(x, y, d), (EDGES, EDGES[::-1].copy()))
        for d in ("EQ", "NE", "LT", "GE")
    ],
    ("compare unsigned", lambda x, y: ops.CompareOp(x, y, "LT"), (UNSIGNED, UNSIGNED[::-1].copy())),
    ("select", ops.SelectOp, (FLAGS, X, Y)),
    ("clamp", ops.ClampOp, (X, -HALF_ONE, HALF_ONE)),
    *[
        (f"cast {d}", lambda x, d=d: ops.CastOp(x, d), (X * 3,))
        for d in ("int32", "bool", "float16", "bfloat16")
    ],
    *[
        (f"cast unsigned {d}", lambda x, d=d: ops.CastOp(x, d), (BYTES,))
        for d in ("int32", "float32", "uint32", "bool")
    ],
    ("cast signed", lambda x: ops.CastOp(x, "int32"), (SMALL,)),
    ("cast narrower", lambda x: ops.CastOp(x, "int8"), (COUNTS,)),
    ("cast half to brain", lambda x: ops.CastOp(x, "bfloat16"), (HALF,)),
    ("cast towards zero", lambda x: ops.CastOp(x, "float16", truncate=True), (X,)),
    ("cast towards zero to brain", lambda x: ops.CastOp(x, "bfloat16", truncate=True), (X,)),
    ("extend signed", lambda x: ops.ExtSIOp(x, "int32"), (BYTES,)),
    ("extend unsigned", lambda x: ops.ExtUIOp(x, "int32"), (SMALL,)),
    ("extend a flag", lambda x: ops.ExtSIOp(x, "int32"), (FLAGS,)),
    ("arange", lambda: ops.ArangeOp(5, start=7, step=-2), ()),
    ("arange unsigned", lambda: ops.ArangeOp(3, 2**32 - 1, -(2**31) + 1, "uint32"), ()),
    ("arange far", lambda: ops.ArangeOp(2, -(2**31), 2**32 - 1, "int32"), ()),
    ("arange float", lambda: ops.ArangeOp(5, dtype="float32"), ()),
    ("one hot", lambda i, on, off: ops.OneHotOp(i, on, off, 6), (WRONG_LABELS, ONE, -ONE)),
    ("one hot in front", lambda i, on, off: ops.OneHotOp(i, on, off, 6, axis=0), (LABELS, ONE, -ONE)),
    ("gather", ops.GatherOp, (X, np.array([[3, 0], [1, 4]], np.int32))),
    ("gather columns", lambda x, i: ops.GatherOp(x, i, 1), (X, WRONG_LABELS)),
    ("gather whole numbers", ops.GatherOp, (COUNTS, WRONG_LABELS)),
    ("gather unsigned", ops.GatherOp, (UNSIGNED, WRONG_LABELS)),
    ("gather by coordinates", ops.GatherNdOp, (CUBE, np.array([[0, 2], [1, 5]], np.int32))),
    ("strided slice", lambda x: ops.StridedSliceOp(x, (3, 0), (-1, 6), (-1, 2)), (X,)),
    ("strided slice gradient", lambda x: ops.StridedSliceGradOp(x, (9, 6), (7, 0), (-1, 6), (-2, 1)), (X,)),
    ("slice", lambda x: ops.SliceOp(x, (0, 1), (2, 6), (1, 2)), (X,)),
    ("unpad", lambda x: ops.UnpadOp(x, (0, 1), (1, 2)), (X,)),
    ("pad", lambda x, v: ops.PadOp(x, v, (0, 1), (1, 2)), (X, ONE)),
    ("concat", lambda x, y, z: ops.ConcatOp([x, y, z], 1), (X, X[:, :2], Y)),
    ("split", lambda x: ops.SplitOp(x, (2, 1, 3), 1), (X,)),
    ("repeat", lambda x: ops.RepeatOp(x, 3, 0), (X,)),
    ("band", lambda x: ops.MatrixBandPartOp(x, 1, -1), (CUBE,)),
    ("wide band", lambda x: ops.MatrixBandPartOp(x, 2**63 - 1, 1), (CUBE,)),
    ("triangle", lambda x: ops.MatrixBandPartOp(x, -1, 0), (CUBE,)),
    ("reshape", lambda x: ops.ReshapeOp(x, (3, 8)), (X,)),
    ("transpose", lambda x: ops.TransposeOp(x, (1, 2, 0)), (CUBE,)),
    ("broadcast", lambda x: ops.BroadcastInDimOp(x, (3, 4, 6), (1, 2)), (MOMENTS[0],)),
    *[
        (f"reduce {k}", lambda x, k=k: ops.ReduceOp(x, k, (0, 2)), (CUBE,))
        for k in ("ADD", "MUL", "MAX", "MIN", "MEAN")
    ],
    *[(f"reduce {k}", lambda x, k=k: ops.ReduceOp(x, k, (1,), True), (FLAGS,)) for k in ("AND", "OR")],
    ("reduce int", lambda x: ops.ReduceOp(x, "AND", (1,)), (COUNTS,)),
    ("reduce unsigned", lambda x: ops.ReduceOp(x, "MAX", (0,)), (UNSIGNED,)),
    ("mean half", lambda x: ops.ReduceOp(x, "MEAN", (0,)), (HALF,)),
    ("reduce nothing", lambda x: ops.ReduceOp(x, "MEAN", ()), (X,)),
    ("argmax", lambda x: ops.ArgMaxOp(x, 1, "int32"), (np.maximum(X, 0),)),
    ("argmax NaN", lambda x: ops.ArgMaxOp(x, 0), (np.float32([1, np.nan, 3, np.nan]),)),
    *[
        (f"scan {exclusive} {reverse}", lambda x, e=exclusive, r=reverse: ops.CumSumOp(x, 1, e, r), (CUBE,))
        for exclusive in (False, True)
        for reverse in (False, True)
    ],
    ("running maximum", lambda x: ops.CumMaxOp(x, 1, True), (CUBE,)),
    ("running maximum of integers", lambda x: ops.CumMaxOp(x, 0, False, True), (COUNTS,)),
    ("running product", lambda x: ops.CumProdOp(x, 2, True, True), (CUBE,)),
    ("matmul", lambda a, b: ops.MatMulOp(a, b, transpose_a=True), (X, Y)),
    ("matmul batch", lambda a, b: ops.MatMulOp(a, b, transpose_b=True), (CUBE, CUBE)),
    ("matmul half", lambda a, b: ops.MatMulOp(a, b, transpose_b=True), (HALF, HALF)),
    (
        "dot",
        lambda a, b: ops.DotGeneralOp(a, b, (2,), (1,), (0,), (0,)),
        (CUBE, CUBE.transpose(0, 2, 1).copy()),
    ),
    ("bias", ops.BiasAddOp, (CUBE, ROW[:4])),
    ("bias gradient", ops.BiasAddGradOp, (CUBE,)),
    ("bias of a dimension", lambda x: ops.ReduceBiasOp(x, 1), (CUBE,)),
    *[
        (f"composite {f}", lambda x, b, f=f: ops.CompositeOp(x, b, f), (X, ROW))
        for f in ("BiasGelu", "BiasGeluTanh", "BiasRelu")
    ],
    ("softmax", lambda x: ops.SoftmaxOp(x, 1), (CUBE,)),
    ("softmax half", ops.SoftmaxOp, (HALF,)),
    ("log softmax", ops.LogSoftmaxOp, (X,)),
    ("softmax gradient", ops.SoftmaxGradOp, (X, Y)),
    ("cross entropy", ops.SparseSoftmaxCrossEntropyWithLogitsOp, (X, WRONG_LABELS)),
    (
        "cross entropy of rows that count",
        lambda x, i: ops.SparseSoftmaxCrossEntropyWithLogitsOp(x, i, ignore_out_of_range=True),
        (X, WRONG_LABELS),
    ),
    ("cross entropy of bytes", ops.SparseSoftmaxCrossEntropyWithLogitsOp, (X, np.uint8([1, 255, 6, 3]))),
    ("cross entropy of shares", ops.SoftmaxCrossEntropyWithLogitsOp, (X, np.abs(Y))),
    ("norm", ops.L2NormOp, (X, ROW)),
    ("layer norm", ops.LayerNormOp, (X, ROW, ROW)),
    ("layer norm gradient", ops.LayerNormGradOp, (Y, X, ROW, *MOMENTS)),
    ("gradient descent", ops.GradientDescentOp, (X, ONE, Y)),
    ("momentum", lambda *v: ops.MomentumOp(*v, use_nesterov=True), (X, Y, ONE, Y, HALF_ONE)),
    ("adam", ops.AdamOp, (X, Y, POSITIVE, *RATES, Y)),
    ("adam nesterov", lambda *v: ops.AdamOp(*v, use_nesterov=True), (X, Y, POSITIVE, *RATES, Y)),
    ("adam of the paper", lambda *v: ops.AdamOp(*v, corrected_epsilon=True), (X, Y, POSITIVE, *RATES, Y)),
    ("adam decay", ops.AdamWOp, (X, Y, POSITIVE, *RATES, Y, HALF_ONE)),
    ("rms", ops.RMSPropOp, (X, POSITIVE, Y, *RATES[2:], Y)),
    ("adagrad", ops.AdagradOp, (X, POSITIVE, ONE, Y)),
    ("pool", lambda x: ops.PoolOp(x, "MAX", (2, 2), (2, 2)), (X.reshape(1, 4, 6, 1),)),
    ("pool of volumes", lambda x: ops.PoolOp(x, "MAX", (1, 2, 2), (1, 2, 2)), (X.reshape(1, 2, 2, 6, 1),)),
]


def built(make: Make, arguments: Sequence[Values]) -> CirhOp:
    block = Block(arg_types=[tensor_type(value.shape, value.dtype) for value in arguments])
    op = make(*block.args)
    op.verify()
    return op


@pytest.fixture(scope="module")
def results() -> dict[str, list[Values]]:
    """Compute the results of every case with JAX in one program, since compiling takes most of the time."""
    cases = {name: (make, [np.asarray(value) for value in arguments]) for name, make, arguments in CASES}
    ops_of_cases = {name: built(make, arguments) for name, (make, arguments) in cases.items()}

    def all_of_them(values: dict[str, list[Any]]) -> dict[str, tuple[Any, ...]]:
        return {name: lower(op, *values[name]) for name, op in ops_of_cases.items()}

    arguments = {name: values for name, (_, values) in cases.items()}
    program = jax.jit(all_of_them).lower(arguments).compile({"xla_backend_optimization_level": 0})
    found = program(arguments)
    return {name: [np.asarray(value) for value in values] for name, values in found.items()}


@pytest.mark.parametrize(("name", "make", "arguments"), CASES, ids=[case[0] for case in CASES])
def test_a_loop_nest_computes_the_values_of_the_op(
    results: dict[str, list[Values]], name: str, make: Make, arguments: Sequence[Values]
) -> None:
    arguments = [np.asarray(value) for value in arguments]
    op = built(make, arguments)
    module = lower_group([op], op.operands, op.results)
    expected = results[name]
    loose = any(value.dtype.itemsize == 2 for value in (*arguments, *expected))
    for module_pass in (None, LairFusePass(), LairCsePass(), LairDcePass()):
        if module_pass is not None:
            module_pass.apply(Context(), module)
        module.verify()
        for got, wanted in zip(run(module, arguments), expected, strict=True):
            assert got.shape == wanted.shape
            same_bits = got.view(wanted.dtype) if got.dtype.itemsize == wanted.dtype.itemsize else got
            np.testing.assert_allclose(
                same_bits.astype(np.float64),
                wanted.astype(np.float64),
                rtol=2e-3 if loose else 2e-5,
                atol=1e-3 if loose else 2e-6,
            )
    assert all(nest.call is None for nest in loop_program(module).nests)


OUT_OF_RANGE = [name for name, *_ in CASES if name.startswith("gather")]


@pytest.mark.parametrize(("name", "make", "arguments"), CASES, ids=[case[0] for case in CASES])
def test_numpy_computes_it_from_constants(
    results: dict[str, list[Values]], name: str, make: Make, arguments: Sequence[Values]
) -> None:
    arguments = [np.asarray(value) for value in arguments]
    op = built(make, arguments)
    if len(op.results) > 1:
        return
    got, (wanted,) = evaluate_lowering(op, arguments), results[name]
    if name in OUT_OF_RANGE:
        assert got is None
        return
    assert got is not None
    assert got.shape == wanted.shape
    loose = any(value.dtype.itemsize == 2 for value in (*arguments, wanted))
    np.testing.assert_allclose(
        got.astype(np.float64),
        wanted.astype(np.float64),
        rtol=2e-3 if loose else 2e-5,
        atol=1e-3 if loose else 2e-6,
    )


def test_numpy_has_every_primitive_of_loop_nests() -> None:
    nests = {*from_jaxpr._POINTWISE, *from_jaxpr._MOVES, *from_jaxpr._NESTS}
    assert {*PRIMITIVES} == {*nests, "scatter-add"}


EXTERN: list[tuple[str, Make, Sequence[Values], str]] = [
    ("unique", ops.UniqueOp, (LABELS,), "for i in 0..4, j in 0..2: Unique, reduce over i, j"),
    (
        "scatter",
        lambda x, i, u: ops.ScatterOp(x, i, u, "ADD"),
        (X, LABELS[:2], Y[:2]),
        "for i in 0..2, j in 0..6: Scatter, reduce over i",
    ),
    (
        "scatter sum",
        lambda i, u: ops.ScatterNdOp(i, u, (9, 6)),
        (LABELS, X),
        "for i in 0..4, j in 0..6: ScatterNd, reduce over i",
    ),
    (
        "largest",
        lambda x: ops.TopKOp(x, 2),
        (X,),
        "for i in 0..4, j in 0..6, k in 0..3: TopK, reduce over j, k",
    ),
    (
        "random",
        lambda s: ops.RandomUniformOp(s, (4, 6), 1, 2),
        (np.int32(5),),
        "for i in 0..4, j in 0..6: RandomUniform",
    ),
    (
        "scatter maximum",
        lambda x, i, u: ops.ScatterOp(x, i, u, "MAX"),
        (X, LABELS[:2], Y[:2]),
        "for i in 0..2, j in 0..6: Scatter, reduce over i",
    ),
    ("no elements", ops.SinOp, (X[:0],), "for i in 0..0, j in 0..6: Sin"),
]


@pytest.mark.parametrize(("make", "arguments", "loops"), [c[1:] for c in EXTERN], ids=[c[0] for c in EXTERN])
def test_ops_that_linalg_cannot_express_are_named(
    make: Make, arguments: Sequence[Values], loops: str
) -> None:
    arguments = [np.asarray(value) for value in arguments]
    op = built(make, arguments)
    module = lower_group([op], op.operands, op.results)
    for got, wanted in zip(run(module, arguments), lower(op, *map(jnp.asarray, arguments)), strict=True):
        np.testing.assert_array_equal(got, np.asarray(wanted))
    (nest,) = loop_program(module).nests
    assert nest.describe() == loops


def _chain(length: int) -> Callable[[jax.Array], jax.Array]:
    def compute(x: jax.Array) -> jax.Array:
        for _ in range(length):
            x = jnp.sin(x)
        return x

    return compute


@pytest.mark.parametrize(
    ("compute", "expressible"),
    [
        (_chain(MAX_EQUATIONS), True),
        (_chain(MAX_EQUATIONS + 1), False),
        (lambda x: jnp.real(jnp.exp(x * 1j)), False),
        (lambda x: x + np.arange(6, dtype=np.float32), False),
        (lambda x: jnp.concatenate([x, x[:0]]), False),
        (lambda x: jax.lax.select_n(x.astype(jnp.int32) % 3, x, x, x), False),
        (lambda x: jax.lax.pad(x, jnp.float32(0), ((-1, 0, 1), (0, 0, 0))), False),
    ],
    ids=["long", "too long", "complex", "tensor", "empty", "three cases", "negative border"],
)
def test_a_jaxpr_is_translated_or_refused_before_anything_is_added(
    compute: Callable[[jax.Array], jax.Array], expressible: bool
) -> None:
    jaxpr = jax.make_jaxpr(compute)(X)
    assert is_expressible(jaxpr) is expressible
    if expressible:
        block = Block(arg_types=[tensor_type(X.shape, X.dtype)])
        (result,) = build_nests(Builder(block), jaxpr, [Array(block.args[0], "float32")])
        assert result.shape == X.shape

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerAttr, StringAttr, TensorType, f64, i32
from xdsl.ir import Block
from xdsl.traits import Commutative, ConstantLike, Pure
from xdsl.utils.exceptions import VerifyException

from cgc.cirh import ops
from cgc.cirh.base import LAYER, CirhOp
from cgc.cirh.types import tensor_type
from cgc.errors import CompileError, InvalidOpError, UnsupportedTypeError

OPERANDS = {
    "x": ((2, 3), "float32"),
    "y": ((2, 3), "float32"),
    "z": ((3, 2), "float32"),
    "h": ((2, 3), "float16"),
    "p": ((2, 3), "bool"),
    "n": ((2, 3), "int32"),
    "i": ((2,), "int32"),
    "q": ((4, 2, 3), "float32"),
    "k": ((2,), "int32"),
    "s": ((), "float32"),
    "t": ((), "int64"),
    "e": ((2, 0), "float32"),
    "w": ((2, 2), "float32"),
    "b": ((3,), "float32"),
}


@pytest.fixture
def v() -> SimpleNamespace:
    block = Block(arg_types=[tensor_type(shape, dtype) for shape, dtype in OPERANDS.values()])
    return SimpleNamespace(**dict(zip(OPERANDS, block.args, strict=True)))


Build = Callable[[SimpleNamespace], CirhOp]

RESULTS: list[tuple[Build, str]] = [
    (lambda v: ops.CompareOp(v.x, v.y, "LT"), "tensor<2x3xi1>"),
    (lambda v: ops.IsFiniteOp(v.h), "tensor<2x3xi1>"),
    (lambda v: ops.CastOp(v.x, "bfloat16"), "tensor<2x3xbf16>"),
    (lambda v: ops.CastOp(v.p, np.uint32), "tensor<2x3xui32>"),
    (lambda v: ops.ArangeOp(5), "tensor<5xi32>"),
    (lambda v: ops.ArangeOp(3, 255, -127, "uint8"), "tensor<3xui8>"),
    (lambda v: ops.ArangeOp(0, 2**40, dtype="int8"), "tensor<0xi8>"),
    (lambda v: ops.GatherOp(v.e, v.i), "tensor<2x0xf32>"),
    (lambda v: ops.ConditionalArangeOp(v.p, 2**31 - 4, -(2**31)), "tensor<2x3xi32>"),
    (lambda v: ops.OneHotOp(v.i, v.s, v.s, 7), "tensor<2x7xf32>"),
    (lambda v: ops.OneHotOp(v.i, v.s, v.s, 7, axis=0), "tensor<7x2xf32>"),
    (lambda v: ops.OneHotOp(v.i, v.s, v.s, 7, axis=-2), "tensor<7x2xf32>"),
    (lambda v: ops.ReshapeOp(v.q, (6, 4)), "tensor<6x4xf32>"),
    (lambda v: ops.TransposeOp(v.q, (2, 0, 1)), "tensor<3x4x2xf32>"),
    (lambda v: ops.BroadcastInDimOp(v.s, (2, 3), ()), "tensor<2x3xf32>"),
    (lambda v: ops.ConcatOp([v.x, v.e, v.y], -1), "tensor<2x6xf32>"),
    (lambda v: ops.SliceOp(v.q, (1, 0, 0), (4, 2, 3), (2, 1, 2)), "tensor<2x2x2xf32>"),
    (lambda v: ops.SliceOp(v.x, (2, 0), (2, 3)), "tensor<0x3xf32>"),
    (lambda v: ops.PadOp(v.x, v.s, (1, 0), (0, 2)), "tensor<3x5xf32>"),
    (lambda v: ops.GatherOp(v.q, v.n, axis=1), "tensor<4x2x3x3xf32>"),
    (lambda v: ops.GatherOp(v.x, v.t), "tensor<3xf32>"),
    (lambda v: ops.ScatterNdOp(v.i, v.x, (10, 3)), "tensor<10x3xf32>"),
    (lambda v: ops.UniqueOp(v.i), "tensor<2xi32>"),
    (lambda v: ops.ScatterOp(v.z, v.i, v.w, "SET"), "tensor<3x2xf32>"),
    (lambda v: ops.ScatterOp(v.p, v.i, v.p, "SET"), "tensor<2x3xi1>"),
    (lambda v: ops.ReduceOp(v.q, "ADD", (0, -1)), "tensor<2xf32>"),
    (lambda v: ops.ReduceOp(v.q, "MEAN", (0, -1), keep_dims=True), "tensor<1x2x1xf32>"),
    (lambda v: ops.ArgMaxOp(v.x, -1), "tensor<2xi64>"),
    (lambda v: ops.ArgMaxOp(v.x, 0, "int32"), "tensor<3xi32>"),
    (lambda v: ops.MatMulOp(v.x, v.z), "tensor<2x2xf32>"),
    (lambda v: ops.MatMulOp(v.x, v.y, transpose_a=True), "tensor<3x3xf32>"),
    (lambda v: ops.MatMulOp(v.x, v.y, transpose_b=True), "tensor<2x2xf32>"),
    (lambda v: ops.MatMulOp(v.z, v.x, transpose_a=True, transpose_b=True), "tensor<2x2xf32>"),
    (lambda v: ops.MatMulOp(v.q, v.q, transpose_a=True), "tensor<4x3x3xf32>"),
    (lambda v: ops.BiasAddGradOp(v.q), "tensor<3xf32>"),
    (lambda v: ops.RandomUniformOp(v.t, (4, 4), 1, 2), "tensor<4x4xf32>"),
    (lambda v: ops.KeyedRandomNormalOp(v.k, v.t, (4,)), "tensor<4xf32>"),
    (lambda v: ops.StatelessRandomUniformOp(v.k, (4,)), "tensor<4xf32>"),
]


@pytest.mark.parametrize(("build", "expected"), RESULTS, ids=lambda x: x if isinstance(x, str) else "")
def test_constructors_infer_the_result_type(v: SimpleNamespace, build: Build, expected: str) -> None:
    op = build(v)
    assert str(op.results[0].type) == expected
    op.verify()


def test_ops_of_several_results(v: SimpleNamespace) -> None:
    sparse = ops.SparseSoftmaxCrossEntropyWithLogitsOp(v.x, v.i)
    assert [str(r.type) for r in (sparse.loss, sparse.backprop)] == ["tensor<2xf32>", "tensor<2x3xf32>"]
    adam = ops.AdamOp(v.x, v.y, v.y, v.s, v.s, v.s, v.s, v.s, v.s, v.y, use_nesterov=True)
    assert {str(r.type) for r in (adam.new_param, adam.new_m, adam.new_v)} == {"tensor<2x3xf32>"}
    assert adam.use_nesterov
    assert (adam.param, adam.beta1_power, adam.grad) == (v.x, v.s, v.y)
    unique = ops.UniqueOp(v.i, "int64")
    assert [str(r.type) for r in (unique.values, unique.idx)] == ["tensor<2xi32>", "tensor<2xi64>"]
    loop = ops.StartTokenLoopOp(v.n)
    assert [str(r.type) for r in (loop.current, loop.index)] == ["tensor<2x3xi32>", "tensor<2x1xi32>"]


def _update(v: SimpleNamespace, update: Any = None, starts: Sequence[int] = (1,)) -> CirhOp:
    loop = ops.StartTokenLoopOp(v.n)
    stop = ops.ReshapeOp(v.n, (2, 1, 3))
    return ops.UpdateTokenLoopOp(loop.current, loop.index, update or loop.index, stop, starts, 3)


FAULTS: list[tuple[Build, str]] = [
    (lambda v: ops.AddOp(v.x, v.z), "cirh.Add: rhs has type tensor<3x2xf32>, expected tensor<2x3xf32>"),
    (lambda v: ops.AddOp(v.x, v.h), "cirh.Add: rhs has type tensor<2x3xf16>, expected tensor<2x3xf32>"),
    (lambda v: ops.AddOp(v.p, v.p), "cirh.Add: lhs has type tensor<2x3xi1>, expected an element type of"),
    (lambda v: ops.DivOp(v.n, v.n), "cirh.Div: lhs has type tensor<2x3xi32>, expected an element type of"),
    (lambda v: ops.AndOp(v.x, v.x), "cirh.And: lhs"),
    (lambda v: ops.ExpOp(v.n), "cirh.Exp: x has type tensor<2x3xi32>"),
    (lambda v: ops.LeakyReluOp(v.x, float("nan")), "alpha is nan, expected a finite number"),
    (lambda v: ops.CompareOp(v.x, v.y, "<"), "direction is '<', expected one of EQ, NE, LT, LE, GT, GE"),
    (lambda v: ops.SelectOp(v.n, v.x, v.y), "cond has type tensor<2x3xi32>, expected tensor<2x3xi1>"),
    (lambda v: ops.ClampOp(v.x, v.x, v.s), "minimum has type tensor<2x3xf32>, expected rank 0"),
    (lambda v: ops.ClampOp(v.x, v.s, v.t), "maximum has type tensor<i64>, expected element type f32"),
    (
        lambda v: ops.ReshapeOp(v.x, (4, 2)),
        "cannot reshape tensor<2x3xf32> of 6 elements to the shape (4, 2)",
    ),
    (lambda v: ops.ReshapeOp(v.x, (-2, -3)), "sizes must be 0 or more"),
    (lambda v: ops.TransposeOp(v.x, (0, 0)), "permutation is (0, 0), expected each of 0 to 1 once"),
    (lambda v: ops.BroadcastInDimOp(v.x, (2, 4), (0, 1)), "has size 3, expected 1 or 4"),
    (lambda v: ops.BroadcastInDimOp(v.x, (3, 2), (1, 0)), "expected 2 rising dimensions"),
    (lambda v: ops.ConcatOp([], 0), "got no operands"),
    (lambda v: ops.ConcatOp([v.x, v.z], 0), "operand 1 has type tensor<3x2xf32>"),
    (lambda v: ops.ConcatOp([v.x, v.h], 0), "operand 1 has type tensor<2x3xf16>"),
    (lambda v: ops.SliceOp(v.x, (0, 0), (3, 3)), "expected 0 <= start <= limit <= 2"),
    (lambda v: ops.SliceOp(v.x, (0, 0), (2, 3), (1, 0)), "a stride of 1 or more"),
    (lambda v: ops.SliceOp(v.x, (0,), (2,)), "expected 2 of each"),
    (lambda v: ops.PadOp(v.x, v.s, (-1, 0), (0, 0)), "2 sizes of 0 or more"),
    (lambda v: ops.GatherOp(v.x, v.y), "indices has type tensor<2x3xf32>"),
    (lambda v: ops.GatherOp(v.x, v.i, 2), "axis is 2, expected 0 <= axis < 2"),
    (lambda v: ops.GatherOp(v.e, v.i, 1), "x has type tensor<2x0xf32>, expected elements to pick along"),
    (lambda v: ops.GatherNdOp(v.e, v.i), "expected elements to pick in its first 2 dimensions"),
    (lambda v: ops.ArangeOp(3, 250, 3, "uint8"), "counts from 250 to 256 in steps of 3, expected numbers"),
    (lambda v: ops.ArangeOp(2, 0, 2**31, "float32"), "expected numbers from -2147483648 to 2147483647"),
    (lambda v: ops.ConditionalArangeOp(v.p, 2**31 - 3), "expected 32-bit integers, and so the last number"),
    (lambda v: ops.ConditionalArangeOp(v.p, 0, 2**31), "start is 0 and fill 2147483648"),
    (lambda v: ops.ScatterNdOp(v.n, v.x, (5, 3)), "expected [N] and [N, ...]"),
    (lambda v: ops.ScatterNdOp(v.i, v.x, (5, 4)), "result shape is (5, 4)"),
    (lambda v: ops.ScatterNdOp(v.i, v.x, (5, 3), "MAX"), "reduce_kind is 'MAX'"),
    (lambda v: ops.UniqueOp(v.n), "x has type tensor<2x3xi32>, expected rank 1"),
    (lambda v: ops.UniqueOp(v.b), "x has type tensor<3xf32>, expected an element type of int32, int64"),
    (lambda v: ops.UniqueOp(v.i, "uint32"), "idx has type tensor<2xui32>"),
    (lambda v: ops.StartTokenLoopOp(v.x), "tokens has type tensor<2x3xf32>"),
    (lambda v: ops.StartTokenLoopOp(v.i), "tokens has type tensor<2xi32>, expected [B, S]"),
    (lambda v: _update(v, v.n), "update has type tensor<2x3xi32>, expected tensor<2x1xi32>"),
    (lambda v: _update(v, starts=()), "got 0 start_tokens and max_tokens 3, expected 1 or more of each"),
    (lambda v: ops.ScatterOp(v.x, v.i, v.x, "AND"), "reduce_kind is 'AND', expected one of SET, ADD, MUL"),
    (lambda v: ops.ScatterOp(v.p, v.i, v.p, "MAX"), "x has type tensor<2x3xi1>"),
    (lambda v: ops.ScatterOp(v.p, v.i, v.p, "ADD"), "x has type tensor<2x3xi1>"),
    (lambda v: ops.ScatterOp(v.s, v.i, v.x, "SET"), "x has type tensor<f32>, expected rank 1 or more"),
    (lambda v: ops.ScatterOp(v.x, v.n, v.x, "SET"), "indices has type tensor<2x3xi32>, expected rank 1"),
    (lambda v: ops.ScatterOp(v.x, v.b, v.x, "SET"), "indices has type tensor<3xf32>"),
    (
        lambda v: ops.ScatterOp(v.x, v.i, v.w, "SET"),
        "updates has type tensor<2x2xf32>, expected tensor<2x3xf32>",
    ),
    (lambda v: ops.ScatterOp(v.x, v.i, v.h, "ADD"), "updates has type tensor<2x3xf16>"),
    (lambda v: ops.ReduceOp(v.x, "SUM", (0,)), "reduce_kind is 'SUM', expected one of ADD"),
    (lambda v: ops.ReduceOp(v.x, "ADD", (0, 0)), "dimensions is (0, 0)"),
    (lambda v: ops.ReduceOp(v.x, "ADD", (2,)), "dimensions is (2,), expected rising dimensions"),
    (lambda v: ops.ReduceOp(v.n, "MEAN", (0,)), "x has type tensor<2x3xi32>"),
    (lambda v: ops.ArgMaxOp(v.e, 1), "dimension 1 of tensor<2x0xf32> is empty"),
    (lambda v: ops.ArgMaxOp(v.x, 0, "float32"), "result has type tensor<3xf32>"),
    (lambda v: ops.MatMulOp(v.x, v.y), "contracted dimension of a has size 3, expected 2"),
    (lambda v: ops.MatMulOp(v.x, v.i), "expected rank 2 or more"),
    (lambda v: ops.MatMulOp(v.q, v.x), "equal leading dimensions"),
    (lambda v: ops.BiasAddOp(v.x, v.i), "bias has type tensor<2xi32>, expected tensor<3xf32>"),
    (lambda v: ops.BiasAddOp(v.s, v.i), "x has type tensor<f32>, expected rank 1 or more"),
    (lambda v: ops.SoftmaxOp(v.x, 2), "axis is 2"),
    (lambda v: ops.SparseSoftmaxCrossEntropyWithLogitsOp(v.x, v.n), "expected [..., C] and [...]"),
    (lambda v: ops.RandomUniformOp(v.s, (4,), 1, 2), "step has type tensor<f32>"),
    (lambda v: ops.KeyedRandomUniformOp(v.k, v.s, (4,)), "step has type tensor<f32>"),
    (lambda v: ops.KeyedRandomUniformOp(v.t, v.t, (4,)), "key has type tensor<i64>, expected tensor<2xi32>"),
    (lambda v: ops.StatelessRandomUniformOp(v.t, (4,)), "key has type tensor<i64>, expected tensor<2xi32>"),
    (lambda v: ops.GradientDescentOp(v.x, v.x, v.y), "lr has type tensor<2x3xf32>, expected rank 0"),
    (lambda v: ops.MomentumOp(v.x, v.z, v.s, v.y, v.s), "accum has type tensor<3x2xf32>"),
]


@pytest.mark.parametrize(("build", "message"), FAULTS, ids=[message[:40] for _, message in FAULTS])
def test_constructors_refuse_what_does_not_fit(v: SimpleNamespace, build: Build, message: str) -> None:
    with pytest.raises(InvalidOpError) as caught:
        build(v)
    assert message in str(caught.value)
    assert str(caught.value).startswith("cirh.")


def test_the_verifier_compares_the_declared_result_type(v: SimpleNamespace) -> None:
    op = ops.AddOp.create(operands=[v.x, v.y], result_types=[tensor_type((2, 4), "float32")])
    with pytest.raises(VerifyException, match=r"result type is tensor<2x4xf32>, expected tensor<2x3xf32>"):
        op.verify_()


def test_the_verifier_wants_all_attributes_of_their_type(v: SimpleNamespace) -> None:
    result = tensor_type((2, 3), "float32")
    missing = ops.SoftmaxOp.create(operands=[v.x], result_types=[result])
    with pytest.raises(VerifyException, match="axis"):
        missing.verify_()
    wrong = ops.SoftmaxOp.create(
        operands=[v.x], result_types=[result], properties={"axis": IntegerAttr(1, i32)}
    )
    with pytest.raises(VerifyException, match=r"axis|i32"):
        wrong.verify_()


def test_the_verifier_refuses_misspelled_attributes(v: SimpleNamespace) -> None:
    op = ops.MatMulOp(v.x, v.z)
    op.attributes["transposed"] = IntegerAttr(1, i32)
    with pytest.raises(
        InvalidOpError, match="unknown attribute 'transposed', expected transpose_a, transpose_b"
    ):
        op.verify_()


@pytest.mark.parametrize("bad", [TensorType(f64, [2, 3]), TensorType(i32, [DYNAMIC_INDEX, 3]), i32])
def test_only_static_tensors_of_known_elements_are_operands(bad: TensorType[object]) -> None:
    block = Block(arg_types=[bad])
    with pytest.raises(InvalidOpError, match=r"cast to f32 first|must be static|expected a ranked tensor"):
        ops.NegOp(block.args[0])


def test_float64_is_refused_with_a_cure(v: SimpleNamespace) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"'float64' is not supported .cast to float32 first."):
        ops.CastOp(v.x, "float64")
    with pytest.raises(CompileError, match="float64"):
        ops.ConstOp.from_array(np.zeros(3, np.float64))


def test_ops_take_ops_as_operands(v: SimpleNamespace) -> None:
    assert ops.ReluOp(ops.AddOp(v.x, v.y)).x.owner.name == "cirh.Add"


def test_attributes_read_as_python_values(v: SimpleNamespace) -> None:
    assert ops.TransposeOp(v.x, [1, 0]).permutation == (1, 0)
    assert ops.MatMulOp(v.x, v.z).transpose_a is False
    assert ops.CompareOp(v.x, v.y, "GE").direction == "GE"
    assert ops.SoftmaxOp(v.x).axis == 1
    assert ops.LeakyReluOp(v.x, 0.5).alpha == 0.5


def test_an_op_has_its_origin_in_addition_to_its_attributes(v: SimpleNamespace) -> None:
    op = ops.SoftmaxOp(v.x).set_origin("dense/Softmax", "model.py:41", ("decoder", "dense"))
    assert (op.node_name, op.source, op.layer) == ("dense/Softmax", "model.py:41", ("decoder", "dense"))
    assert op.set_origin(source="model.py:42").node_name == "dense/Softmax"
    assert (op.source, op.layer) == ("model.py:42", ("decoder", "dense"))
    copy = ops.TanhOp(v.x).take_origin(op)
    assert (copy.node_name, copy.source, copy.layer) == (op.node_name, op.source, op.layer)
    assert ops.TanhOp(v.x).layer == ops.TanhOp(v.x).set_origin(layer=()).layer == ()
    op.verify_()


def test_a_layer_is_an_array_of_strings(v: SimpleNamespace) -> None:
    op = ops.SoftmaxOp(v.x)
    op.attributes[LAYER] = StringAttr("decoder/dense")
    with pytest.raises(InvalidOpError, match=r'cs\.layer is "decoder/dense", expected an array of strings'):
        op.verify_()


def test_traits() -> None:
    assert all(op.has_trait(Pure) for op in ops.ALL_OPS)
    assert [op for op in ops.ALL_OPS if op.has_trait(ConstantLike)] == [ops.ConstOp]
    commutative = {op for op in ops.ALL_OPS if op.has_trait(Commutative)}
    # not max and min, which may return either of 0.0 and -0.0
    assert commutative == {ops.AddOp, ops.MulOp, ops.AndOp, ops.OrOp, ops.XorOp}


def test_every_op_is_documented_in_one_line_first() -> None:
    for op in ops.ALL_OPS:
        assert op.__doc__
        assert op.__doc__.splitlines()[0].rstrip().endswith((".", ":")), op.name


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, None, np.float32),
        ([1, 2], None, np.int32),
        (True, None, np.bool_),
        (np.float16(2), None, np.float16),
        ([1.5], "bfloat16", ml_dtypes.bfloat16),
        ([1], "uint32", np.uint32),
    ],
)
def test_constants_of_python_values(value: object, dtype: str | None, expected: type) -> None:
    op = ops.ConstOp.from_array(value, dtype)
    array = op.to_array()
    assert array.dtype == expected
    assert array.shape == np.shape(value)
    assert np.array_equal(array, np.asarray(value))
    op.verify_()


def test_constant_arrays_cannot_be_written() -> None:
    for dtype in ("float32", "bool"):
        with pytest.raises(ValueError, match="read-only"):
            ops.ConstOp.splat(1, tensor_type((3,), dtype)).to_array()[0] = 0


def test_splat_value_distinguishes_zeros() -> None:
    assert ops.ConstOp.from_array(np.float32([0.0, -0.0])).splat_value() is None
    assert np.signbit(ops.ConstOp.from_array(np.float32([-0.0, -0.0])).splat_value())
    assert ops.ConstOp.from_array(np.float32([[2, 2]])).splat_value() == 2
    assert np.isnan(ops.ConstOp.from_array(np.full(3, np.nan, np.float16)).splat_value())
    assert ops.ConstOp.from_array(np.zeros(0, np.float32)).splat_value() is None

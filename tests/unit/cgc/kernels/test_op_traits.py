"""The traits of every op (`CirhOp.TRAITS`) are checked against its computed values."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

import cgc
from cgc.cirh import ops
from cgc.cirh.base import CirhOp, mnemonic
from cgc.cirh.text import parse_module
from cgc.cirh.traits import Elements, Fp16, OpTraits, Samples
from cgc.cirh.types import shape_of, tensor_type
from cgc.kernels.coefficients import COEFFICIENTS, coefficient
from cgc.kernels.program import Program
from cgc.kernels.sizing import FREE_IN_STREAM, op_millicycles
from cgc.lowering.jax_table import lower
from cgc.passes.precision import fp16_region

from .every_op import CASES, Argument

Values = NDArray[Any]
SAMPLES = 8
ORDER = np.array([3, 0, 7, 1, 6, 2, 5, 4])


def made(name: str) -> CirhOp:
    """Return the op of a case, on new operands."""
    arguments, build = CASES[name]
    op = build(*Block(arg_types=[tensor_type(shape, dtype) for shape, dtype in arguments]).args)
    assert isinstance(op, CirhOp)
    return op


def drawn(argument: Argument, rng: np.random.Generator) -> Values:
    """Distinct positive floats, so that every op is defined and an element says where it comes from."""
    shape, dtype = argument
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype == "int32":
        return rng.integers(0, 6, shape).astype(dtype)
    count = int(np.prod(shape))
    return (0.1 + rng.permutation(count).reshape(shape) / count).astype(dtype)


def results(op: CirhOp, operands: list[Values]) -> list[Values]:
    return [np.asarray(value) for value in lower(op, *operands)]  # type: ignore[arg-type]


def traits_of(name: str) -> OpTraits:
    return getattr(ops, name).TRAITS  # type: ignore[no-any-return]


def test_every_op_answers_for_itself() -> None:
    silent = [op.__name__ for op in ops.ALL_OPS if not isinstance(vars(op).get("TRAITS"), OpTraits)]
    assert not silent, f"{silent} have no TRAITS of their own; state in the class what cgc.cirh.traits asks"


@pytest.mark.parametrize("op", ops.ALL_OPS)
def test_answers_agree_with_each_other(op: type[CirhOp]) -> None:
    said = op.TRAITS
    assert said.work.kinds.keys() <= COEFFICIENTS.keys()
    if said.elements.only_moves:
        assert not said.work.computes
        assert said.exact
        assert said.fp16 is Fp16.FOLLOWS
    if said.product:
        assert said.fp16 is Fp16.STARTS
        assert said.ends_update
    assert (said.gradient_of is not None) == op.name.endswith("Grad")
    assert said.gradient_of is None or op.__name__.startswith(
        ("AvgPool", "MaxPool", mnemonic(said.gradient_of))
    )


@pytest.mark.parametrize("name", [name for name in CASES if traits_of(name).exact])
def test_exact_ops_give_elements_of_their_operands(name: str) -> None:
    """Or their negatives, or zeros: there is nothing to compute, and nothing to round."""
    op, rng = made(name), np.random.default_rng(5)
    operands = [drawn(argument, rng) for argument in CASES[name][0]]
    known = {0.0, *(float(value) for operand in operands for value in operand.ravel())}
    for result in results(op, operands):
        assert {abs(float(value)) for value in result.ravel()} <= known


def _is_even(name: str) -> bool:
    """Return whether all operands of a case are numbers or have the shape of the results."""
    shape = shape_of(made(name).results[0])
    return all(argument[0] in ((), shape) for argument in CASES[name][0])


@pytest.mark.parametrize(
    "name", [n for n in CASES if traits_of(n).elements is Elements.POINTWISE and _is_even(n)]
)
def test_pointwise_ops_compute_each_place_by_itself(name: str) -> None:
    op, rng = made(name), np.random.default_rng(6)
    operands = [drawn(argument, rng) for argument in CASES[name][0]]
    order = rng.permutation(int(np.prod(shape_of(op.results[0]))))

    def mixed(value: Values) -> Values:
        return value.ravel()[order].reshape(value.shape) if value.shape else value

    for got, straight in zip(results(op, [*map(mixed, operands)]), results(op, operands), strict=True):
        np.testing.assert_array_equal(got, mixed(straight))


def _with_samples_in_another_order(op: CirhOp, operands: list[Values], which: list[SSAValue]) -> list[Values]:
    return [
        value[ORDER] if operand in which and value.shape[:1] == (SAMPLES,) else value
        for operand, value in zip(op.operands, operands, strict=True)
    ]


COMPUTING = (Elements.POINTWISE, Elements.CONVERTED, Elements.MIXED)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CASES
        if traits_of(name).elements in COMPUTING and traits_of(name).samples in (Samples.KEPT, Samples.FIRST)
    ],
)
def test_results_keep_the_samples_of_the_operands(name: str) -> None:
    """Operands with their samples in another order give results with their samples in that order."""
    op, rng = made(name), np.random.default_rng(7)
    operands = [drawn(argument, rng) for argument in CASES[name][0]]
    moved = _with_samples_in_another_order(op, operands, list(op.sample_operands()))
    pairs = list(zip(results(op, moved), results(op, operands), strict=True))
    for got, straight in pairs[:1] if traits_of(name).samples is Samples.FIRST else pairs:
        expected = straight[ORDER] if straight.shape[:1] == (SAMPLES,) else straight
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", [name for name in CASES if traits_of(name).samples is Samples.SUMMED])
def test_sums_over_samples_do_not_depend_on_their_order(name: str) -> None:
    op, rng = made(name), np.random.default_rng(8)
    operands = [drawn(argument, rng) for argument in CASES[name][0]]
    moved = _with_samples_in_another_order(op, operands, list(op.operands))
    assert not op.sample_operands()
    for got, straight in zip(results(op, moved), results(op, operands), strict=True):
        np.testing.assert_allclose(got, straight, rtol=1e-5)


def test_products_of_samples_have_no_samples_themselves() -> None:
    x, weights = Block(arg_types=[tensor_type((8, 6), "float32"), tensor_type((6, 4), "float32")]).args
    images, filters = Block(
        arg_types=[tensor_type((8, 6, 6, 4), "float32"), tensor_type((3, 3, 4, 5), "float32")]
    ).args
    forward = ops.ConvolutionOp(images, filters)
    assert list(ops.MatMulOp(x, weights).sample_operands()) == [x]
    assert not ops.MatMulOp(x, x, transpose_a=True).sample_operands()
    assert not ops.DotGeneralOp(x, x, (0,), (0,)).sample_operands()
    assert images in forward.sample_operands()
    gradient = ops.ConvolutionOp(images, forward, conv_pass_direction="BWD_KERNEL", shape=(3, 3, 4, 5))
    assert not gradient.sample_operands()
    assert not ops.ReduceOp(x, "ADD", (0, 1)).sample_operands()
    assert list(ops.ReduceOp(x, "ADD", (1,)).sample_operands()) == [x]


@pytest.mark.parametrize("name", [name for name in CASES if traits_of(name).elements is Elements.MOVED])
def test_moved_elements_cost_the_way_and_no_arithmetic(name: str) -> None:
    """Splits, strided slices and repeats counted as additions once, joints and slices as moves."""
    op = getattr(ops, name)
    assert op.TRAITS.work.kinds == {"stream": 1}
    assert op in FREE_IN_STREAM


def _step(body: str, returned: str) -> ModuleOp:
    """A step of samples %x and weights %w that returns %y."""
    return parse_module(
        f"""builtin.module {{
          func.func @graph(%x : tensor<8x6xf32> {{cs.input_name = "input_0"}},
              %w : tensor<6x6xf32> {{tf.resource_name = "state.model.w"}})
              -> ({returned} {{cs.output_name = "output_y"}}) attributes {{cs.mode = "infer"}} {{
            {body}
            func.return %y : {returned}
          }}
        }}"""
    )


def test_a_split_costs_what_a_slice_costs() -> None:
    half = "tensor<8x3xf32>"
    sizes = "{sizes = array<i64: 3, 3>, axis = 1 : i64}"
    program = Program(_step(f"%a, %y = cirh.Split %x {sizes} : (tensor<8x6xf32>) -> ({half}, {half})", half))
    assert op_millicycles(program, 0) == 1000 * coefficient("stream") * 8 * 3


@pytest.mark.parametrize("name", [name for name in CASES if traits_of(name).elements is Elements.MOVED])
def test_what_moves_between_two_products_is_in_16_bits(name: str) -> None:
    """The precision pass left out `unpad`, `MatrixBandPart` and `OneHot`, the cost model others."""
    arguments, build = CASES[name]
    block = Block(arg_types=[tensor_type(shape, dtype) for shape, dtype in [*arguments, ((6, 6), "float32")]])
    *operands, weights = block.args
    before = [ops.MatMulOp(value, weights) if shape_of(value) == (8, 6) else None for value in operands]
    move = build(*(product or value for product, value in zip(before, operands, strict=True)))
    after = ops.MatMulOp(move.results[0], move.results[0], transpose_a=True)
    block.add_ops([*filter(None, before), move, after, ReturnOp(after.result)])
    types = FunctionType.from_lists([value.type for value in block.args], [after.result.type])
    assert move in fp16_region(FuncOp("graph", types, Region(block)))


ROOT = Path(cgc.__file__).parent
NAMES = {op.name for op in ops.ALL_OPS} | {mnemonic(op) for op in ops.ALL_OPS}


def _named_ops(path: Path) -> list[str]:
    """String literals of a module that are the name of an op."""
    tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES
    ]


def test_ops_are_named_by_their_classes_outside_of_the_dialect() -> None:
    """A string that names an op is not found when the op is renamed, or when another op is added next to it.

    Importers name operations of their frameworks, and the tables of primitives those of JAX; many of them
    have the names of ours.
    """
    primitives = ("from_jaxpr", "evaluate")
    modules = [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("cirh", "importers") and path.stem not in primitives
    ]
    assert len(modules) > 100
    named = [line for path in modules for line in _named_ops(path)]
    assert not named, "use the classes of cgc.cirh.ops, or a fact of theirs: " + ", ".join(named)

"""Random groups of ops: LAIR computes what their JAX lowering does, before and after every pass.

The values are small whole numbers and the ops exact on them, so that no rounding can hide a wrong element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.text import parse_module, print_module
from cgc.cirh.types import dtype_name, shape_of, tensor_of, tensor_type
from cgc.lair.dialect import LAIR_DIALECTS, REDUCTION, GenericOp, loop_extents, points
from cgc.lair.lower import lower_group
from cgc.lair.nest import loop_program
from cgc.lair.passes import LairCsePass, LairDcePass, LairFusePass
from cgc.lair.polyhedra import carried_loops, count, domain
from cgc.lowering.jax_table import lower
from tests.property.cgc.examples import examples
from tests.unit.cgc.lair_interpreter import run

Draw = Callable[[st.SearchStrategy[Any]], Any]
Array = NDArray[np.generic]

UNARY = (ops.NegOp, ops.AbsOp, ops.ReluOp, ops.SignOp, ops.FloorOp)
BINARY = (ops.AddOp, ops.SubOp, ops.MaxOp, ops.MinOp)
PASSES = (LairFusePass(), LairCsePass(), LairDcePass())


class Group:
    """Ops under construction, over arguments of few shapes."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        shapes = draw(st.lists(st.sampled_from([(2, 3), (3,), (2, 3, 2), ()]), min_size=1, max_size=3))
        types = [tensor_type(shape, draw(st.sampled_from(["float32", "int32"]))) for shape in shapes]
        self.block = Block(arg_types=types)
        self.values: list[SSAValue] = list(self.block.args)
        self.ops: list[CirhOp] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def value(self, wanted: Callable[[SSAValue], bool] = lambda value: True) -> SSAValue | None:
        found = [value for value in self.values if wanted(value)]
        return self.pick(found) if found else None

    def number(self, rank: int = 0) -> SSAValue | None:
        return self.value(lambda value: not _is_bool(value) and len(shape_of(value)) >= rank)

    def grow(self) -> None:
        make = self.pick(MAKERS)
        op = make(self)
        if op is not None and max((math.prod(shape_of(value)) for value in op.results), default=0) <= 200:
            op.verify()
            self.ops.append(op)
            self.values += op.results


def _is_bool(value: SSAValue) -> bool:
    return dtype_name(tensor_of(value)) == "bool"


def _is_float(value: SSAValue) -> bool:
    return dtype_name(tensor_of(value)) == "float32"


def unary(group: Group) -> CirhOp | None:
    op = group.pick(UNARY)
    needs_float = op is ops.FloorOp
    x = group.value(lambda value: _is_float(value) or (not needs_float and not _is_bool(value)))
    return None if x is None else op(x)


def binary(group: Group) -> CirhOp | None:
    x = group.number()
    y = None if x is None else group.value(lambda value: value.type == x.type)
    return None if x is None or y is None else group.pick(BINARY)(x, y)


def times_two(group: Group) -> CirhOp | None:
    x = group.number()
    if x is None:
        return None
    two = ops.ConstOp.splat(2, tensor_of(x))
    group.ops.append(two)
    return ops.MulOp(x, two.result)


def constant(group: Group) -> CirhOp | None:
    x = group.number()
    if x is None:
        return None
    values = np.arange(math.prod(shape_of(x))).reshape(shape_of(x)) % 5 - 2
    made = ops.ConstOp.from_array(values, dtype_name(tensor_of(x)))
    group.ops.append(made)
    return ops.AddOp(x, made.result)


def compare(group: Group) -> CirhOp | None:
    x = group.number()
    y = None if x is None else group.value(lambda value: value.type == x.type)
    return None if x is None or y is None else ops.CompareOp(x, y, group.pick(["LT", "EQ", "NE", "GE"]))


def select(group: Group) -> CirhOp | None:
    condition = group.value(_is_bool)
    if condition is None:
        return None
    x = group.value(lambda value: shape_of(value) == shape_of(condition))
    y = None if x is None else group.value(lambda value: value.type == x.type)
    return None if x is None or y is None else ops.SelectOp(condition, x, y)


def cast(group: Group) -> CirhOp | None:
    x = group.value()
    return None if x is None else ops.CastOp(x, group.pick(["float32", "int32", "bool"]))


def broadcast(group: Group) -> CirhOp | None:
    x = group.value(lambda value: len(shape_of(value)) <= 2)
    if x is None:
        return None
    shape = shape_of(x)
    place = group.draw(st.integers(0, len(shape)))
    wide = (*shape[:place], 2, *shape[place:])
    return ops.BroadcastInDimOp(x, wide, [d + (d >= place) for d in range(len(shape))])


def transpose(group: Group) -> CirhOp | None:
    x = group.value(lambda value: len(shape_of(value)) >= 2)
    return None if x is None else ops.TransposeOp(x, group.draw(st.permutations(range(len(shape_of(x))))))


def reshape(group: Group) -> CirhOp | None:
    x = group.value()
    if x is None:
        return None
    total = math.prod(shape_of(x))
    shapes = [(total,), (total, 1), (1, total), *((n, total // n) for n in (2, 3, 4) if total % n == 0)]
    return ops.ReshapeOp(x, group.pick(shapes))


def sliced(group: Group) -> CirhOp | None:
    x = group.value(lambda value: len(shape_of(value)) >= 1)
    if x is None:
        return None
    begin, end, strides = [], [], []
    for size in shape_of(x):
        first, step = group.draw(st.integers(0, size - 1)), group.pick([1, 1, 2, -1])
        begin.append(first)
        strides.append(step)
        end.append(-1 if step < 0 else group.draw(st.integers(first + 1, size)))
    return ops.StridedSliceOp(x, begin, end, strides)


def pad(group: Group) -> CirhOp | None:
    x = group.number(1)
    value = None if x is None else group.value(lambda v: v.type == tensor_type((), tensor_of(x).element_type))
    if x is None or value is None:
        return None
    low, high = ([group.draw(st.integers(0, 1)) for _ in shape_of(x)] for _ in range(2))
    return ops.PadOp(x, value, low, high)


def concat(group: Group) -> CirhOp | None:
    x = group.value(lambda value: len(shape_of(value)) >= 1)
    y = None if x is None else group.value(lambda value: value.type == x.type)
    return None if x is None or y is None else ops.ConcatOp([x, y], group.pick(range(len(shape_of(x)))))


def reduce(group: Group) -> CirhOp | None:
    x = group.number(1)
    if x is None:
        return None
    dims = group.draw(st.sets(st.integers(0, len(shape_of(x)) - 1)))
    return ops.ReduceOp(x, group.pick(["ADD", "MAX", "MIN"]), sorted(dims), group.draw(st.booleans()))


def scan(group: Group) -> CirhOp | None:
    x = group.number(1)
    if x is None:
        return None
    axis = group.pick(range(len(shape_of(x))))
    return ops.CumSumOp(x, axis, group.draw(st.booleans()), group.draw(st.booleans()))


def argmax(group: Group) -> CirhOp | None:
    x = group.number(1)
    return None if x is None else ops.ArgMaxOp(x, group.pick(range(len(shape_of(x)))), "int32")


def gather(group: Group) -> CirhOp | None:
    x = group.number(1)
    indices = group.value(lambda value: dtype_name(tensor_of(value)) == "int32" and len(shape_of(value)) <= 1)
    if x is None or indices is None:
        return None
    axis = group.pick(range(len(shape_of(x))))
    size = ops.ConstOp.splat(shape_of(x)[axis], tensor_of(indices))
    in_range = ops.FloorModOp(indices, size.result)
    group.ops += [size, in_range]
    return ops.GatherOp(x, in_range.result, axis)


def matmul(group: Group) -> CirhOp | None:
    x = group.value(lambda value: not _is_bool(value) and len(shape_of(value)) == 2)
    return None if x is None else ops.MatMulOp(x, x, transpose_b=True)


def top_k(group: Group) -> CirhOp | None:
    x = group.value(lambda value: _is_float(value) and len(shape_of(value)) >= 1)
    return None if x is None else ops.TopKOp(x, 1)


MAKERS: tuple[Callable[[Group], CirhOp | None], ...] = (
    unary,
    binary,
    times_two,
    constant,
    compare,
    select,
    cast,
    broadcast,
    broadcast,
    transpose,
    reshape,
    sliced,
    pad,
    concat,
    reduce,
    scan,
    argmax,
    gather,
    matmul,
    top_k,
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    group = Group(draw)
    for _ in range(draw(st.integers(2, 9))):
        group.grow()
    return group


def expected_values(group: Group, arguments: Sequence[Array], outputs: Sequence[SSAValue]) -> list[Array]:
    values: dict[SSAValue, jax.Array] = {
        value: jnp.asarray(argument) for value, argument in zip(group.block.args, arguments, strict=True)
    }
    for op in group.ops:
        values.update(zip(op.results, lower(op, *(values[v] for v in op.operands)), strict=True))
    return [np.asarray(values[value]) for value in outputs]


def check(module: ModuleOp, arguments: Sequence[Array], expected: Sequence[Array], stage: str) -> None:
    for op in module.walk():
        op.verify(verify_nested_ops=False)
    for got, wanted in zip(run(module, arguments), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg=f"{stage}\n{print_module(module)}")


def check_nests(module: ModuleOp) -> None:
    for op in module.walk():
        if isinstance(op, GenericOp):
            extents = loop_extents(op)
            assert count(domain(extents)) == points(op)
            claimed = {
                loop for loop, kind in enumerate(op.iterator_types) if kind == REDUCTION and extents[loop] > 1
            }
            found: set[int] = set()
            for argument, mapping in zip(
                op.body.block.args[len(op.inputs) :], op.maps[len(op.inputs) :], strict=True
            ):
                if argument.uses:
                    found |= set(carried_loops(extents, mapping))
            assert found == claimed
    for nest in loop_program(module).nests:
        assert nest.describe()


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(groups(), st.integers(0, 2**16))
def test_lair_and_its_passes_compute_the_values_of_jax(group: Group, seed: int) -> None:
    check_group(group, seed)


@pytest.mark.soak
@settings(max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(groups(), st.integers(0, 2**16))
def test_many_groups(group: Group, seed: int) -> None:
    check_group(group, seed)


def check_group(group: Group, seed: int) -> None:
    generator = np.random.default_rng(seed)
    arguments = [
        generator.integers(-3, 4, shape_of(value)).astype(dtype_name(tensor_of(value)))
        for value in group.block.args
    ]
    made = [result for op in group.ops for result in op.results]
    unread = [value for value in made if not any(value in op.operands for op in group.ops)]
    outputs = (unread + made[:1])[:4] or [group.block.args[0]]
    expected = expected_values(group, arguments, outputs)
    module = lower_group(group.ops, group.block.args, outputs)
    check(module, arguments, expected, "lowered")
    for module_pass in PASSES:
        module_pass.apply(Context(), module)
        check(module, arguments, expected, module_pass.name)
    check_nests(module)
    check(parse_module(print_module(module), dialects=LAIR_DIALECTS), arguments, expected, "read back")

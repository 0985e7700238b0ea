"""Random modules of all ops: the text form is exact, and passes preserve the computed values."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.module import verify_module
from cgc.cirh.text import canonical_text, parse_module, print_module
from cgc.cirh.types import DTYPE_NAMES, numpy_dtype, tensor_of, tensor_type
from cgc.errors import CompileError
from cgc.passes.pipeline import run_pipeline

from .examples import examples
from .random_modules import GENERATORS, Builder, modules

QUICK = settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))


def test_every_op_has_a_generator() -> None:
    assert set(GENERATORS) == set(ops.ALL_OPS)


@QUICK
@given(modules())
def test_text_is_exact(module: ModuleOp) -> None:
    verify_module(module)
    text = print_module(module)
    parsed = parse_module(text)
    assert module.is_structurally_equivalent(parsed)
    assert print_module(parsed) == text
    assert canonical_text(parsed) == canonical_text(module)


@QUICK
@given(modules())
def test_canonical_text_is_a_module_with_the_same_canonical_text(module: ModuleOp) -> None:
    text = canonical_text(module)
    assert "cs.name" not in text
    assert "cs.layer" not in text
    assert canonical_text(parse_module(text)) == text


@QUICK
@given(modules())
def test_passes_leave_valid_modules_and_then_find_nothing_to_do(module: ModuleOp) -> None:
    run_pipeline(module, verify=True)
    once = print_module(module)
    run_pipeline(module, "canonicalize,cse,dce", verify=True)
    run_pipeline(module, "canonicalize,cse,dce", verify=True)
    settled = print_module(module)
    run_pipeline(module, "canonicalize,cse,dce")
    assert print_module(module) == settled
    assert len(settled) <= len(once)


def folded(module: ModuleOp, passes: str) -> list[np.ndarray | None]:
    copy = module.clone()
    run_pipeline(copy, passes)
    function = next(op for op in copy.body.block.ops if isinstance(op, FuncOp))
    returned = function.get_return_op()
    assert returned is not None
    owners: list[Operation | Block] = [value.owner for value in returned.arguments]
    return [owner.to_array() if isinstance(owner, ops.ConstOp) else None for owner in owners]


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal dtypes, shapes and bits; any NaN equals any NaN."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind in "biu":
        return bool(np.array_equal(left, right))
    wide = left.astype(np.float64), right.astype(np.float64)
    nan = np.isnan(wide[0])
    equal = (wide[0] == wide[1]) & (np.signbit(wide[0]) == np.signbit(wide[1]))
    return bool((nan == np.isnan(wide[1])).all() and (equal | nan).all())


@settings(QUICK, max_examples=examples(40))
@given(modules(constants_only=True))
def test_canonicalization_keeps_every_bit(module: ModuleOp) -> None:
    plain = folded(module, "constant-fold")
    rewritten = folded(module, "canonicalize,cse,constant-fold,canonicalize,constant-fold")
    for before, after in zip(plain, rewritten, strict=True):
        if before is not None and after is not None:
            assert same_bits(before, after), print_module(module)


@settings(QUICK, max_examples=examples(30))
@given(
    st.sampled_from([op for op in ops.ALL_OPS if op.name in ("cirh.Const", "cirh.Add", "cirh.MatMul")]),
    st.data(),
)
def test_broken_text_never_crashes_the_parser(op_type: type[CirhOp], data: st.DataObject) -> None:
    builder = Builder(data.draw, constants_only=True)
    builder.add(GENERATORS[op_type](builder))
    builder.block.add_op(ReturnOp())
    text = print_module(ModuleOp([FuncOp("graph", ([], []), Region(builder.block))]))
    position = data.draw(st.integers(0, len(text) - 1))
    inserted = data.draw(
        st.sampled_from(['"', "<", ">", "}", "%", "-", "0x", "9" * 25, "f64", "dense", "\\", "é", ""])
    )
    removed = data.draw(st.integers(0, 8))
    with contextlib.suppress(CompileError):
        parse_module(text[:position] + inserted + text[position + removed :])


@pytest.mark.parametrize("dtype", sorted(DTYPE_NAMES))
def test_constants_of_all_bit_patterns_of_small_types_come_back(dtype: str) -> None:
    tensor = tensor_type((), dtype)
    itemsize = numpy_dtype(tensor.element_type).itemsize
    patterns = np.arange(2 if dtype == "bool" else 256, dtype=np.uint8)
    raw = patterns if itemsize == 1 else np.random.default_rng(0).integers(0, 256, 256 * itemsize, np.uint8)
    values = raw.view(numpy_dtype(tensor.element_type))
    module = ModuleOp(
        [FuncOp("graph", ([], []), Region(Block([*map(ops.ConstOp.from_array, values), ReturnOp()])))]
    )
    parsed = [op for op in parse_module(print_module(module)).walk() if isinstance(op, ops.ConstOp)]
    assert [op.to_array().tobytes() for op in parsed] == [value.tobytes() for value in values]
    assert {tensor_of(op.result) for op in parsed} == {tensor}

"""Whole modules: verified, and copied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, StringAttr, i64
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, Operation

from cgc.cirh.interface import graph_function
from cgc.cirh.module import Verifier, copy_module, verify_module
from cgc.cirh.ops import ConstOp, MulOp, ReluOp, TransposeOp
from cgc.cirh.text import parse_module, print_module
from cgc.cirh.types import tensor_type
from cgc.errors import InvalidModuleError
from cgc.passes.pipeline import run_pipeline

TEXT = """builtin.module {
  func.func @graph(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %y = cirh.Relu %x : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %t = cirh.Transpose %y {permutation = array<i64: 1, 0>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %z = cirh.Mul %y, %t : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %z : tensor<4x4xf32>
  }
}
"""
OTHER = tensor_type((5,), "float32")


def op_of(module: ModuleOp, kind: type[Operation]) -> Operation:
    return next(op for op in module.walk() if isinstance(op, kind))


def block_of(op: Operation) -> Block:
    block = op.parent_block()
    assert block is not None
    return block


def other_result(module: ModuleOp) -> None:
    op_of(module, MulOp).results[0]._type = OTHER


def other_operand(module: ModuleOp) -> None:
    user = op_of(module, ReluOp)
    value = ConstOp.splat(1.0, OTHER)
    block_of(user).insert_op_before(value, user)
    user.operands[0] = value.result


def other_property(module: ModuleOp) -> None:
    op_of(module, TransposeOp).properties["permutation"] = DenseArrayBase.from_list(i64, [0, 0])


def other_attribute(module: ModuleOp) -> None:
    op_of(module, MulOp).attributes["speed"] = StringAttr("high")


def other_order(module: ModuleOp) -> None:
    first, last = op_of(module, ReluOp), op_of(module, ReturnOp)
    first.detach()
    block_of(last).insert_op_before(first, last)


def no_terminator(module: ModuleOp) -> None:
    op_of(module, ReturnOp).detach()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_result, "cirh.Mul: result type is"),
        (other_operand, "cirh.Relu: result type is"),
        (other_property, "cirh.Transpose: permutation"),
        (other_attribute, "cirh.Mul: unknown attribute 'speed'"),
        (other_order, "used before it is defined"),
        (no_terminator, "not a terminator"),
    ],
)
def test_an_error_is_found_in_a_module_that_was_valid_before(
    change: Callable[[ModuleOp], None], message: str
) -> None:
    module, verifier = parse_module(TEXT), Verifier()
    verifier.verify(module)
    change(module)
    for _ in range(2):
        with pytest.raises(InvalidModuleError, match=message):
            verifier.verify(module)


def test_an_op_is_checked_again_only_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    check = MulOp.verify_, TransposeOp.verify_
    for kind, own in zip((MulOp, TransposeOp), check, strict=True):
        monkeypatch.setattr(kind, "verify_", lambda op, own=own: (checked.append(op.name), own(op)))
    module, verifier = parse_module(TEXT), Verifier()
    checked.clear()
    for _ in range(3):
        verifier.verify(module)
    assert sorted(checked) == ["cirh.Mul", "cirh.Transpose"]
    op_of(module, MulOp).attributes["cs.name"] = StringAttr("product")
    verifier.verify(module)
    assert sorted(checked) == ["cirh.Mul", "cirh.Mul", "cirh.Transpose"]


def test_an_argument_that_no_op_takes_has_a_static_shape() -> None:
    text = """builtin.module {
      func.func @graph(%x: tensor<1x?xf32>, %y: tensor<2xf32>) -> (tensor<1x?xf32>, tensor<2xf32>) {
        func.return %x, %y : tensor<1x?xf32>, tensor<2xf32>
      }
    }
    """
    with pytest.raises(InvalidModuleError, match=r"@graph: argument 0: tensor<1x\?xf32> has a dynamic size"):
        parse_module(text)


STEP = (Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir").read_text(encoding="utf-8")


@pytest.mark.parametrize("passes", ["", "default", "lower-to-lair"])
def test_a_copy_has_the_text_of_its_original_names_and_origins_included(passes: str) -> None:
    module = parse_module(STEP)
    run_pipeline(module, passes)  # loop nests have regions, and functions without a body
    before = print_module(module)
    copy = copy_module(module)
    verify_module(copy)
    assert print_module(copy) == before
    assert not set(module.walk()) & set(copy.walk())


def test_what_happens_to_a_copy_does_not_happen_to_the_original() -> None:
    module = parse_module(STEP)
    before = print_module(module)
    copy = copy_module(module)
    run_pipeline(copy)
    for op in graph_function(copy).body.block.ops:
        op.attributes.clear()
    assert print_module(module) == before != print_module(copy)

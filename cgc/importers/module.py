"""A module of CIRH around the body of an imported step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Region

from cgc.cirh.interface import ALIASING_OUTPUT, INPUT_NAME, MODE, OUTPUT_NAME, RESOURCE_NAME, SEED
from cs_toolkit.step import Mode

MODES: tuple[str, ...] = get_args(Mode)


def step_module(
    block: Block,
    resources: Sequence[str],
    written: Sequence[str],
    input_count: int,
    outputs: Sequence[str],
    mode: str,
    seed: int,
) -> ModuleOp:
    """A step: a body with the names of its arguments and results.

    Args:
        block: ends in `func.return`; its arguments are the state, then the inputs of a batch.
        resources: names of the state.
        written: names of the state that the first results replace, in their order.
        input_count: tensors of a batch.
        outputs: names of the results behind them.
        mode: one of `MODES`.
        seed: of random operations without one of their own.
    """
    arguments: list[dict[str, Attribute]] = []
    for name in resources:
        attributes: dict[str, Attribute] = {RESOURCE_NAME: StringAttr(name)}
        if name in written:
            attributes[ALIASING_OUTPUT] = IntegerAttr(written.index(name), i64)
        arguments.append(attributes)
    arguments += [{INPUT_NAME: StringAttr(f"input_{i}")} for i in range(input_count)]
    results: list[dict[str, Attribute]] = [{} for _ in written]
    results += [{OUTPUT_NAME: StringAttr(name)} for name in outputs]
    terminator = block.last_op
    assert isinstance(terminator, ReturnOp)
    function = FuncOp(
        "graph",
        (block.arg_types, terminator.operand_types),
        Region(block),
        arg_attrs=ArrayAttr(DictionaryAttr(attributes) for attributes in arguments),
        res_attrs=ArrayAttr(DictionaryAttr(attributes) for attributes in results),
    )
    function.attributes[MODE] = StringAttr(mode)
    function.attributes[SEED] = IntegerAttr(seed, i64)
    return ModuleOp([function])

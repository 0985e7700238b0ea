"""Common subexpressions of LAIR: equal nests, equal ops of a body, an element that is read twice."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import Commutative, IsTerminator

from cgc.lair.dialect import GenericOp
from cgc.lair.generic import with_distinct_inputs


@dataclass(frozen=True)
class LairCsePass(ModulePass):
    """Keeps the first of several ops that compute the same; every op of LAIR is pure, calls included."""

    name = "lair-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites all functions in place."""
        for function in list(op.walk()):
            if isinstance(function, FuncOp) and function.body.blocks:
                _eliminate(function.body.block)


def _eliminate(block: Block) -> None:
    known: dict[Hashable, Operation] = {}
    for op in list(block.ops):
        if isinstance(op, GenericOp):
            op = with_distinct_inputs(op)
            _eliminate(op.body.block)
        if op.has_trait(IsTerminator):
            continue
        first = known.setdefault(_key(op), op)
        if first is not op:
            for old, new in zip(op.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            block.erase_op(op)


def _key(op: Operation, inside: dict[SSAValue, int] | None = None) -> Hashable:
    """Equal for ops that compute the same; values of an enclosing body are known by their numbers."""
    numbers = inside or {}
    operands: list[Hashable] = [numbers.get(operand, id(operand)) for operand in op.operands]
    if op.has_trait(Commutative):
        operands.sort(key=hash)
    regions = tuple(_block_key(block, numbers) for region in op.regions for block in region.blocks)
    properties = frozenset(op.properties.items())
    attributes = frozenset(op.attributes.items())
    return op.name, tuple(operands), properties, attributes, tuple(op.result_types), regions


def _block_key(block: Block, outer: dict[SSAValue, int]) -> Hashable:
    numbers = dict(outer)
    for argument in block.args:
        numbers[argument] = -1 - len(numbers)
    keys = []
    for op in block.ops:
        keys.append(_key(op, numbers))
        for result in op.results:
            numbers[result] = -1 - len(numbers)
    return tuple(argument.type for argument in block.args), tuple(keys)

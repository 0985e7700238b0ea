"""Common subexpression elimination.

xDSL's own pass takes all attributes of an op into account; here where they come from must not keep two equal
ops apart, so the comparison is our own. Random ops are pure functions of their seeds and step and are merged
like all others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.traits import Commutative

from cgc.cirh.base import ORIGIN, CirhOp


def _key(op: CirhOp) -> Hashable:
    """Equal for ops that compute the same: name, operands, attributes without the origin, result types."""
    operands = [id(operand) for operand in op.operands]
    if op.has_trait(Commutative):
        operands.sort()
    attributes = frozenset((name, value) for name, value in op.attributes.items() if name not in ORIGIN)
    return op.name, tuple(operands), frozenset(op.properties.items()), attributes, tuple(op.result_types)


def merge_equal_ops(block: Block) -> None:
    """Merges equal ops of a block, in one sweep: operands are merged before their users are seen."""
    known: dict[Hashable, CirhOp] = {}
    for op in list(block.ops):
        if not isinstance(op, CirhOp):
            continue
        first = known.setdefault(_key(op), op)
        if first is not op:
            for old, new in zip(op.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            block.erase_op(op)


@dataclass(frozen=True)
class CsePass(ModulePass):
    """Keeps the first of several ops that compute the same, and where that comes from."""

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module in place, in one sweep: operands are merged before their users are seen."""
        for block in op.walk_blocks():
            merge_equal_ops(block)

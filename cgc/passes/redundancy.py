"""Remove redundant ops: common subexpressions and dead code."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import would_be_trivially_dead

from cgc.cirh.base import ORIGIN, CirhOp
from cgc.cirh.ops import COMMUTATIVE
from cgc.passes.rewriting import current_watch, drop, is_read, replace_uses


def _key(op: CirhOp) -> Hashable:
    """Return a key, class and operands, that is equal for ops that compute the same and for few others."""
    # Only the key of ops without operands has the attributes: hashing those of all ops would take longer than
    # the rest of the pass.
    operands = [id(operand) for operand in op.operand_values]
    if not operands:
        return type(op), frozenset(op.properties.items())
    if type(op) in COMMUTATIVE:
        operands.sort()
    return type(op), *operands


def _is_same(op: CirhOp, other: CirhOp) -> bool:
    """Return True if two ops of one key compute the same; their origins are ignored."""
    return (
        op.properties == other.properties
        and op.result_types == other.result_types
        and _essential(op) == _essential(other)
    )


def _essential(op: CirhOp) -> dict[str, Attribute]:
    return {name: value for name, value in op.attributes.items() if name not in ORIGIN}


def merge_equal_ops(block: Block) -> None:
    """Merge equal ops of a block in one sweep, since operands are merged before their users."""
    known: dict[Hashable, list[CirhOp]] = {}
    watch = current_watch()
    for op in list(block.ops):
        if not isinstance(op, CirhOp):
            continue
        candidates = known.setdefault(_key(op), [])
        first = next((other for other in candidates if _is_same(op, other)), None)
        if first is None:
            candidates.append(op)
            continue
        if watch is not None:
            watch.record_merge(op, first)
        for old, new in zip(op.results, first.results, strict=True):
            replace_uses(old, new)
        drop(op)


# xDSL's own pass compares all attributes of an op. Here the origin must not keep two equal ops apart, so the
# comparison is our own. Random ops are pure functions of their seeds and step: they are merged as well.
@dataclass(frozen=True)
class CsePass(ModulePass):
    """Merges ops that compute the same into the first one, which keeps its origin."""

    name = "cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place, in one sweep: operands are merged before their users are seen."""
        for block in op.walk_blocks():
            merge_equal_ops(block)


@dataclass(frozen=True)
class DcePass(ModulePass):
    """Removes ops whose results are not used; arguments and results of functions are kept."""

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place, in one sweep from the end: readers go before operands."""
        for block in op.body.blocks:
            _remove_dead(block)


def _remove_dead(block: Block) -> None:
    for op in reversed(list(block.ops)):
        # All ops of CIRH are pure.
        if not is_read(op) and (isinstance(op, CirhOp) or would_be_trivially_dead(op)):
            drop(op)
            continue
        for region in op.regions:
            for inner in region.blocks:
                _remove_dead(inner)

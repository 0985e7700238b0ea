"""Dead code elimination."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import would_be_trivially_dead

from cgc.cirh.base import CirhOp
from cgc.passes.rewriting import drop, is_read


@dataclass(frozen=True)
class DcePass(ModulePass):
    """Removes ops whose results are not used; arguments and results of functions stay."""

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place, in one sweep from the end: readers go before operands."""
        for block in op.body.blocks:
            _clean(block)


def _clean(block: Block) -> None:
    for op in reversed(list(block.ops)):
        # All ops of CIRH are pure.
        if not is_read(op) and (isinstance(op, CirhOp) or would_be_trivially_dead(op)):
            drop(op)
            continue
        for region in op.regions:
            for inner in region.blocks:
                _clean(inner)

"""Constant folding: ops whose operands are all constants are computed at compile time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, OpResult
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh.base import CirhOp
from cgc.cirh.shape import ConstOp
from cgc.cirh.types import AnyArray, element_count, is_cb16, tensor_of
from cgc.passes.evaluate import evaluate
from cgc.passes.rewriting import drop, replace_uses
from cgc.passes.watch import current_watch


@dataclass(frozen=True)
class ConstantFoldPass(ModulePass):
    """Replaces ops on constants by constants.

    Attributes:
        max_elements: a result of more elements than this is folded only if it is no larger than the largest
            operand, so that a module does not grow by what it can compute.
    """

    name = "constant-fold"
    max_elements: int = 65536

    def __post_init__(self) -> None:
        if self.max_elements < 0:
            raise ValueError(f"max-elements is {self.max_elements}, expected 0 or more")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrites the module in place, in one sweep: operands are folded before their users are looked at.

        Operands that become unused stay; `dce` removes them.
        """
        for block in op.walk_blocks():
            self._fold_block(block)

    def _fold_block(self, block: Block) -> None:
        for op in list(block.ops):
            if isinstance(op, CirhOp) and not isinstance(op, ConstOp):
                value = self._fold(op)
                if value is not None:
                    _replace(op, value)

    def _fold(self, op: CirhOp) -> AnyArray | None:
        constants: list[ConstOp] = []
        for operand in op.operand_values:
            if not isinstance(owner := operand.owner, ConstOp):
                return None
            constants.append(owner)
        if len(op.results) != 1 or is_cb16(op.results[0]):
            return None
        size = element_count(tensor_of(op.results[0]))
        largest = max((element_count(tensor_of(operand)) for operand in op.operands), default=0)
        if size > max(self.max_elements, largest):
            return None
        value = evaluate(op, [constant.to_array() for constant in constants])
        return None if value is None or _leaves_device_range(value) else value


def _leaves_device_range(value: AnyArray) -> bool:
    """Whether int64 values do not fit in int32, which the device computes int64 in."""
    return value.dtype == np.int64 and not np.array_equal(value, value.astype(np.int32))


def _replace(op: CirhOp, value: AnyArray) -> None:
    constant = ConstOp.from_array(value).take_origin(op)
    watch = current_watch()
    if watch is not None:
        constants = [operand.op for operand in op.operand_values if isinstance(operand, OpResult)]
        watch.rewritten((op, *constants), (constant,))
    Rewriter.insert_op(constant, InsertPoint.before(op))
    replace_uses(op.results[0], constant.result)
    drop(op)

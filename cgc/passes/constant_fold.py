"""Constant folding: compute ops at compile time if all their operands are constants.

Values come from the lowerings of the ops (`cgc.lowering.evaluate`). Basic operations have the bits that the
device computes, except for the sign of a sum that is zero; functions such as exp are at least as accurate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint, Rewriter

from cgc.cirh.base import CirhOp
from cgc.cirh.ops import BroadcastInDimOp, ConstOp, ReshapeOp, TransposeOp
from cgc.cirh.traits import Samples
from cgc.cirh.types import (
    AnyArray,
    Tensor,
    element_count,
    is_cb16,
    tensor_of,
    tensor_type,
)
from cgc.passes.rewriting import current_watch, drop, replace_uses


@dataclass(frozen=True)
class ConstantFoldPass(ModulePass):
    """Replaces ops on constants with constants.

    Attributes:
        max_elements: a result of more elements than this is folded only if it is no larger than the largest
            operand, so that a module does not grow by folding.
    """

    name = "constant-fold"
    max_elements: int = 65536

    def __post_init__(self) -> None:
        if self.max_elements < 0:
            raise ValueError(f"max-elements is {self.max_elements}, expected 0 or more")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place, in one sweep: operands are folded before their users are looked at.

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
        return evaluate(op, [constant.to_array() for constant in constants])


def _replace(op: CirhOp, value: AnyArray) -> None:
    constant = ConstOp.from_array(value).take_origin(op)
    watch = current_watch()
    if watch is not None:
        constants = [operand.op for operand in op.operand_values if isinstance(operand, OpResult)]
        watch.record_rewrite((op, *constants), (constant,))
    Rewriter.insert_op(constant, InsertPoint.before(op))
    replace_uses(op.results[0], constant.result)
    drop(op)


def evaluate(op: CirhOp, operands: Sequence[AnyArray]) -> AnyArray | None:
    """Return the result of a single-result op on these operands, in its own dtype and shape.

    None if the op draws random numbers, if a primitive of its lowering is not in the table of
    `cgc.lowering.evaluate`, or if the result of the device is uncertain.
    """
    if op.TRAITS.samples is Samples.DRAWN:
        return None  # The seed takes less memory than the numbers.
    # Imported here because it loads JAX (0.3 s), which a compile that is found in the cache does not need;
    # other compiles have already loaded it. Ten ops of a transformer take 13 ms, for tracing; running their
    # lowerings with `jax.jit` takes 340 ms, and their last bits would depend on the compiling machine.
    from cgc.lowering.evaluate import evaluate_lowering

    return evaluate_lowering(op, operands)


def evaluate_value(value: SSAValue, limit: int) -> AnyArray | None:
    """Return the elements of a value that depends on no argument; None if that cannot be evaluated exactly.

    Args:
        value: a value of a program.
        limit: the maximum number of elements of it, and of all values that it is computed from.
    """
    op = value.owner
    if isinstance(op, ConstOp):
        return op.to_array()
    if not isinstance(op, CirhOp) or len(op.results) != 1 or element_count(tensor_of(value)) > limit:
        return None
    operands = [evaluate_value(operand, limit) for operand in op.operands]
    known = [operand for operand in operands if operand is not None]
    return evaluate(op, known) if len(known) == len(operands) else None


def constant_splat(value: SSAValue) -> Any | None:
    """Return the constant that all elements of a value equal, through moves and broadcasts; else None."""
    owner: Any = value.owner
    while type(owner) in _MOVES:
        owner = owner.x.owner
    return owner.splat_value() if type(owner) is ConstOp else None


_MOVES = frozenset((BroadcastInDimOp, ReshapeOp, TransposeOp))


def splat_value(rewriter: PatternRewriter, number: float, like: Tensor) -> SSAValue:
    """Return a value of type `like` with equal elements: a broadcast, which stores only one of them."""
    scalar = ConstOp.splat(number, tensor_type((), like.element_type))
    broadcast = BroadcastInDimOp(scalar, like.get_shape(), ())
    rewriter.insert(scalar)
    rewriter.insert(broadcast)
    return broadcast.result


def is_splat_of(value: SSAValue, number: float) -> bool:
    """Return True if all elements of `value` are the constant `number`; -0.0 and 0.0 differ."""
    splat = constant_splat(value)
    if splat is None or float(splat) != number:
        return False
    return math.copysign(1, float(splat)) == math.copysign(1, number)

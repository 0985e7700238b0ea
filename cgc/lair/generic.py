"""Questions about a `linalg.generic`, and the same one with other operands."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.dialects.linalg.ops import IndexOp, YieldOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineMap
from xdsl.rewriter import Rewriter

from cgc.cirh.types import shape_of
from cgc.errors import LoweringError
from cgc.lair.dialect import GenericOp


def loop_extents(op: GenericOp) -> tuple[int, ...]:
    """The number of iterations of every loop.

    Raises:
        LoweringError: no operand tells that of a loop.
    """
    found: dict[int, int] = {}
    for operand, mapping in zip(op.operands, op.maps, strict=True):
        for size, expr in zip(shape_of(operand), mapping.results, strict=True):
            if isinstance(expr, AffineDimExpr):
                found[expr.position] = size
    missing = set(range(len(op.iterator_types))) - found.keys()
    if missing:
        raise LoweringError(f"linalg.generic: no operand tells the extent of loop d{min(missing)}")
    return tuple(found[loop] for loop in range(len(op.iterator_types)))


def points(op: GenericOp) -> int:
    """The number of iterations."""
    return math.prod(loop_extents(op))


def gives_every_loop(maps: Sequence[AffineMap], loops: int) -> bool:
    """Whether every loop is a dimension of some operand by itself, which tells its extent."""
    alone = {expr.position for mapping in maps for expr in mapping.results if isinstance(expr, AffineDimExpr)}
    return len(alone) == loops


def is_move(op: GenericOp) -> bool:
    """Whether it computes nothing: it gives elements of its inputs, or constants, at other places."""
    return all(isinstance(inner, arith.ConstantOp | IndexOp | YieldOp) for inner in op.body.block.ops)


def reads_outputs(op: GenericOp) -> bool:
    """Whether an iteration depends on what its place in an output held before."""
    return any(argument.uses for argument in op.body.block.args[len(op.inputs) :])


def yielded(op: GenericOp) -> YieldOp:
    """The end of the body."""
    last = op.body.block.last_op
    if not isinstance(last, YieldOp):
        raise LoweringError("the body of a linalg.generic does not end in linalg.yield")
    return last


def replaced(
    op: GenericOp,
    inputs: Sequence[SSAValue],
    outputs: Sequence[SSAValue],
    maps: Sequence[AffineMap],
    body: Block,
) -> GenericOp:
    """A nest of the same loops with other operands and body, put in front of `op`."""
    new = GenericOp(
        inputs,
        outputs,
        Region(body),
        [AffineMapAttr(mapping) for mapping in maps],
        op.iterator_types,
        [output.type for output in outputs],
    )
    block = op.parent_block()
    assert block is not None
    block.insert_op_before(new, op)
    return new


def with_operands(
    op: GenericOp, inputs: Sequence[int], merged: dict[int, int], outputs: Collection[int]
) -> GenericOp:
    """The nest with some of its operands; `op` is erased.

    Args:
        op: the nest.
        inputs: positions of the inputs that stay.
        merged: for other inputs that the body reads, the input that stands for it.
        outputs: positions of the outputs that stay; the others are not used by anyone.
    """
    first = len(op.inputs)
    kept_inputs = list(inputs)
    kept = [*kept_inputs, *(first + position for position in sorted(outputs))]
    end = yielded(op)
    block = op.body.detach_block(0)
    for old, other in merged.items():
        block.args[old].replace_all_uses_with(block.args[other])
    block.add_op(YieldOp(*(end.operands[place] for place in sorted(outputs))))
    block.erase_op(end)
    for position in sorted(set(range(len(block.args))).difference(kept), reverse=True):
        block.erase_arg(block.args[position])
    new = replaced(
        op,
        [op.inputs[position] for position in kept_inputs],
        [op.outputs[position] for position in sorted(outputs)],
        [op.maps[position] for position in kept],
        block,
    )
    for position, result in zip(sorted(outputs), new.results, strict=True):
        op.results[position].replace_all_uses_with(result)
    Rewriter.erase_op(op)
    return new


def with_distinct_inputs(op: GenericOp) -> GenericOp:
    """Inputs that are read at the same place become one."""
    first: dict[Hashable, int] = {}
    merged: dict[int, int] = {}
    for position, operand in enumerate(op.inputs):
        known = first.setdefault((operand, op.maps[position]), position)
        if known != position:
            merged[position] = known
    if not merged:
        return op
    return with_operands(op, list(first.values()), merged, range(len(op.outputs)))

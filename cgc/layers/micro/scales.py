"""Rows that are scaled and then summed, as those of a clipped gradient of a table: summed, and then scaled.

The scale follows from all samples, as that of clipping does, so it is known only behind the sum.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cgc.cirh import ops as cirh
from cgc.cirh.interface import graph_function
from cgc.cirh.types import shape_of
from cgc.kernels.program import Program


def scaled_behind_sums(module: ModuleOp) -> None:
    """Rewrites scatter(rows * scale) to scatter(rows) * scale; it differs by rounding."""
    samples = Program(module).per_sample_values
    for op in list(graph_function(module).body.block.ops):
        while isinstance(op, cirh.ScatterNdOp) and (found := _scaled(op.updates, samples)) is not None:
            op = _scale_behind(op, *found)


def _scaled(value: SSAValue, samples: frozenset[SSAValue]) -> tuple[SSAValue, SSAValue] | None:
    """Rows of samples and the scalar that multiplies all of them; None for what is not made so."""
    made = value.owner
    if not isinstance(made, cirh.MulOp):
        return None
    for rows, other in (made.operands, reversed(made.operands)):
        if rows in samples and other not in samples and isinstance(other.owner, cirh.BroadcastInDimOp):
            scalar = other.owner.x
            if shape_of(scalar) == ():
                return rows, scalar
    return None


def _scale_behind(op: cirh.ScatterNdOp, rows: SSAValue, scalar: SSAValue) -> cirh.ScatterNdOp:
    block = op.parent_block()
    assert block is not None
    shape = shape_of(op.result)
    total = cirh.ScatterNdOp(op.indices, rows, shape, op.reduce_kind).take_origin(op)
    scale = cirh.BroadcastInDimOp(scalar, shape, []).take_origin(op)
    scaled = cirh.MulOp(total.result, scale.result).take_origin(op)
    for made in (total, scale, scaled):
        block.insert_op_before(made, op)
    multiplied = op.updates.owner
    op.result.replace_all_uses_with(scaled.result)
    block.erase_op(op)
    if isinstance(multiplied, cirh.MulOp) and not multiplied.result.uses:
        block.erase_op(multiplied)
    return total

"""Norms that count rows of samples, as those of the gradients of a table do, as roots of sums of squares."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from cgc.cirh import ops as cirh
from cgc.cirh.base import CirhOp
from cgc.cirh.interface import graph_function
from cgc.cirh.types import dtype_name, shape_of, tensor_of
from cgc.kernels.program import Program


def sum_squares_of_samples(module: ModuleOp) -> None:
    """Gives operands of norms that have samples a root and a sum of their own: sums add up, norms do not.

    It differs from the joint norm by the rounding of a root and a square.
    """
    samples = Program(module).per_sample_values
    block = graph_function(module).body.block
    for op in list(block.ops):
        if not isinstance(op, cirh.L2NormOp) or samples.isdisjoint(op.operands):
            continue
        operands = [_root(op, value) if value in samples else value for value in op.operands]
        whole = cirh.L2NormOp(*operands)
        whole.attributes.update(op.attributes)
        block.insert_op_before(whole, op)
        op.result.replace_all_uses_with(whole.result)
        block.erase_op(op)


def _root(op: cirh.L2NormOp, value: SSAValue) -> SSAValue:
    block = op.parent_block()
    assert block is not None
    made: list[CirhOp] = []
    if dtype_name(tensor_of(value)) != "float32":
        made.append(cirh.CastOp(value, "float32"))
        value = made[0].results[0]
    square = cirh.MulOp(value, value)
    total = cirh.ReduceOp(square.result, "ADD", range(len(shape_of(value))))
    root = cirh.SqrtOp(total.result)
    for one in (*made, square, total, root):
        block.insert_op_before(one.take_origin(op), op)
    return root.result

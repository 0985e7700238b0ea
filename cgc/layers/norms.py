"""Norms of the gradients of all layers, as norms of the norms of each."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from cgc.cirh.interface import graph_function
from cgc.cirh.ops import L2NormOp


def split_norms(module: ModuleOp) -> None:
    """Gives each tensor under a joint norm a norm of its own, so that gradients need not be there together.

    It differs from the joint norm by the rounding of a root and a square.
    """
    function: FuncOp = graph_function(module)
    block = function.body.block
    for op in list(block.ops):
        if isinstance(op, L2NormOp) and len(op.operands) > 1:
            parts = [L2NormOp(operand) for operand in op.operands]
            block.insert_ops_before(parts, op)
            whole = L2NormOp(*(part.result for part in parts))
            whole.attributes.update(op.attributes)
            block.insert_op_before(whole, op)
            op.result.replace_all_uses_with(whole.result)
            block.erase_op(op)

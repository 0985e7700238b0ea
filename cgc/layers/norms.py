"""Norms of the gradients of all layers, as norms of the norms of each."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from cgc.cirh.interface import graph_function
from cgc.cirh.ops import L2NormOp
from cgc.cirh.types import shape_of


def has_joint_norms(module: ModuleOp) -> bool:
    """Whether there is a norm to split."""
    return any(map(_is_joint, graph_function(module).body.block.ops))


def split_norms(module: ModuleOp) -> None:
    """Gives each tensor under a joint norm a norm of its own, so that gradients need not be there together.

    It differs from the joint norm by the rounding of a root and a square.
    """
    function: FuncOp = graph_function(module)
    block = function.body.block
    for op in list(block.ops):
        if isinstance(op, L2NormOp) and _is_joint(op):
            parts = [L2NormOp.made_of([operand], op.result_types, {}, {}) for operand in op.operand_values]
            block.insert_ops_before(parts, op)
            whole = L2NormOp(*(part.result for part in parts))
            whole.attributes.update(op.attributes)
            block.insert_op_before(whole, op)
            op.result.replace_all_uses_with(whole.result)
            block.erase_op(op)


def _is_joint(op: Operation) -> bool:
    """Whether it is the norm of several values, tensors among them."""
    # By its class: most ops are others, and isinstance takes ten times as long for those.
    if type(op) is not L2NormOp:
        return False
    values = op.operand_values
    return len(values) > 1 and any(map(shape_of, values))

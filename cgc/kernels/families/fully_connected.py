"""Fully connected layers: product with weights, bias, activation, their gradients, the weight update."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.matmul_cost import product_family
from cgc.kernels.products import claim_epilogue, claim_products, weight_operand
from cgc.kernels.program import Program


def match(assignment: Assignment) -> None:
    """Opens a kernel for each matrix product with a state tensor, and gives it all of that layer."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if kind is not ops.MatMulOp or not assignment.is_free(index):
            continue
        weights = _weights(assignment, index)
        if weights is None:
            continue
        group = assignment.open(FAMILY, index)
        states = [weights, *claim_epilogue(assignment, group, index)]
        claim_products(assignment, group, weights, ops.MatMulOp)
        for state in states:
            assignment.claim_update(group, state)


def _weights(assignment: Assignment, index: int) -> SSAValue | None:
    position = weight_operand(assignment, index)
    if position is None:
        return None
    return assignment.program.origin(assignment.program.ops[index].operands[position])[0]


def _label(_program: Program, group: Group) -> str:
    """In published reports a table that is weights as well is one kernel, `emb_fc`."""
    return "emb_fc" if group.sizes.get("lookup") else "fc"


FAMILY = product_family(
    name="fully_connected",
    doc="product with weights, bias, activation, their gradients and weight update",
    match=match,
    label=_label,
)

"""Products of two activations, as in attention: the product and its gradients by both operands."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.kernels.assignment import Assignment
from cgc.kernels.family import Naming
from cgc.kernels.matmul_cost import product_family


def match(assignment: Assignment) -> None:
    """Opens a kernel for each product that is left; backward products that share an operand join it."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if kind is not ops.MatMulOp or not assignment.is_free(index):
            continue
        group = assignment.open(FAMILY, index)
        if index not in program.forward:
            continue
        for operand in program.ops[index].operands:
            origin, _ = program.origin(operand)
            readers = {user for value in (operand, origin) for user in program.users(value)}
            for user in sorted(readers - program.forward):
                if program.kinds[user] is ops.MatMulOp:
                    assignment.claim(group, user)


FAMILY = product_family(
    name="matmul",
    doc="product of two activations and its gradients",
    match=match,
    label=lambda _program, _group: "matmul",
    naming=Naming.BY_LAYER,
)

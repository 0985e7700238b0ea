"""Activations that stand alone: GELU, written-out ones, what no fully connected layer takes with it."""

from __future__ import annotations

from cgc.cirh.composite import CompositeOp
from cgc.cirh.ops import ops_where
from cgc.kernels.assignment import Assignment
from cgc.kernels.formulas import formulas
from cgc.kernels.fully_connected import GRADIENTS

FAMILY = "nlin"
_ALONE = ops_where(lambda op: op.FACTS.activation) | {CompositeOp}


def match(assignment: Assignment) -> None:
    """Opens a kernel for each activation of samples whose neighbours all have kernels, with its gradient.

    Those that a program writes out take as long as those that are one op.
    """
    program = assignment.program
    for index, op in enumerate(program.ops):
        if program.kinds[index] not in _ALONE or not assignment.is_free(index):
            continue
        if not program.is_per_sample(index) or not assignment.stands_alone(index):
            continue
        group = assignment.open(FAMILY, index)
        for value in (op.operands[0], op.results[0]):
            for user in program.users(value):
                if program.kinds[user] in GRADIENTS and user not in program.forward:
                    assignment.claim(group, user)
        if isinstance(op, CompositeOp):
            state, path = program.origin(op.bias)
            for on_the_way in path:
                assignment.claim(group, on_the_way)
            if state in program.state:
                assignment.claim_update(group, state)
    for members in formulas(assignment):
        group = assignment.open(FAMILY, members[0])
        for index in members:
            assignment.claim(group, index)

"""Batch normalization layers: the op, an activation, their gradients, the update of scale and moments."""

from __future__ import annotations

from cgc.cirh.batch_norm import FusedBatchNormGradOp, FusedBatchNormOp
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.fully_connected import claim_epilogue

FAMILY = "normalization"


def match(assignment: Assignment) -> None:
    """Opens a kernel for each normalization with all of its layer, then for each gradient that is left."""
    ops = list(enumerate(assignment.program.ops))
    for index, op in ops:
        if isinstance(op, FusedBatchNormOp) and assignment.is_free(index):
            _claim_layer(assignment, assignment.open(FAMILY, index), op)
    for index, op in ops:
        if isinstance(op, FusedBatchNormGradOp) and assignment.is_free(index):
            assignment.open(FAMILY, index)


def _claim_layer(assignment: Assignment, group: Group, op: FusedBatchNormOp) -> None:
    program = assignment.program
    states = [*claim_epilogue(assignment, group, group.anchor)]
    for reader in program.users(op.x):
        gradient = program.ops[reader]
        if isinstance(gradient, FusedBatchNormGradOp) and gradient.scale is op.scale:
            assignment.claim(group, reader)
    for vector in (op.scale, op.offset, op.mean, op.variance):
        value, path = program.origin(vector)
        if value in program.state:
            states.append(value)
            for on_the_way in path:
                assignment.claim(group, on_the_way)
    moved = program.users(op.batch_mean) + program.users(op.batch_variance)
    states += [
        operand for index in moved for operand in program.ops[index].operands if operand in program.state
    ]
    for state in states:
        assignment.claim_update(group, state)

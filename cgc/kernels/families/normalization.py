"""Batch normalization layers: the op, an activation, their gradients, the update of scale and moments."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh.normalization import FusedBatchNormGradOp, FusedBatchNormOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group, update_region
from cgc.kernels.loop_cost import loop_family
from cgc.kernels.products import claim_epilogue
from cgc.kernels.program import Program


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
    for state in [*states, *_moving_averages(program, op)]:
        assignment.claim_update(group, state)


def _moving_averages(program: Program, op: FusedBatchNormOp) -> list[SSAValue]:
    """The states that follow the moments of an op: what they become is computed from those."""
    moments = {
        index
        for moment in (op.batch_mean, op.batch_variance, op.saved_mean, op.saved_variance)
        for index in program.users(moment)
    }
    return [
        state
        for state in program.replacements
        if shape_of(state) == shape_of(op.saved_mean) and moments.intersection(update_region(program, state))
    ]


FAMILY = loop_family(
    name="normalization",
    doc="batch normalization, an activation, their gradients, update of the vectors",
    match=match,
    has_images=True,
    label="norm",
)

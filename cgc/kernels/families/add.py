"""Sums of two streams: residual connections, gradients that meet."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, single
from cgc.kernels.products import ACTIVATIONS, GRADIENTS
from cgc.kernels.program import Program
from cgc.kernels.row_cost import row_family

SUMS = (ops.AddOp, ops.SubOp)


def match_images(assignment: Assignment) -> None:
    """Opens a kernel for each residual sum of images with the activation behind it."""
    program = assignment.program
    for index in assignment.free():
        forward = index in program.forward and program.is_per_sample(index)
        if forward and program.kinds[index] is ops.AddOp:
            _match_sum(assignment, index)


def _match_sum(assignment: Assignment, index: int) -> None:
    """The sum, the activation that alone reads it, and the gradient of that."""
    program = assignment.program
    op = program.ops[index]
    of_images = len(shape_of(op.results[0])) == 4
    if not of_images or not all(value in program.per_sample_values for value in op.operands):
        return
    activation = single(set(program.users(op.results[0])) & program.forward)
    if activation is None or program.kinds[activation] not in ACTIVATIONS:
        return
    group = assignment.open(FAMILY, index)
    assignment.claim(group, activation)
    for value in (op.results[0], program.ops[activation].results[0]):
        for user in program.users(value):
            if program.kinds[user] in GRADIENTS and user not in program.forward:
                assignment.claim(group, user)


def match(assignment: Assignment) -> None:
    """Opens a kernel for each sum of two streams between kernels."""
    program = assignment.program
    sums = sums_of_samples(assignment)
    others = frozenset(sums)
    for index in sums:
        _claim_inner(assignment, index)
        if (
            assignment.is_free(index)
            and _joins_streams(program, index)
            and assignment.stands_alone(index, others)
        ):
            assignment.open(FAMILY, index)


def sums_of_samples(assignment: Assignment) -> list[int]:
    """Positions of the free sums of two tensors of samples, or of one and something else."""
    program = assignment.program
    return [
        index
        for index in assignment.free()
        if program.kinds[index] in SUMS and program.ops[index].results[0] in program.per_sample_values
    ]


def _claim_inner(assignment: Assignment, index: int) -> None:
    """A sum of two results of one kernel is part of it."""
    program = assignment.program
    owners = {
        None if producer is None else assignment.owner(producer)
        for producer in map(program.producer, program.ops[index].operands)
    }
    if assignment.is_free(index) and len(owners) == 1 and (owner := owners.pop()) is not None:
        assignment.claim(owner, index)


def _joins_streams(program: Program, index: int) -> bool:
    operands = program.ops[index].operands
    return (
        all(operand in program.per_sample_values for operand in operands) and operands[0] is not operands[1]
    )


FAMILY = row_family(
    name="add",
    doc="sum of two streams: a residual connection, or gradients that meet",
    match=match,
    one_way=True,
    has_images=True,
)

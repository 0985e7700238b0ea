"""Branches of convolutional networks: residual sums with an activation, and skip connections."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, single
from cgc.kernels.fully_connected import ACTIVATIONS, GRADIENTS
from cgc.kernels.naming import layer_path
from cgc.kernels.residual import FAMILY as ADD

JOIN = "data_movement"


def match(assignment: Assignment) -> None:
    """Opens a kernel for each residual sum of images with its activation, and for each joint of streams."""
    program = assignment.program
    for index in assignment.free():
        if index not in program.forward or not program.is_per_sample(index):
            continue
        if program.kinds[index] is ops.AddOp:
            _match_sum(assignment, index)
        elif program.kinds[index] is ops.ConcatOp:
            _match_joint(assignment, index)


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
    group = assignment.open(ADD, index)
    assignment.claim(group, activation)
    for value in (op.results[0], program.ops[activation].results[0]):
        for user in program.users(value):
            if program.kinds[user] in GRADIENTS and user not in program.forward:
                assignment.claim(group, user)


def _match_joint(assignment: Assignment, index: int) -> None:
    """The joint, and the slices that cut a gradient of its result into those of its operands."""
    program = assignment.program
    op = program.ops[index]
    parts = {value.type for value in op.operands}
    group = assignment.open(JOIN, index)
    path = layer_path(program, index)
    for other in assignment.free() if path else ():
        cut = program.ops[other]
        if program.kinds[other] not in (ops.SliceOp, ops.SplitOp) or other in program.forward:
            continue
        same_sizes = cut.operands[0].type == op.results[0].type and {r.type for r in cut.results} <= parts
        if same_sizes and layer_path(program, other) == path:
            assignment.claim(group, other)

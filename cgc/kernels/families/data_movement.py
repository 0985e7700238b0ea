"""Joints of streams, such as skip connections, and other ops that only move elements."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.kernels.assignment import Assignment
from cgc.kernels.loop_cost import loop_family


def match(assignment: Assignment) -> None:
    """Opens a kernel for each joint of streams of samples."""
    program = assignment.program
    for index in assignment.free():
        joins = program.kinds[index] is ops.ConcatOp and index in program.forward
        if joins and program.is_per_sample(index):
            _match_joint(assignment, index)


def _match_joint(assignment: Assignment, index: int) -> None:
    """The joint, and the slices that cut a gradient of its result into those of its operands."""
    program = assignment.program
    op = program.ops[index]
    parts = {value.type for value in op.operands}
    group = assignment.open(FAMILY, index)
    path = op.layer
    for other in assignment.free() if path else ():
        cut = program.ops[other]
        if program.kinds[other] not in (ops.SliceOp, ops.SplitOp) or other in program.forward:
            continue
        same_sizes = cut.operands[0].type == op.results[0].type and {r.type for r in cut.results} <= parts
        if same_sizes and cut.layer == path:
            assignment.claim(group, other)


FAMILY = loop_family(
    name="data_movement",
    doc="ops that only move elements",
    match=match,
    has_images=True,
    label="move",
)

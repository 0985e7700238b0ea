"""Joints of streams, such as skip connections, and other ops that only move elements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cgc.cirh import ops
from cgc.cirh.base import LayerPath
from cgc.kernels.assignment import Assignment
from cgc.kernels.loop_cost import loop_family


def match(assignment: Assignment) -> None:
    """Opens a kernel for each joint of streams of samples."""
    program = assignment.program
    joints, cuts = [], defaultdict[LayerPath, list[int]](list)
    for index in assignment.free():
        kind, is_forward = program.kinds[index], index in program.forward
        if kind is ops.ConcatOp and is_forward and program.is_per_sample(index):
            joints.append(index)
        elif kind in (ops.SliceOp, ops.SplitOp) and not is_forward:
            cuts[program.ops[index].layer].append(index)
    for index in joints:
        path = program.ops[index].layer
        _match_joint(assignment, index, cuts[path] if path else ())


def _match_joint(assignment: Assignment, index: int, cuts: Iterable[int]) -> None:
    """Assign a joint, and the slices that cut a gradient of its result into those of its operands.

    Args:
        assignment: Of ops to kernels.
        index: Of the joint.
        cuts: Slices and splits of gradients in its layer; some may have a kernel by now.
    """
    program = assignment.program
    op = program.ops[index]
    parts = {value.type for value in op.operands}
    group = assignment.open(FAMILY, index)
    for other in cuts:
        cut = program.ops[other]
        same_sizes = cut.operands[0].type == op.results[0].type and {r.type for r in cut.results} <= parts
        if same_sizes:
            assignment.claim(group, other)


FAMILY = loop_family(
    name="data_movement",
    doc="ops that only move elements",
    match=match,
    has_images=True,
    label="move",
)

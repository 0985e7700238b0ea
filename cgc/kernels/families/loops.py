"""Kernels that loop over elements: pooling, joints of streams, and the families of generated kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cgc.cirh import ops
from cgc.cirh.base import LayerPath
from cgc.cirh.convolution import PoolOp, WindowOp
from cgc.cirh.ops import BroadcastInDimOp, ReduceOp
from cgc.cirh.types import shape_of, tensor_of
from cgc.kernels.assignment import Assignment, Group, Naming
from cgc.kernels.loop_cost import loop_family


def match_pooling(assignment: Assignment) -> None:
    """Open a kernel for each pooling with its gradient, then for each remaining gradient."""
    ops = enumerate(assignment.program.ops)
    windows = [(index, op) for index, op in ops if isinstance(op, WindowOp)]
    for index, op in windows:
        if isinstance(op, PoolOp) and assignment.is_free(index):
            group = assignment.open(POOLING, index)
            _claim_gradients(assignment, group, op, [other for other in windows if other[1] is not op])
    for index, _ in windows:
        if assignment.is_free(index):
            assignment.open(POOLING, index)
    for index, mean in enumerate(assignment.program.ops):
        if isinstance(mean, ReduceOp) and _pools_images(assignment, index, mean):
            _claim_spread_gradient(assignment, assignment.open(POOLING, index), mean)


def _pools_images(assignment: Assignment, index: int, op: ReduceOp) -> bool:
    """Return True if a forward op takes the mean or maximum over height and width, or over a volume."""
    space = tuple(range(1, len(shape_of(op.x)) - 1))
    over_space = len(space) in (2, 3) and op.dimensions == space and op.reduce_kind in ("MEAN", "MAX")
    program = assignment.program
    return (
        over_space
        and assignment.is_free(index)
        and index in program.forward
        and op.x in program.per_sample_values
    )


def _claim_spread_gradient(assignment: Assignment, group: Group, op: ReduceOp) -> None:
    """Claim the gradient of a mean over images: broadcast over height and width, divided by their size."""
    program = assignment.program
    path = program.ops[group.anchor].layer
    for index in assignment.free():
        spread = program.ops[index]
        if not isinstance(spread, BroadcastInDimOp) or index in program.forward:
            continue
        if spread.results[0].type != op.x.type or spread.layer != path:
            continue
        if spread.operands[0] in program.per_sample_values and assignment.claim(group, index):
            for user in program.user_indices(index):
                if program.kinds[user] in (ops.DivOp, ops.MulOp) and len(program.producers(user)) == 2:
                    assignment.claim(group, user)


def _claim_gradients(
    assignment: Assignment, group: Group, pool: PoolOp, others: list[tuple[int, WindowOp]]
) -> None:
    """Claim the gradients of the same windows: those of MAX by x, those of AVG by layer and shape."""
    program = assignment.program
    gradient = ops.MaxPoolGradOp if pool.pool_type == "MAX" else ops.AvgPoolGradOp
    path = program.ops[group.anchor].layer
    for index, op in others:
        same = op.properties.items() <= pool.properties.items()
        if program.kinds[index] is not gradient or not same:
            continue
        if gradient is ops.MaxPoolGradOp:
            its_own = op.operands[0] is pool.x
        else:
            its_own = bool(path) and path == op.layer
            its_own = its_own and tensor_of(op.results[0]) == tensor_of(pool.x)
        if its_own:
            assignment.claim(group, index)


POOLING = loop_family(
    name="pooling",
    doc="largest elements or means of windows, and the gradient",
    match=match_pooling,
    has_images=True,
    label="pool",
)


def match_joints(assignment: Assignment) -> None:
    """Open a kernel for each joint of streams of samples."""
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
        assignment: of ops to kernels.
        index: of the joint.
        cuts: slices and splits of gradients in its layer; some may have a kernel by now.
    """
    program = assignment.program
    op = program.ops[index]
    parts = {value.type for value in op.operands}
    group = assignment.open(DATA_MOVEMENT, index)
    for other in cuts:
        cut = program.ops[other]
        same_sizes = cut.operands[0].type == op.results[0].type and {r.type for r in cut.results} <= parts
        if same_sizes:
            assignment.claim(group, other)


DATA_MOVEMENT = loop_family(
    name="data_movement",
    doc="ops that only move elements",
    match=match_joints,
    has_images=True,
    label="move",
)

ELEMENTWISE = loop_family(
    name="elementwise",
    doc="ops on elements at one place",
)

REDUCTION = loop_family(
    name="reduction",
    doc="elementwise ops with sums, maxima or scans",
)

OPTIMIZER = loop_family(
    name="optimizer",
    doc="update of parameters whose users are in no other kernel",
    naming=Naming.PLAIN,
)

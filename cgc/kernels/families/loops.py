"""Kernels that loop over elements: pooling, concatenation, and the families of generated kernels."""

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
    is_pooling = len(space) in (2, 3) and op.dimensions == space and op.reduce_kind in ("MEAN", "MAX")
    program = assignment.program
    return (
        is_pooling
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
    """Claim the gradients of a pooling."""
    program = assignment.program
    gradient = ops.MaxPoolGradOp if pool.pool_type == "MAX" else ops.AvgPoolGradOp
    path = program.ops[group.anchor].layer
    for index, op in others:
        same_window = op.properties.items() <= pool.properties.items()
        if program.kinds[index] is not gradient or not same_window:
            continue
        if gradient is ops.MaxPoolGradOp:
            is_gradient = op.operands[0] is pool.x
        else:  # the gradient of a mean does not read x
            is_gradient = bool(path) and path == op.layer
            is_gradient = is_gradient and tensor_of(op.results[0]) == tensor_of(pool.x)
        if is_gradient:
            assignment.claim(group, index)


POOLING = loop_family(
    name="pooling",
    doc="largest elements or means of windows, and the gradient",
    match=match_pooling,
    has_images=True,
    label="pool",
)


def match_concats(assignment: Assignment) -> None:
    """Open a kernel for each concatenation of streams of samples."""
    program = assignment.program
    concats, slices = [], defaultdict[LayerPath, list[int]](list)
    for index in assignment.free():
        kind, is_forward = program.kinds[index], index in program.forward
        if kind is ops.ConcatOp and is_forward and program.is_per_sample(index):
            concats.append(index)
        elif kind in (ops.SliceOp, ops.SplitOp) and not is_forward:
            slices[program.ops[index].layer].append(index)
    for index in concats:
        path = program.ops[index].layer
        _claim_concat(assignment, index, slices[path] if path else ())


def _claim_concat(assignment: Assignment, index: int, slices: Iterable[int]) -> None:
    """Open a kernel for a concatenation and its gradient.

    Args:
        assignment: all ops with their kernels.
        index: position of the concatenation.
        slices: slices and splits of gradients in its layer; some may have a kernel already.
    """
    program = assignment.program
    op = program.ops[index]
    parts = {value.type for value in op.operands}
    group = assignment.open(DATA_MOVEMENT, index)
    for other in slices:
        gradient = program.ops[other]
        of_result = gradient.operands[0].type == op.results[0].type
        if of_result and {result.type for result in gradient.results} <= parts:
            assignment.claim(group, other)


DATA_MOVEMENT = loop_family(
    name="data_movement",
    doc="ops that only move elements",
    match=match_concats,
    has_images=True,
    label="move",
)

ELEMENTWISE = loop_family(
    name="elementwise",
    doc="elementwise ops",
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

"""Pooling layers: pooling and its gradient."""

from __future__ import annotations

from cgc.cirh.pool import PoolOp, WindowOp
from cgc.cirh.types import tensor_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.naming import layer_path

FAMILY = "pooling"


def match(assignment: Assignment) -> None:
    """Opens a kernel for each pooling with its gradient, then for each gradient that is left."""
    ops = enumerate(assignment.program.ops)
    windows = [(index, op) for index, op in ops if isinstance(op, WindowOp)]
    for index, op in windows:
        if isinstance(op, PoolOp) and assignment.is_free(index):
            group = assignment.open(FAMILY, index)
            _claim_gradients(assignment, group, op, [other for other in windows if other[1] is not op])
    for index, _ in windows:
        if assignment.is_free(index):
            assignment.open(FAMILY, index)


def _claim_gradients(
    assignment: Assignment, group: Group, pool: PoolOp, others: list[tuple[int, WindowOp]]
) -> None:
    """The gradients of the same windows: of MAX they read x; of AVG only the name says whose they are."""
    program = assignment.program
    gradient = "MaxPoolGrad" if pool.pool_type == "MAX" else "AvgPoolGrad"
    path = layer_path(program, group.anchor)
    for index, op in others:
        same = op.properties.items() <= pool.properties.items()
        if program.mnemonics[index] != gradient or not same:
            continue
        if gradient == "MaxPoolGrad":
            its_own = op.operands[0] is pool.x
        else:
            its_own = bool(path) and path == layer_path(program, index)
            its_own = its_own and tensor_of(op.results[0]) == tensor_of(pool.x)
        if its_own:
            assignment.claim(group, index)

"""Scalars of a step: learning rate, step counter, loss scale, seeds. One small kernel computes them all."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.family import Naming
from cgc.kernels.loop_cost import loop_family
from cgc.kernels.program import Program, elements
from cgc.kernels.sizing import loop_figures

_MAX_ELEMENTS = 8
"""Seeds and other small vectors count as scalars up to this size."""


def match(assignment: Assignment) -> None:
    """Opens one kernel for all ops that are left and whose tensors are small and do not belong to samples."""
    program = assignment.program
    group = None
    for index in assignment.free():
        op = program.ops[index]
        small = all(_is_small(program, value) for value in (*op.operands, *op.results))
        if not small or program.is_per_sample(index) or program.kinds[index] is ops.ConstOp:
            continue
        if group is None:
            group = assignment.open(FAMILY, index)
        else:
            assignment.claim(group, index)


def _is_small(program: Program, value: SSAValue) -> bool:
    """Whether a value is a scalar or so, or the scalars of all tensors of the step side by side."""
    index = program.producer(value)
    joint = (
        program.ops[index].operands if index is not None and program.kinds[index] is ops.ConcatOp else [value]
    )
    return all(elements(part) <= _MAX_ELEMENTS for part in joint)


def _figures(assignment: Assignment, group: Group) -> dict[str, int]:
    """Those of loops; there is no row that several PEs could share."""
    return {**loop_figures(assignment, group), "row_elements": 1}


FAMILY = loop_family(
    name="control",
    doc="scalars of the step: learning rate, counters, scales",
    match=match,
    figures=_figures,
    naming=Naming.PLAIN,
)

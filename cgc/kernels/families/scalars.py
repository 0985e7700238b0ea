"""Scalars of a step: learning rate, counters, scales, norms of gradients, ranges of labels."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.ops import ReduceOp
from cgc.kernels.assignment import Assignment, Group, Naming
from cgc.kernels.loop_cost import loop_family
from cgc.kernels.program import Program, elements
from cgc.kernels.sizing import loop_figures

# Seeds and other small vectors count as scalars up to this size.
_MAX_SCALAR_ELEMENTS = 8

_RANGE_KINDS = frozenset({"MIN", "MAX"})


def match_scalars(assignment: Assignment) -> None:
    """Open one kernel for all remaining ops whose tensors are small and do not belong to samples."""
    program = assignment.program
    group = None
    for index in assignment.free():
        op = program.ops[index]
        small = all(_is_small(program, value) for value in (*op.operands, *op.results))
        if not small or program.is_per_sample(index) or program.kinds[index] is ops.ConstOp:
            continue
        if group is None:
            group = assignment.open(CONTROL, index)
        else:
            assignment.claim(group, index)


def _is_small(program: Program, value: SSAValue) -> bool:
    """Return True if a value is a scalar or a small vector, or a concatenation of such values."""
    index = program.producer(value)
    joined = (
        program.ops[index].operands if index is not None and program.kinds[index] is ops.ConcatOp else [value]
    )
    return all(elements(part) <= _MAX_SCALAR_ELEMENTS for part in joined)


def _figures(assignment: Assignment, group: Group) -> dict[str, int]:
    # There is no row that several PEs could share.
    return {**loop_figures(assignment, group), "row_elements": 1}


CONTROL = loop_family(
    name="control",
    doc="scalars of the step: learning rate, counters, scales",
    match=match_scalars,
    figures=_figures,
    naming=Naming.PLAIN,
)


def match_gradient_norms(assignment: Assignment) -> None:
    """Assign free ops on tensors of the step, such as sums of squares, to the kernel of their producer."""
    program = assignment.program
    for index in assignment.free():
        operands = [value for value in program.ops[index].operands if elements(value) > _MAX_SCALAR_ELEMENTS]
        if not operands or program.is_per_sample(index):
            continue
        producer = program.producer(max(operands, key=elements))
        owner = None if producer is None else assignment.owner(producer)
        if owner is not None and owner.family is not CONTROL and assignment.claim(owner, index):
            owner.updates.add(index)


def match_ranges(assignment: Assignment) -> None:
    """Assign minima and maxima of labels and ids to a kernel that reads the same numbers."""
    program = assignment.program
    for index in assignment.free():
        op = program.ops[index]
        if (
            not isinstance(op, ReduceOp)
            or op.reduce_kind not in _RANGE_KINDS
            or op.result not in program.outputs
        ):
            continue
        readers = [owner for user in program.users(op.x) if (owner := assignment.owner(user)) is not None]
        if readers and elements(op.result) == 1:
            assignment.claim(readers[0], index)

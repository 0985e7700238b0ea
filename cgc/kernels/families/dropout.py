"""Random numbers, the mask made of them, and its use on activations forward and on deltas backward."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.ops import ops_where
from cgc.cirh.traits import Elements, Samples
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.program import Program, elements
from cgc.kernels.row_cost import row_family

_RANDOM = ops_where(lambda op: op.TRAITS.samples is Samples.DRAWN and op.TRAITS.elements is Elements.MADE)
_USES = frozenset({ops.MulOp, ops.SelectOp, ops.DivOp})
_SCALES = frozenset({ops.MulOp, ops.DivOp})
_CONSTANT = frozenset({ops.ConstOp, ops.BroadcastInDimOp})


def match(assignment: Assignment) -> None:
    """Opens a kernel for each tensor of random numbers."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if kind in _RANDOM and assignment.is_free(index) and program.elements(index) > 1:
            _claim_mask(assignment, assignment.open(FAMILY, index), index)


def _claim_mask(assignment: Assignment, group: Group, index: int) -> None:
    """What depends on the random numbers alone is the mask; ops that join it with other data are uses."""
    program = assignment.program
    size = program.elements(index)
    mask: set[SSAValue] = set(program.ops[index].results)
    pending = program.user_indices(index)
    while pending:
        user = pending.pop(0)
        if program.elements(user) != size or not assignment.is_free(user):
            continue
        if all(operand in mask or _is_constant(program, operand) for operand in program.ops[user].operands):
            assignment.claim(group, user)
            mask.update(program.ops[user].results)
            pending = sorted({*pending, *program.user_indices(user)})
        elif program.kinds[user] in _USES:
            assignment.claim(group, user)
            _claim_scaling(assignment, group, user)


def _claim_scaling(assignment: Assignment, group: Group, use: int) -> None:
    """The multiplication by 1 / (1 - rate) next to a use of the mask, before or after it."""
    program = assignment.program
    for neighbour in (*program.producers(use), *program.user_indices(use)):
        if program.kinds[neighbour] not in _SCALES:
            continue
        if any(_is_constant(program, operand) for operand in program.ops[neighbour].operands):
            assignment.claim(group, neighbour)


def _is_constant(program: Program, value: SSAValue) -> bool:
    producer = program.producer(value)
    return elements(value) == 1 or (producer is not None and program.kinds[producer] in _CONSTANT)


FAMILY = row_family(
    name="dropout",
    doc="random numbers, the mask, and its use forward and backward",
    match=match,
    takes_layer=True,
)

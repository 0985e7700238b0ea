"""Norms of gradients and checks of them: each part runs where its gradient is made."""

from __future__ import annotations

from cgc.kernels.assignment import Assignment
from cgc.kernels.families.control import FAMILY as CONTROL
from cgc.kernels.program import elements

_SMALL = 8


def match(assignment: Assignment) -> None:
    """Gives free ops on tensors of the step, such as sums of squares, to the kernel before them."""
    program = assignment.program
    for index in assignment.free():
        operands = [value for value in program.ops[index].operands if elements(value) > _SMALL]
        if not operands or program.is_per_sample(index):
            continue
        producer = program.producer(max(operands, key=elements))
        owner = None if producer is None else assignment.owner(producer)
        if owner is not None and owner.family is not CONTROL and assignment.claim(owner, index):
            owner.updates.add(index)

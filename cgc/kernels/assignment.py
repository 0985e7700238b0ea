"""Which kernel each op goes to, while the match rules run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.ops import ops_where
from cgc.kernels.family import Family
from cgc.kernels.program import FREE, RELABELS, Program, elements

_T = TypeVar("_T")

_BESIDES = FREE | RELABELS
"""Ops that do not count as neighbours: they have no work of their own."""

_GRADIENT_SOURCES = ops_where(lambda op: op.TRAITS.ends_update)


@dataclass(eq=False)
class Group:
    """A kernel in the making.

    Attributes:
        family: see `cgc.kernels.families`.
        anchor: position of the op that the kernel is named after.
        members: positions of its ops.
        updates: those of them that run once a step to update state.
        generated: no rule of the library matched it.
        sizes: what its rule knows for the cost function, see there.
    """

    family: Family
    anchor: int
    members: set[int] = field(default_factory=set)
    updates: set[int] = field(default_factory=set)
    generated: bool = False
    sizes: dict[str, int] = field(default_factory=dict)


class Assignment:
    """The owner of every op; an op is given away once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.groups: list[Group] = []
        self._owner: list[Group | None] = [None] * len(program.ops)

    def open(self, family: Family, anchor: int, generated: bool = False) -> Group:
        """Starts a kernel with its anchor op."""
        group = Group(family, anchor, generated=generated)
        self.groups.append(group)
        self.claim(group, anchor)
        return group

    def claim(self, group: Group, index: int) -> bool:
        """Gives an op to a kernel unless it has one; returns whether it was free."""
        if self._owner[index] is not None:
            return False
        self._owner[index] = group
        group.members.add(index)
        return True

    def owner(self, index: int) -> Group | None:
        """The kernel of an op."""
        return self._owner[index]

    def is_free(self, index: int) -> bool:
        """Whether an op has no kernel yet."""
        return self._owner[index] is None

    def free(self) -> list[int]:
        """Positions of all ops without a kernel, ascending."""
        return [index for index, owner in enumerate(self._owner) if owner is None]

    def stands_alone(self, index: int, others: Collection[int] = ()) -> bool:
        """Whether all ops next to one have kernels, or are among `others`; casts and such do not count."""
        pending, seen = [index], {index}
        while pending:
            at = pending.pop()
            for near in (*self.program.producers(at), *self.program.user_indices(at)):
                if near in seen:
                    continue
                seen.add(near)
                if self._owner[near] is not None or near in others:
                    continue
                if self.program.kinds[near] not in _BESIDES:
                    return False
                if near not in self.program.constant:
                    pending.append(near)
        return True

    def claim_update(self, group: Group, state: SSAValue) -> None:
        """Gives a kernel the ops that compute the new value of a parameter and of its optimizer state."""
        for index in update_region(self.program, state):
            if self.claim(group, index) and self.program.kinds[index] not in _GRADIENT_SOURCES:
                group.updates.add(index)


def update_region(program: Program, state: SSAValue) -> list[int]:
    """Ops of the shape of a state tensor that lead to its new value, back to the op that makes the gradient.

    The state of the optimizer (of the same size, read by these ops) is followed as well. Where only some
    rows are updated, or have gradients, the ops on these rows belong to it, with the op that finds the
    different ones. Scalars are left out.

    Returns:
        Positions, ascending; empty where the step does not replace the state.
    """
    sizes = {elements(state)}
    if max(sizes) <= 1 or state not in program.replacements:
        return []
    found: set[int] = set()
    followed = {state}
    pending = [program.replacements[state]]
    while pending:
        value = pending.pop()
        index = program.producer(value)
        if index is None:
            if value in program.replacements and value not in followed:
                followed.add(value)
                pending.append(program.replacements[value])
            continue
        if index in found or elements(value) not in sizes or value in program.per_sample_values:
            continue
        found.add(index)
        if program.kinds[index] is ops.ScatterOp:
            _, indices, updates = program.ops[index].operands
            sizes |= {elements(indices), elements(updates)} - {0, 1}
        if program.kinds[index] is ops.PadOp:
            sizes |= {elements(program.ops[index].operands[0])} - {0, 1}
        pending += [operand for operand in _updated_from(program, index) if elements(operand) in sizes]
    return sorted(found)


def _updated_from(program: Program, index: int) -> list[SSAValue]:
    """The operands of an op of an update that belong to the update themselves."""
    operands = list(program.ops[index].operands)
    if program.kinds[index] not in _GRADIENT_SOURCES:
        return operands
    # rows of equal number are summed: finding these numbers is part of the update, the rows are not
    return operands[:1] if program.kinds[index] is ops.ScatterNdOp else []


def single(candidates: Iterable[_T]) -> _T | None:
    """The only element, or None where there are none or several."""
    found = list(candidates)
    return found[0] if len(found) == 1 else None

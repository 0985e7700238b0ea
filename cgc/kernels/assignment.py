"""Kernel families, and the assignment of ops to kernels that their match rules fill."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.activation import CompositeOp
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import ops_where
from cgc.kernels.configurations import Configurations
from cgc.kernels.program import FREE, PASS_THROUGH, RELABELS, Program, elements

CostFunction = Callable[[Mapping[str, int]], Configurations]
Rule = Callable[["Assignment"], None]
"""Gives free ops of a step to kernels."""


_T = TypeVar("_T")

_BESIDES = FREE | RELABELS
"""Ops that do not count as neighbours: they have no work of their own."""

_GRADIENT_SOURCES = ops_where(lambda op: op.TRAITS.ends_update)


ACTIVATIONS = ops_where(lambda op: op.TRAITS.activation) - {ops.GeluOp}
"""Activations that the lines after the core compute; GELU has its own kernel, as in published reports."""

GRADIENTS = ops_where(
    lambda op: op.TRAITS.gradient_of is not None and op.TRAITS.gradient_of.TRAITS.activation
)
_OWN_GRADIENTS = frozenset(op for op in GRADIENTS if op.TRAITS.gradient_of in ACTIVATIONS)
_SUMS = frozenset({ops.BiasAddOp, ops.AddOp})


class Naming(Enum):
    """How the kernels of a family are called in reports."""

    NUMBERED = auto()
    """By their label and a number, whatever the layer is called, as in published reports."""
    BY_LAYER = auto()
    """By the path of their layer, else by their label and a number."""
    PLAIN = auto()
    """By their label."""


def _labelled_by_name(_program: Program, group: Group) -> str:
    return group.family.name


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of kernel.

    Attributes:
        name: of the family, in `Kernel.family`.
        doc: what its kernels do, one line.
        match: the rule that opens its kernels; None where the loop nests of generated kernels do.
        cost: all layouts of a kernel from its parameters.
        parameters: the keys that `cost` reads.
        optional: keys that it reads where they are given.
        figures: the parameters of a group, without those that all families have (`batch`, `stash_bytes`,
            `resident_bytes`) and those of images.
        rows: rows of a sample that stream through a kernel one after the other.
        delay: samples that a kernel holds back, where that is not one of its rows; None for the others.
        has_images: lines of images stream through its kernels.
        keeps_samples: what its backward ops read waits in its own memory; else it lies with the kernels
            beside it that have weights.
        computes_again: its results are computed again for the gradient, from what it read.
        takes_layer: what is left of a kernel's layer belongs to it.
        label: of a group, in names.
        naming: what else is in a name.
        fastest: the law that limits a kernel at its fastest layout; a template of its parameters.
    """

    name: str
    doc: str
    match: Rule | None
    cost: CostFunction
    parameters: frozenset[str]
    figures: Callable[[Assignment, Group], dict[str, int]]
    rows: Callable[[Assignment, Group], int]
    fastest: str
    optional: frozenset[str] = frozenset()
    delay: Callable[[Group], float | None] = lambda _group: None
    has_images: bool = False
    keeps_samples: bool = True
    computes_again: bool = False
    takes_layer: bool = False
    label: Callable[[Program, Group], str] = _labelled_by_name
    naming: Naming = Naming.NUMBERED


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


def weight_operand(assignment: Assignment, index: int) -> int | None:
    """Which operand of a matrix product is a state tensor: 1, 0, or None."""
    program = assignment.program
    for position in (1, 0):
        if program.origin(program.ops[index].operands[position])[0] in program.state:
            return position
    return None


def claim_products(assignment: Assignment, group: Group, weights: SSAValue, product: type[CirhOp]) -> None:
    """The product with the same weights for the delta, and the casts and transposes of the weights."""
    program = assignment.program
    pending = program.users(weights)
    while pending:
        index = pending.pop()
        if program.kinds[index] is product:
            assignment.claim(group, index)
        elif program.kinds[index] in PASS_THROUGH and assignment.claim(group, index):
            pending += program.user_indices(index)


def claim_epilogue(assignment: Assignment, group: Group, index: int) -> list[SSAValue]:
    """Walks from the product over reshapes, casts, bias and one activation; returns the bias tensors."""
    program = assignment.program
    biases: list[SSAValue] = []
    while (following := single(set(program.user_indices(index)) & program.forward)) is not None:
        kind, is_last = program.kinds[following], _activation(program.ops[following]) in ACTIVATIONS
        with_bias = kind in _SUMS or (kind is CompositeOp and is_last)
        bias = _bias(assignment, following) if with_bias else None
        if bias is not None and assignment.is_free(following):
            biases.append(bias[0])
            for on_the_way in bias[1]:
                assignment.claim(group, on_the_way)
        elif not (kind in RELABELS or is_last) or not assignment.is_free(following):
            break
        assignment.claim(group, following)
        index = following
        if is_last:
            break
    _claim_activation_gradient(assignment, group)
    return biases


def _bias(assignment: Assignment, index: int) -> tuple[SSAValue, list[int]] | None:
    """The state tensor that an op adds to its other operand, and the ops that bring it into shape."""
    program = assignment.program
    for operand in reversed(list(program.ops[index].operands)):
        value, path = program.origin_through_broadcast(operand)
        if value in program.state and elements(value) < program.elements(index):
            return value, path
    return None


def _claim_activation_gradient(assignment: Assignment, group: Group) -> None:
    program = assignment.program
    for member in sorted(group.members):
        for user in program.user_indices(member):
            if program.kinds[user] in _OWN_GRADIENTS:
                assignment.claim(group, user)


def constant_shaped(program: Program, index: int) -> bool:
    """Whether an op only spreads something smaller or constant, such as a mask that layers share."""
    return program.kinds[index] in (ops.BroadcastInDimOp, ops.ConstOp) or index in program.constant


def _activation(op: CirhOp) -> type[CirhOp]:
    """The activation that an op is, or is a sum with; the op's own class where it is another op."""
    return op.activation if isinstance(op, CompositeOp) else type(op)

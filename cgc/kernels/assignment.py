"""Kernel families, and the assignment of ops to kernels by the match rules of the families."""

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

# A match rule: assigns free ops of a step to kernels.
Rule = Callable[["Assignment"], None]

_T = TypeVar("_T")

# Ops without work: the next op that works is the neighbor.
_NOT_NEIGHBORS = FREE | RELABELS

_GRADIENT_SOURCES = ops_where(lambda op: op.TRAITS.ends_update)

# Activations that a matrix product kernel computes in the lines after its core. GELU has a separate kernel,
# as in published reports.
ACTIVATIONS = ops_where(lambda op: op.TRAITS.activation) - {ops.GeluOp}

GRADIENTS = ops_where(
    lambda op: op.TRAITS.gradient_of is not None and op.TRAITS.gradient_of.TRAITS.activation
)
_OWN_GRADIENTS = frozenset(op for op in GRADIENTS if op.TRAITS.gradient_of in ACTIVATIONS)
_SUMS = frozenset({ops.BiasAddOp, ops.AddOp})


class Naming(Enum):
    """How reports name the kernels of a family."""

    NUMBERED = auto()
    """Label and number, whatever the name of the layer, as in published reports."""
    BY_LAYER = auto()
    """Path of the layer, else label and number."""
    PLAIN = auto()
    """The label only."""


def _family_name(_program: Program, group: Group) -> str:
    return group.family.name


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of kernel: its match rule, cost function and report texts.

    Attributes:
        name: value of `Kernel.family`.
        doc: one line about its kernels.
        match: the rule that opens its kernels; None for families that are selected by the loop nests of
            generated kernels.
        cost: returns all layouts of a kernel from its parameters.
        parameters: the keys that `cost` reads.
        optional: keys that `cost` reads if they are given.
        figures: returns the parameters of a group, except those that all families have (`batch`,
            `stash_bytes`, `resident_bytes`) and those of images.
        rows: returns the rows of a sample that stream through a kernel sequentially.
        delay: returns the samples that a kernel holds back; None if it holds back one of its rows.
        has_images: lines of images stream through its kernels.
        stores_operands: its kernels store the operands of their backward ops; else neighbors with weights do.
        recomputes_results: its results are recomputed from its operands for the gradient.
        absorbs_layer: unmatched ops of a kernel's layer join the kernel.
        label: returns the name of a group in reports.
        naming: the rest of the name.
        fastest: sentence on the limit of the fastest layout; a template for the kernel's parameters.
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
    stores_operands: bool = True
    recomputes_results: bool = False
    absorbs_layer: bool = False
    label: Callable[[Program, Group], str] = _family_name
    naming: Naming = Naming.NUMBERED


@dataclass(eq=False)
class Group:
    """A kernel under construction.

    Attributes:
        family: of the kernel; `generate_all` sets that of a generated kernel.
        anchor: position of the op that the kernel is named after.
        members: positions of its ops.
        updates: members that run once a step, to update state.
        generated: no rule of the kernel library matched.
        sizes: arguments of the cost function that its rule computes.
    """

    family: Family
    anchor: int
    members: set[int] = field(default_factory=set)
    updates: set[int] = field(default_factory=set)
    generated: bool = False
    sizes: dict[str, int] = field(default_factory=dict)


class Assignment:
    """The kernel of every op; an op is assigned at most once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.groups: list[Group] = []
        self._owner: list[Group | None] = [None] * len(program.ops)

    def open(self, family: Family, anchor: int, generated: bool = False) -> Group:
        """Start a kernel with its anchor op."""
        group = Group(family, anchor, generated=generated)
        self.groups.append(group)
        self.claim(group, anchor)
        return group

    def claim(self, group: Group, index: int) -> bool:
        """Assign an op to a kernel unless it has one.

        Returns:
            True if the op was free.
        """
        if self._owner[index] is not None:
            return False
        self._owner[index] = group
        group.members.add(index)
        return True

    def owner(self, index: int) -> Group | None:
        """Return the kernel of an op, or None."""
        return self._owner[index]

    def is_free(self, index: int) -> bool:
        """Return True if an op has no kernel yet."""
        return self._owner[index] is None

    def free(self) -> list[int]:
        """Return the positions of all ops without a kernel, ascending."""
        return [index for index, owner in enumerate(self._owner) if owner is None]

    def is_isolated(self, index: int, others: Collection[int] = ()) -> bool:
        """Return True if all neighbors of an op have kernels or are among `others`.

        Ops without work, such as casts, are no neighbors: the search continues through them.
        """
        pending, seen = [index], {index}
        while pending:
            current = pending.pop()
            for neighbor in (*self.program.producers(current), *self.program.user_indices(current)):
                if neighbor in seen:
                    continue
                seen.add(neighbor)
                if self._owner[neighbor] is not None or neighbor in others:
                    continue
                if self.program.kinds[neighbor] not in _NOT_NEIGHBORS:
                    return False
                if neighbor not in self.program.constant:
                    pending.append(neighbor)
        return True

    def claim_update(self, group: Group, state: SSAValue) -> None:
        """Claim the ops that compute the new value of a parameter and of its optimizer state."""
        for index in update_region(self.program, state):
            if self.claim(group, index) and self.program.kinds[index] not in _GRADIENT_SOURCES:
                group.updates.add(index)


def update_region(program: Program, state: SSAValue) -> list[int]:
    """Return the ops that compute the new value of a state tensor, without those of its gradient.

    The ops that update the optimizer's state of the tensor are included, ops on scalars are not.

    Returns:
        Positions, ascending; empty if the step does not replace the state.
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
            # Optimizer state that the update reads: its new value is part of the update.
            if value in program.replacements and value not in followed:
                followed.add(value)
                pending.append(program.replacements[value])
            continue
        if index in found or elements(value) not in sizes or value in program.per_sample_values:
            continue
        found.add(index)
        # If only some rows are updated or have gradients, ops on these rows belong to the update as well, and
        # the op that finds the distinct rows.
        if program.kinds[index] is ops.ScatterOp:
            _, indices, updates = program.ops[index].operands
            sizes |= {elements(indices), elements(updates)} - {0, 1}
        if program.kinds[index] is ops.PadOp:
            sizes |= {elements(program.ops[index].operands[0])} - {0, 1}
        pending += [operand for operand in _update_operands(program, index) if elements(operand) in sizes]
    return sorted(found)


def _update_operands(program: Program, index: int) -> list[SSAValue]:
    """Return the operands of an op of an update that may belong to the update."""
    operands = list(program.ops[index].operands)
    if program.kinds[index] not in _GRADIENT_SOURCES:
        return operands
    # The gradient of a table sums rows of equal index. Finding these indices is part of the update, computing
    # the rows is not.
    return operands[:1] if program.kinds[index] is ops.ScatterNdOp else []


def single(candidates: Iterable[_T]) -> _T | None:
    """Return the only element, or None if there are none or several."""
    found = list(candidates)
    return found[0] if len(found) == 1 else None


def weight_operand(assignment: Assignment, index: int) -> int | None:
    """Return the operand of a matrix product that is a state tensor: 1, 0, or None."""
    program = assignment.program
    for position in (1, 0):
        if program.origin(program.ops[index].operands[position])[0] in program.state:
            return position
    return None


def claim_products(assignment: Assignment, group: Group, weights: SSAValue, product: type[CirhOp]) -> None:
    """Claim all products with given weights, such as the input gradient, and casts and transposes."""
    program = assignment.program
    pending = program.users(weights)
    while pending:
        index = pending.pop()
        if program.kinds[index] is product:
            assignment.claim(group, index)
        elif program.kinds[index] in PASS_THROUGH and assignment.claim(group, index):
            pending += program.user_indices(index)


def claim_epilogue(assignment: Assignment, group: Group, index: int) -> list[SSAValue]:
    """Claim the reshapes, casts, bias and one activation after a product, and the activation's gradient.

    Returns:
        The bias tensors.
    """
    program = assignment.program
    biases: list[SSAValue] = []
    while (following := single(set(program.user_indices(index)) & program.forward)) is not None:
        kind, is_last = program.kinds[following], _activation(program.ops[following]) in ACTIVATIONS
        with_bias = kind in _SUMS or (kind is CompositeOp and is_last)
        bias = _bias(assignment, following) if with_bias else None
        if bias is not None and assignment.is_free(following):
            biases.append(bias[0])
            for path_op in bias[1]:
                assignment.claim(group, path_op)
        elif not (kind in RELABELS or is_last) or not assignment.is_free(following):
            break
        assignment.claim(group, following)
        index = following
        if is_last:
            break
    for member in sorted(group.members):
        for gradient in program.user_indices(member):
            if program.kinds[gradient] in _OWN_GRADIENTS:
                assignment.claim(group, gradient)
    return biases


def _bias(assignment: Assignment, index: int) -> tuple[SSAValue, list[int]] | None:
    """Return the bias that an op adds to its other operand, and the ops that broadcast it."""
    program = assignment.program
    for operand in reversed(list(program.ops[index].operands)):
        value, path = program.origin_through_broadcast(operand)
        if value in program.state and elements(value) < program.elements(index):
            return value, path
    return None


def is_broadcast_or_constant(program: Program, index: int) -> bool:
    """Return True if an op only broadcasts a value or is constant, such as a mask of several layers."""
    return program.kinds[index] in (ops.BroadcastInDimOp, ops.ConstOp) or index in program.constant


def _activation(op: CirhOp) -> type[CirhOp]:
    """Return the activation that an op computes last; the class of the op for other ops."""
    return op.activation if isinstance(op, CompositeOp) else type(op)

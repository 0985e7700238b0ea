"""Groups of ops that no rule of the library takes: what is adjacent in a layer is one generated kernel."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import SSAValue

from cgc.cirh.base import LayerPath
from cgc.cirh.optimizer import OptimizerOp
from cgc.kernels.assignment import Assignment, Group, update_region
from cgc.kernels.families.control import FAMILY as CONTROL
from cgc.kernels.families.data_movement import FAMILY as DATA_MOVEMENT
from cgc.kernels.families.elementwise import FAMILY as ELEMENTWISE
from cgc.kernels.families.optimizer import FAMILY as OPTIMIZER
from cgc.kernels.families.reduction import FAMILY as REDUCTION
from cgc.kernels.nests.generated import generate
from cgc.kernels.nests.schedule import GeneratedKernel
from cgc.kernels.program import FREE, RELABELS, Program

MAX_FUSED_OPS = 64
"""Ops of one generated kernel; a longer chain is cut, so that the pieces run in a pipeline."""

_GENERATED = {family.name: family for family in (ELEMENTWISE, REDUCTION, DATA_MOVEMENT)}


def match(assignment: Assignment) -> None:
    """Gives every op that is left to a kernel: its neighbour's if it costs nothing, else a generated one."""
    _follow_producers(assignment)
    _follow_users(assignment)
    _open_fused(assignment)
    _follow_users(assignment)
    _collect_scalars(assignment)


def generate_all(assignment: Assignment) -> dict[int, GeneratedKernel]:
    """The loop nests of all generated kernels by their anchors; the nests decide the families."""
    found = {}
    for group in assignment.groups:
        if group.generated:
            kernel = generate(assignment.program, sorted(group.members))
            group.family = _GENERATED[kernel.family]
            found[group.anchor] = kernel
    return found


def _follow_producers(assignment: Assignment) -> None:
    """Reshapes and casts belong to the kernel whose result they relabel."""
    program = assignment.program
    for index in assignment.free():
        if program.kinds[index] in RELABELS:
            producer = program.producer(program.ops[index].operands[0])
            owner = None if producer is None else assignment.owner(producer)
            if owner is not None and owner.family is not CONTROL:
                assignment.claim(owner, index)


def _follow_users(assignment: Assignment) -> None:
    """Constants, broadcasts and relabelled arguments belong to the kernel of their first user.

    A scalar that several kernels read stays for the kernel of the step's scalars.
    """
    program = assignment.program
    for index in reversed(assignment.free()):
        if program.kinds[index] in FREE | RELABELS:
            owners = [owner for user in program.user_indices(index) if (owner := assignment.owner(user))]
            shared_scalar = program.elements(index) == 1 and any(owner is not owners[0] for owner in owners)
            if owners and not shared_scalar:
                assignment.claim(owners[0], index)


def _collect_scalars(assignment: Assignment) -> None:
    """Shared scalars, and constants that only the step's results read, run with the scalars of the step."""
    group = next((found for found in assignment.groups if found.family is CONTROL), None)
    for index in assignment.free():
        if group is None:
            group = assignment.open(CONTROL, index)
        else:
            assignment.claim(group, index)


def _open_fused(assignment: Assignment) -> None:
    program = assignment.program
    working = [index for index in assignment.free() if program.kinds[index] not in FREE]
    clusters = _Clusters(working)
    for state in program.replacements:
        _join_update(clusters, program, state)
    paths = {index: program.ops[index].layer for index in working}
    for index in working:
        for user in program.user_indices(index):
            if user in clusters and paths[index] == paths[user]:
                clusters.join(index, user)
    _join_layers(clusters, program, paths)
    for members in clusters.groups():
        joined = _group_of_layer(assignment, members[0])
        if joined is not None:
            for member in members:
                assignment.claim(joined, member)
            continue
        updates_only = all(isinstance(program.ops[index], OptimizerOp) for index in members)
        family = OPTIMIZER if updates_only else ELEMENTWISE  # `generate_all` knows better
        group = assignment.open(family, members[0], generated=not updates_only)
        group.updates = _updates(program, members)
        for member in members:
            assignment.claim(group, member)


def _join_layers(clusters: _Clusters, program: Program, paths: dict[int, LayerPath]) -> None:
    """Unites the pieces of a layer, such as its forward and backward ops, unless it has layers inside."""
    every = {op.layer for op in program.ops}
    outer = {path[:depth] for path in every if path for depth in range(len(path))}
    first: dict[LayerPath, int] = {}
    for index, path in paths.items():
        if path and path not in outer:
            clusters.join(first.setdefault(path, index), index)


def _group_of_layer(assignment: Assignment, index: int) -> Group | None:
    """The dropout or loss kernel of the layer that an op belongs to: what is left of it goes there."""
    ops = assignment.program.ops
    path = ops[index].layer
    for group in assignment.groups:
        if path and group.family.takes_layer and ops[group.anchor].layer == path:
            return group
    return None


def _join_update(clusters: _Clusters, program: Program, state: SSAValue) -> None:
    """The update of a parameter runs where the parameter is used."""
    region = [index for index in update_region(program, state) if index in clusters]
    users = [index for index in program.users(state) if index in clusters and index in program.forward]
    for index in (*region[1:], *users[:1]):
        clusters.join(region[0] if region else index, index)


def _updates(program: Program, members: Iterable[int]) -> set[int]:
    return {index for index in members if not program.is_per_sample(index)}


class _Clusters:
    """Disjoint sets of ops with a limit on their size."""

    def __init__(self, indices: Iterable[int]) -> None:
        self._parent = {index: index for index in indices}
        self._size = dict.fromkeys(self._parent, 1)

    def __contains__(self, index: int) -> bool:
        return index in self._parent

    def join(self, a: int, b: int) -> None:
        """Unites the sets of two ops unless the union is too large."""
        first, second = sorted((self._root(a), self._root(b)))
        if first != second and self._size[first] + self._size[second] <= MAX_FUSED_OPS:
            self._parent[second] = first
            self._size[first] += self._size[second]

    def groups(self) -> list[list[int]]:
        """The sets, each ascending, ordered by their first op."""
        found: dict[int, list[int]] = {}
        for index in sorted(self._parent):
            found.setdefault(self._root(index), []).append(index)
        return list(found.values())

    def _root(self, index: int) -> int:
        while self._parent[index] != index:
            self._parent[index] = self._parent[self._parent[index]]
            index = self._parent[index]
        return index

"""Tables whose rows are looked up by number, and their update."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.fully_connected import FAMILY as FULLY_CONNECTED
from cgc.kernels.program import elements

FAMILY = "embedding"
_SCALES = frozenset({ops.MulOp, ops.DivOp})


def match(assignment: Assignment) -> None:
    """Opens a kernel for each table; one that a fully connected layer uses as weights is in its kernel.

    A lookup of samples opens it: one of the rows that an update takes, also of the optimizer's state, is part
    of the update.
    """
    program = assignment.program
    by_table: dict[SSAValue, Group] = {}
    lookups = [index for index, kind in enumerate(program.kinds) if kind is ops.GatherOp]
    for index in sorted(lookups, key=lambda index: index not in program.forward):
        if not assignment.is_free(index):
            continue
        table, path = program.origin(program.ops[index].operands[0])
        if table not in program.state or elements(table) <= 1:
            continue
        group = by_table.get(table) or _tied(assignment, table)
        if group is None:
            group = assignment.open(FAMILY, index)
        by_table[table] = group
        for on_the_way in (index, *path):
            assignment.claim(group, on_the_way)
        assignment.claim_update(group, table)
        _claim_scale(assignment, group, index)


def _tied(assignment: Assignment, table: SSAValue) -> Group | None:
    """The fully connected kernel whose weights a table is."""
    program = assignment.program
    for user in program.users(table):
        readers = [user, *program.user_indices(user)] if program.kinds[user] is ops.CastOp else [user]
        for reader in readers:
            owner = assignment.owner(reader)
            if (
                owner is not None
                and owner.family == FULLY_CONNECTED
                and program.kinds[reader] is ops.MatMulOp
            ):
                owner.sizes["lookup"] = 1
                return owner
    return None


def _claim_scale(assignment: Assignment, group: Group, index: int) -> None:
    """The factor that rows are multiplied with behind a lookup, and its gradient before the update."""
    program = assignment.program
    if index not in program.forward:
        return
    near = program.users_through_casts(index)
    for member in sorted(group.members):
        if program.kinds[member] is ops.ScatterNdOp:
            origin, _ = program.origin(program.ops[member].operands[1])
            producer = program.producer(origin)
            near += [] if producer is None or producer in program.forward else [producer]
    for user in near:
        constant = any(
            program.producer(operand) in program.constant for operand in program.ops[user].operands
        )
        if program.kinds[user] in _SCALES and constant:
            assignment.claim(group, user)

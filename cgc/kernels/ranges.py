"""The smallest and the largest of labels and ids, which a run checks: found where these are read anyway."""

from __future__ import annotations

from cgc.cirh.ops import ReduceOp
from cgc.kernels.assignment import Assignment
from cgc.kernels.program import elements

_KINDS = frozenset({"MIN", "MAX"})


def match(assignment: Assignment) -> None:
    """Gives each to a kernel that reads its numbers; opens none."""
    program = assignment.program
    for index in assignment.free():
        op = program.ops[index]
        if not isinstance(op, ReduceOp) or op.reduce_kind not in _KINDS or op.result not in program.outputs:
            continue
        readers = [owner for user in program.users(op.x) if (owner := assignment.owner(user)) is not None]
        if readers and elements(op.result) == 1:
            assignment.claim(readers[0], index)

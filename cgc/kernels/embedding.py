"""Tables whose rows are looked up by number, and their update."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.program import elements

FAMILY = "embedding"


def match(assignment: Assignment) -> None:
    """Opens a kernel for each table; the update of a table that a fully connected layer shares is there.

    A lookup of samples opens it: one of the rows that an update takes, also of the optimizer's state, is part
    of the update.
    """
    program = assignment.program
    by_table: dict[SSAValue, Group] = {}
    lookups = [index for index, mnemonic in enumerate(program.mnemonics) if mnemonic == "Gather"]
    for index in sorted(lookups, key=lambda index: index not in program.forward):
        if not assignment.is_free(index):
            continue
        table, path = program.origin(program.ops[index].operands[0])
        if table not in program.state or elements(table) <= 1:
            continue
        if table in by_table:
            assignment.claim(by_table[table], index)
            continue
        group = by_table[table] = assignment.open(FAMILY, index)
        for on_the_way in path:
            assignment.claim(group, on_the_way)
        assignment.claim_update(group, table)

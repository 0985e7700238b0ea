"""Embedding tables, whose rows are looked up by index, and their update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.kernels.assignment import Assignment, Family, Group
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Configurations, line_ladder, whole_cycles
from cgc.kernels.cost import width_factor
from cgc.kernels.families.products import FULLY_CONNECTED
from cgc.kernels.program import elements
from cgc.kernels.row_cost import PARAMETERS
from cgc.kernels.sizing import ROW_LIMIT_TEXT, row_figures, widest_rows

_SCALES = frozenset({ops.MulOp, ops.DivOp})


def match_tables(assignment: Assignment) -> None:
    """Open a kernel for each table; one that is also a weight of a fully connected layer joins its kernel."""
    program = assignment.program
    by_table: dict[SSAValue, Group] = {}
    lookups = [index for index, kind in enumerate(program.kinds) if kind is ops.GatherOp]
    # Forward lookups first: the update of a table contains lookups as well, of the updated rows and of the
    # optimizer's state, which must not open kernels.
    for index in sorted(lookups, key=lambda index: index not in program.forward):
        if not assignment.is_free(index):
            continue
        table, path = program.origin(program.ops[index].operands[0])
        if table not in program.state or elements(table) <= 1:
            continue
        group = by_table.get(table) or _tied_kernel(assignment, table)
        if group is None:
            group = assignment.open(EMBEDDING, index)
        by_table[table] = group
        for path_op in (index, *path):
            assignment.claim(group, path_op)
        assignment.claim_update(group, table)
        _claim_scale(assignment, group, index)


def _tied_kernel(assignment: Assignment, table: SSAValue) -> Group | None:
    """Return the fully connected kernel that has a table as its weights."""
    program = assignment.program
    for user in program.users(table):
        readers = [user, *program.user_indices(user)] if program.kinds[user] is ops.CastOp else [user]
        for reader in readers:
            owner = assignment.owner(reader)
            if (
                owner is not None
                and owner.family is FULLY_CONNECTED
                and program.kinds[reader] is ops.MatMulOp
            ):
                owner.sizes["lookup"] = 1
                return owner
    return None


def _claim_scale(assignment: Assignment, group: Group, index: int) -> None:
    """Claim the scaling of rows after a lookup, and of their gradients before the update."""
    program = assignment.program
    if index not in program.forward:
        return
    candidates = program.users_through_casts(index)
    for member in sorted(group.members):
        if program.kinds[member] is ops.ScatterNdOp:
            origin, _ = program.origin(program.ops[member].operands[1])
            producer = program.producer(origin)
            candidates += [] if producer is None or producer in program.forward else [producer]
    for user in candidates:
        constant = any(
            program.producer(operand) in program.constant for operand in program.ops[user].operands
        )
        if program.kinds[user] in _SCALES and constant:
            assignment.claim(group, user)


_MAX_LINE_LENGTH = 800


def _configurations(parameters: Mapping[str, int]) -> Configurations:
    """Return all rectangles; more PEs hold more of the table, but do not speed up a lookup."""
    ladder = line_ladder(_MAX_LINE_LENGTH)
    width, height = (grid.ravel() for grid in np.meshgrid(ladder, ladder, indexing="ij"))
    pes = width * height
    factor = width_factor(parameters) * parameters["passes"] / 2 * parameters["rows"]
    update = parameters["step_millicycles"] / 1000 / parameters["batch"] / pes
    cycles = factor * coefficient("lookup_row") + update
    groups = math.ceil(parameters["row_elements"] / coefficient("stream_group"))
    wire = factor * coefficient("lookup_wire") * parameters["row_elements"] / groups
    return Configurations(
        width=width,
        height=height,
        compute_cycles=whole_cycles(cycles),
        transmission_cycles=whole_cycles(np.full(width.shape, wire)),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + parameters["resident_bytes"] / pes).astype(
            np.int64
        ),
        busy_pe_cycles=coefficient("emb_busy") * cycles * pes,
        resident_bytes=np.full(width.shape, float(parameters["resident_bytes"])),
    )


EMBEDDING = Family(
    name="embedding",
    doc="rows of a table, and the update of the table",
    match=match_tables,
    cost=_configurations,
    parameters=PARAMETERS,
    figures=row_figures,
    rows=widest_rows,
    fastest=ROW_LIMIT_TEXT,
    label=lambda _program, _group: "emb",
)

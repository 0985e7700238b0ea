"""Sums with a position code: the same for every sample, constant or learned."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment
from cgc.kernels.families.add import sums_of_samples
from cgc.kernels.program import Program, elements
from cgc.kernels.row_cost import row_family


def match(assignment: Assignment) -> None:
    """Opens a kernel for each sum of a stream with a position code."""
    for index in sums_of_samples(assignment):
        code = _position_code(assignment.program, index)
        if code is not None:
            _claim_positions(assignment, index, code)


def _position_code(program: Program, index: int) -> SSAValue | None:
    """The state or constant rows that a sum adds to every sample; None where it adds something else."""
    if index not in program.forward:
        return None
    result = elements(program.ops[index].results[0]) // program.batch_size
    for operand in program.ops[index].operands:
        if operand in program.per_sample_values:
            continue
        value, _ = program.origin_through_broadcast(operand)
        producer = program.producer(value)
        constant = producer is not None and producer in program.constant
        known = constant or _table(program, value)[0] in program.state
        if known and elements(value) == result and len(shape_of(value)) >= 2:
            return value
    return None


def _table(program: Program, code: SSAValue) -> tuple[SSAValue, list[int]]:
    """The table that a position code is, or is the rows of a shorter sequence of; the ops between."""
    producer = program.producer(code)
    if producer is None or program.kinds[producer] is not ops.SliceOp:
        return code, []
    table, path = program.origin(program.ops[producer].operands[0])
    return table, [producer, *path]


def _claim_positions(assignment: Assignment, index: int, code: SSAValue) -> None:
    program = assignment.program
    group = assignment.open(FAMILY, index)
    for operand in program.ops[index].operands:
        value, path = program.origin_through_broadcast(operand)
        if value is code:
            for on_the_way in path:
                assignment.claim(group, on_the_way)
    table, path = _table(program, code)
    if table in program.state:
        for on_the_way in path:
            assignment.claim(group, on_the_way)
        assignment.claim_update(group, table)
    else:
        for made in program.ancestors([code]):
            assignment.claim(group, made)


FAMILY = row_family(
    name="pos_encoding",
    doc="sum with a position code, and its update where it is learned",
    match=match,
    one_way=True,
)

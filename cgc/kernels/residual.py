"""Sums of two streams: residual connections, gradients that meet, position codes."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment
from cgc.kernels.program import Program, elements

FAMILY = "add"
POSITIONS = "pos_encoding"
_SUMS = frozenset({ops.AddOp, ops.SubOp})


def match(assignment: Assignment) -> None:
    """Opens a kernel for each sum of a stream with a position code, and of two streams between kernels."""
    program = assignment.program
    sums = [
        index
        for index in assignment.free()
        if program.kinds[index] in _SUMS and program.ops[index].results[0] in program.per_sample_values
    ]
    for index in sums:
        code = _position_code(program, index)
        if code is not None:
            _claim_positions(assignment, index, code)
    others = frozenset(sums)
    for index in sums:
        _claim_inner(assignment, index)
        if (
            assignment.is_free(index)
            and _joins_streams(program, index)
            and assignment.stands_alone(index, others)
        ):
            assignment.open(FAMILY, index)


def _claim_inner(assignment: Assignment, index: int) -> None:
    """A sum of two results of one kernel is part of it."""
    program = assignment.program
    owners = {
        None if producer is None else assignment.owner(producer)
        for producer in map(program.producer, program.ops[index].operands)
    }
    if assignment.is_free(index) and len(owners) == 1 and (owner := owners.pop()) is not None:
        assignment.claim(owner, index)


def _joins_streams(program: Program, index: int) -> bool:
    operands = program.ops[index].operands
    return (
        all(operand in program.per_sample_values for operand in operands) and operands[0] is not operands[1]
    )


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
    group = assignment.open(POSITIONS, index)
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

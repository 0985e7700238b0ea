"""Layers that work on rows of streams: residual sums, position encodings, dropout."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.ops import ops_where
from cgc.cirh.traits import Elements, Samples
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import ACTIVATIONS, GRADIENTS, Assignment, Group, single
from cgc.kernels.program import Program, elements
from cgc.kernels.row_cost import row_family

SUMS = (ops.AddOp, ops.SubOp)

_RANDOM = ops_where(lambda op: op.TRAITS.samples is Samples.DRAWN and op.TRAITS.elements is Elements.MADE)
_MASK_USES = frozenset({ops.MulOp, ops.SelectOp, ops.DivOp})
_SCALES = frozenset({ops.MulOp, ops.DivOp})
_CONSTANT = frozenset({ops.ConstOp, ops.BroadcastInDimOp})


def match_sums_of_images(assignment: Assignment) -> None:
    """Open a kernel for each residual sum of images with the activation that follows it."""
    program = assignment.program
    for index in assignment.free():
        forward = index in program.forward and program.is_per_sample(index)
        if forward and program.kinds[index] is ops.AddOp:
            _match_sum_of_images(assignment, index)


def _match_sum_of_images(assignment: Assignment, index: int) -> None:
    """Claim a sum, the activation that is its only reader, and the gradient of the activation."""
    program = assignment.program
    op = program.ops[index]
    is_image = len(shape_of(op.results[0])) == 4
    if not is_image or not all(value in program.per_sample_values for value in op.operands):
        return
    activation = single(set(program.users(op.results[0])) & program.forward)
    if activation is None or program.kinds[activation] not in ACTIVATIONS:
        return
    group = assignment.open(ADD, index)
    assignment.claim(group, activation)
    for value in (op.results[0], program.ops[activation].results[0]):
        for user in program.users(value):
            if program.kinds[user] in GRADIENTS and user not in program.forward:
                assignment.claim(group, user)


def match_sums(assignment: Assignment) -> None:
    """Open a kernel for each sum of two streams, unless both come from the same kernel."""
    program = assignment.program
    sums = sums_of_samples(assignment)
    others = frozenset(sums)
    for index in sums:
        owners = {
            None if producer is None else assignment.owner(producer)
            for producer in map(program.producer, program.ops[index].operands)
        }
        if assignment.is_free(index) and len(owners) == 1 and (owner := owners.pop()) is not None:
            assignment.claim(owner, index)
        if (
            assignment.is_free(index)
            and _joins_streams(program, index)
            and assignment.is_isolated(index, others)
        ):
            assignment.open(ADD, index)


def sums_of_samples(assignment: Assignment) -> list[int]:
    """Return the positions of the free sums with an operand of samples."""
    program = assignment.program
    return [
        index
        for index in assignment.free()
        if program.kinds[index] in SUMS and program.ops[index].results[0] in program.per_sample_values
    ]


def _joins_streams(program: Program, index: int) -> bool:
    operands = program.ops[index].operands
    return (
        all(operand in program.per_sample_values for operand in operands) and operands[0] is not operands[1]
    )


ADD = row_family(
    name="add",
    doc="sum of two streams: a residual connection, or gradients that meet",
    match=match_sums,
    one_way=True,
    has_images=True,
)


def match_pos_encoding(assignment: Assignment) -> None:
    """Open a kernel for each sum of a stream with a position code."""
    for index in sums_of_samples(assignment):
        code = _position_code(assignment.program, index)
        if code is not None:
            _claim_positions(assignment, index, code)


def _position_code(program: Program, index: int) -> SSAValue | None:
    """Return the state or constant rows that a sum adds to every sample; None if it adds anything else."""
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
    """Return the table whose first rows a position code is, or the code itself, and the ops between them."""
    producer = program.producer(code)
    if producer is None or program.kinds[producer] is not ops.SliceOp:
        return code, []
    table, path = program.origin(program.ops[producer].operands[0])
    return table, [producer, *path]


def _claim_positions(assignment: Assignment, index: int, code: SSAValue) -> None:
    """Claim a sum with a position code, and the code's slices, gradient and update."""
    program = assignment.program
    group = assignment.open(POS_ENCODING, index)
    for operand in program.ops[index].operands:
        value, path = program.origin_through_broadcast(operand)
        if value is code:
            for path_op in path:
                assignment.claim(group, path_op)
    table, path = _table(program, code)
    if table in program.state:
        for path_op in path:
            assignment.claim(group, path_op)
        assignment.claim_update(group, table)
    else:
        for code_op in program.ancestors([code]):
            assignment.claim(group, code_op)


POS_ENCODING = row_family(
    name="pos_encoding",
    doc="sum with a position code, and its update where it is learned",
    match=match_pos_encoding,
    one_way=True,
)


def match_dropout(assignment: Assignment) -> None:
    """Open a kernel for each tensor of random numbers."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if kind in _RANDOM and assignment.is_free(index) and program.elements(index) > 1:
            _claim_mask(assignment, assignment.open(DROPOUT, index), index)


def _claim_mask(assignment: Assignment, group: Group, index: int) -> None:
    """Claim the ops of a mask, which depends only on random numbers, and the ops that apply it to data."""
    program = assignment.program
    size = program.elements(index)
    mask: set[SSAValue] = set(program.ops[index].results)
    pending = program.user_indices(index)
    while pending:
        user = pending.pop(0)
        if program.elements(user) != size or not assignment.is_free(user):
            continue
        if all(operand in mask or _is_constant(program, operand) for operand in program.ops[user].operands):
            assignment.claim(group, user)
            mask.update(program.ops[user].results)
            pending = sorted({*pending, *program.user_indices(user)})
        elif program.kinds[user] in _MASK_USES:
            assignment.claim(group, user)
            # The multiplication by 1 / (1 - rate) is before or after a use of the mask.
            for scaling in (*program.producers(user), *program.user_indices(user)):
                if program.kinds[scaling] not in _SCALES:
                    continue
                if any(_is_constant(program, operand) for operand in program.ops[scaling].operands):
                    assignment.claim(group, scaling)


def _is_constant(program: Program, value: SSAValue) -> bool:
    producer = program.producer(value)
    return elements(value) == 1 or (producer is not None and program.kinds[producer] in _CONSTANT)


DROPOUT = row_family(
    name="dropout",
    doc="random numbers, the mask, and its use forward and backward",
    match=match_dropout,
    absorbs_layer=True,
)

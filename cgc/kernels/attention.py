"""Attention layers: projections, softmax of the products, the projection behind, all of their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.attention import AttentionGradOp, AttentionOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group, single
from cgc.kernels.causal import is_causal
from cgc.kernels.fully_connected import claim_epilogue, claim_products, constant_shaped, weight_operand
from cgc.kernels.program import PASS_THROUGH, RELABELS, Program, elements
from cgc.kernels.work import element_bytes
from cgc.passes.values import constant_splat

FAMILY = "attention"
_SCORES = RELABELS | frozenset(
    {ops.AddOp, ops.SubOp, ops.MulOp, ops.DivOp, ops.MaxOp, ops.MinOp, ops.ClampOp}
    | {ops.SelectOp, ops.SoftmaxOp}
)
_ON_THE_WAY = PASS_THROUGH | frozenset(
    {ops.BiasAddOp, ops.AddOp, ops.MulOp, ops.SliceOp, ops.StridedSliceOp, ops.SplitOp}
)


@dataclass(frozen=True)
class _Core:
    """The middle of an attention: the op that anchors it, what it reads, what it gives.

    Attributes:
        anchor: position of the attention, or of the softmax where it was not fused.
        query: `[..., L, D]`.
        key: `[..., S, D]`.
        value: `[..., S, E]`.
        context: `[..., L, E]`.
        members: ops that belong to it.
    """

    anchor: int
    query: SSAValue
    key: SSAValue
    value: SSAValue
    context: SSAValue
    members: frozenset[int]


def match(assignment: Assignment) -> None:
    """Opens a kernel for each attention with its projections, and for each softmax between two products."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if not assignment.is_free(index) or index not in program.forward:
            continue
        core = None
        if kind is ops.AttentionOp:
            core = _fused(program, index)
        elif kind is ops.SoftmaxOp:
            core = _unfused(assignment, index)
        if core is not None:
            _claim_layer(assignment, core)


def _fused(program: Program, index: int) -> _Core:
    op = program.ops[index]
    assert isinstance(op, AttentionOp)
    members = {index}
    for user in program.users(op.query):
        gradient = program.ops[user]
        if isinstance(gradient, AttentionGradOp) and gradient.key is op.key and gradient.value is op.value:
            members.add(user)
    if op.keep is not None:
        members |= _made_for(program, op.keep, members)
    return _Core(index, op.query, op.key, op.value, op.context, frozenset(members))


def _made_for(program: Program, mask: SSAValue, users: set[int]) -> set[int]:
    """The random numbers of a mask and the ops that make it of them, where nobody else reads it."""
    found: set[int] = set()
    pending = [mask]
    while pending:
        value = pending.pop()
        index = program.producer(value)
        if index is None or index in found or elements(value) != elements(mask) or index in program.constant:
            continue
        if set(program.user_indices(index)) <= users | found:
            found.add(index)
            pending += program.ops[index].operands
    return found


def _unfused(assignment: Assignment, index: int) -> _Core | None:
    """A softmax whose operand comes from a product of two activations, and whose result goes into another."""
    program = assignment.program
    scores = shape_of(program.ops[index].results[0])
    if len(scores) < 3:
        return None
    before = _walk(assignment, index, scores, forward=False)
    after = _walk(assignment, index, scores, forward=True)
    if before is None or after is None:
        return None
    query, key = program.ops[before].operands
    probabilities, value = program.ops[after].operands
    if shape_of(probabilities) != scores:
        return None
    members = _of_these_scores(assignment, {before, index, after}, scores)
    return _Core(index, query, key, value, program.ops[after].results[0], frozenset(members))


def _walk(assignment: Assignment, start: int, scores: tuple[int, ...], forward: bool) -> int | None:
    """The product at the other end of a chain of elementwise ops on the scores, None where there is none."""
    program = assignment.program
    pending, seen = [start], {start}
    while pending:
        index = pending.pop(0)
        near = program.user_indices(index) if forward else program.producers(index)
        for other in near:
            if other in seen or other not in program.forward or not assignment.is_free(other):
                continue
            seen.add(other)
            if program.kinds[other] is ops.MatMulOp and weight_operand(assignment, other) is None:
                return other
            if program.kinds[other] in _SCORES and shape_of(program.ops[other].results[0]) == scores:
                pending.append(other)
    return None


def _of_these_scores(assignment: Assignment, core: set[int], scores: tuple[int, ...]) -> set[int]:
    """All free ops that read or write a tensor of the scores' shape that comes from the core."""
    program = assignment.program
    found, pending = set(core), list(core)
    while pending:
        index = pending.pop()
        op = program.ops[index]
        near = [
            user
            for result in op.results
            if shape_of(result) == scores and not constant_shaped(program, index)
            for user in program.users(result)
        ]
        near += [
            producer
            for operand in op.operands
            if shape_of(operand) == scores
            and (producer := program.producer(operand)) is not None
            and not constant_shaped(program, producer)
        ]
        new = {other for other in near if other not in found and assignment.is_free(other)}
        found |= new
        pending += new
    return found


def _claim_layer(assignment: Assignment, core: _Core) -> None:
    group = assignment.open(FAMILY, core.anchor)
    read = [operand for index in core.members for operand in assignment.program.ops[index].operands]
    masks = assignment.program.constants_behind(read)
    for index in sorted(core.members | masks):
        assignment.claim(group, index)
    projections = [
        _claim_projection(assignment, group, value) for value in (core.query, core.key, core.value)
    ]
    outputs = _claim_output(assignment, group, core.context)
    _claim_between(assignment, group)
    program = assignment.program
    *leading, rows, depth = shape_of(core.query)
    heads = max(1, math.prod(leading) // program.batch_size)
    products = {product for product in projections if product is not None}
    first = min(products, default=None)
    inputs = shape_of(program.ops[first].operands[0])[-1] if first is not None else heads * depth
    trained = any(index not in program.forward for index in group.members - group.updates)
    keys = shape_of(core.key)[-2]
    beside = [value for value in read if value not in (core.query, core.key, core.value)]
    group.sizes = {
        "rows": max(1, rows),
        "keys": max(1, keys),
        "causal": int(rows == keys and is_causal(program, core.members, beside, rows)),
        "heads": heads,
        "inputs": max(1, inputs),
        "width": max(1, heads * depth),
        "projections": sum(product is not None for product in projections),
        "outputs": outputs,
        "passes": 3 if trained else 1,
        "element_bytes": element_bytes(core.query),
    }


def _claim_projection(assignment: Assignment, group: Group, value: SSAValue) -> int | None:
    """The product with weights that makes queries, keys or values, with its bias; None without one."""
    program = assignment.program
    path: list[int] = []
    while (index := program.producer(value)) is not None and index in program.forward:
        if program.kinds[index] is ops.MatMulOp:
            break
        if program.kinds[index] not in _ON_THE_WAY or assignment.owner(index) not in (None, group):
            return None
        path.append(index)
        value = program.ops[index].operands[0]
    if (
        index is None
        or program.kinds[index] is not ops.MatMulOp
        or assignment.owner(index) not in (None, group)
    ):
        return None
    position = weight_operand(assignment, index)
    if position is None:
        return None
    for on_the_way in path:
        assignment.claim(group, on_the_way)
    if assignment.claim(group, index):
        _claim_weights(assignment, group, index, position, path)
    return index


def _claim_weights(
    assignment: Assignment, group: Group, index: int, position: int, following: Iterable[int]
) -> None:
    """Gradients and updates of a product's weights and of the biases behind it."""
    program = assignment.program
    weights = program.origin(program.ops[index].operands[position])[0]
    claim_products(assignment, group, weights, ops.MatMulOp)
    states = [weights]
    for other in following:
        for operand in program.ops[other].operands[1:]:
            origin, path = program.origin(operand)
            if origin in program.state:
                states.append(origin)
                for on_the_way in path:
                    assignment.claim(group, on_the_way)
    for state in states:
        assignment.claim_update(group, state)


def _claim_output(assignment: Assignment, group: Group, context: SSAValue) -> int:
    """The product with weights behind the heads, with its bias; returns its outputs, 0 without one."""
    program = assignment.program
    path: list[int] = []
    value = context
    while (index := single(set(program.users(value)) & program.forward)) is not None:
        if program.kinds[index] is ops.MatMulOp:
            break
        if program.kinds[index] not in PASS_THROUGH or not assignment.is_free(index):
            return 0
        path.append(index)
        value = program.ops[index].results[0]
    if index is None or not assignment.is_free(index):
        return 0
    position = weight_operand(assignment, index)
    if position is None:
        return 0
    for on_the_way in (*path, index):
        assignment.claim(group, on_the_way)
    _claim_weights(assignment, group, index, position, ())
    for state in claim_epilogue(assignment, group, index):
        assignment.claim_update(group, state)
    return shape_of(program.ops[index].results[0])[-1]


def _claim_between(assignment: Assignment, group: Group) -> None:
    """What brings a member's result to another, scaled as queries are; sums of gradients of one input."""
    program = assignment.program
    pending = sorted({user for index in group.members for user in program.user_indices(index)})
    while pending:
        index = pending.pop()
        if not assignment.is_free(index) or index in program.forward or not program.is_per_sample(index):
            continue
        if program.kinds[index] not in PASS_THROUGH | {ops.AddOp, ops.MulOp, ops.DivOp}:
            continue
        operands = program.ops[index].operands
        producers = [program.producer(operand) for operand in operands if constant_splat(operand) is None]
        if all(producer in group.members for producer in producers):
            assignment.claim(group, index)
            pending += program.user_indices(index)

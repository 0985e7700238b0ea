"""Normalization layers: layer norm, as one op or a formula, and batch norm, with gradients and updates."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.normalization import FusedBatchNormGradOp, FusedBatchNormOp, LayerNormGradOp, LayerNormOp
from cgc.cirh.ops import ReduceOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group, claim_epilogue, single, update_region
from cgc.kernels.loop_cost import loop_family
from cgc.kernels.program import Program
from cgc.kernels.row_cost import row_family
from cgc.passes.constant_fold import constant_splat

_ROOTS = frozenset({ops.SqrtOp, ops.RsqrtOp})
_AFFINE = frozenset({ops.MulOp, ops.BiasAddOp})


def match_layer_norm(assignment: Assignment) -> None:
    """Open a kernel for each layer norm, whether it is one op or a formula of free ops."""
    program = assignment.program
    for index, op in enumerate(program.ops):
        if isinstance(op, LayerNormOp) and assignment.is_free(index):
            _claim_layer_norm(assignment, assignment.open(LAYER_NORM, index), op)
    for index, op in enumerate(program.ops):
        if isinstance(op, LayerNormGradOp) and assignment.is_free(index):
            assignment.open(LAYER_NORM, index)
    _match_formulas(assignment)


def _claim_layer_norm(assignment: Assignment, group: Group, op: LayerNormOp) -> None:
    """Claim gradient, scale, offset and their updates of a layer norm."""
    program = assignment.program
    gradients = [user for user in program.users(op.mean) if isinstance(program.ops[user], LayerNormGradOp)]
    for reader in gradients:
        assignment.claim(group, reader)
    for vector in (op.scale, op.offset):
        _claim_vector(assignment, group, vector)
    _claim_scale_and_offset(assignment, group, op)
    if not gradients and op.layer:
        for index in assignment.free():
            backward = index not in program.forward and program.is_per_sample(index)
            if backward and program.ops[index].layer == op.layer:
                assignment.claim(group, index)


def _claim_vector(assignment: Assignment, group: Group, vector: SSAValue) -> bool:
    """Claim the state that a vector comes from, with its update.

    Returns:
        True if there is state.
    """
    program = assignment.program
    state, path = program.origin_through_broadcast(vector)
    if state not in program.state:
        return False
    for path_op in path:
        assignment.claim(group, path_op)
    assignment.claim_update(group, state)
    return True


def _claim_scale_and_offset(assignment: Assignment, group: Group, op: LayerNormOp) -> None:
    """Claim the scale and offset that are separate ops after a norm, and their gradients."""
    program, value = assignment.program, op.y
    while constant_splat(op.scale) is not None:
        following = single(set(program.users(value)) & program.forward)
        if following is None or program.kinds[following] not in _AFFINE:
            return
        factors = [other for other in program.ops[following].operands if other is not value]
        if not factors:  # a square, as of `y * y`
            return
        factor = factors[-1]
        if not assignment.is_free(following) or not _claim_vector(assignment, group, factor):
            return
        assignment.claim(group, following)
        if program.kinds[following] is ops.MulOp:
            for user in {*program.users(value), *program.users(factor)} - program.forward:
                if program.kinds[user] is ops.MulOp:
                    assignment.claim(group, user)
        value = program.ops[following].results[0]


def _match_formulas(assignment: Assignment) -> None:
    """Open a kernel for each layer of free ops that computes two means of each row and a square root."""
    program = assignment.program
    roots = [index for index in assignment.free() if program.kinds[index] in _ROOTS]
    layers = {
        path: index for index in roots if index in program.forward and (path := program.ops[index].layer)
    }
    if not layers:
        return
    members: dict[tuple[str, ...], list[int]] = {path: [] for path in layers}
    for index in assignment.free():
        path = program.ops[index].layer
        if path in members and program.is_per_sample(index):
            members[path].append(index)
    for found in members.values():
        means = [
            index for index in found if _is_mean_of_rows(program.ops[index]) and index in program.forward
        ]
        if len(means) != 2:
            continue
        group = assignment.open(LAYER_NORM, means[0])
        operands = {operand for index in found for operand in program.ops[index].operands}
        for index in found:
            assignment.claim(group, index)
        for value in operands:
            state, _ = program.origin_through_broadcast(value)
            if state in program.state:
                assignment.claim_update(group, state)


def _is_mean_of_rows(op: CirhOp) -> bool:
    """Return True if an op is the mean over the last dimension only."""
    if not isinstance(op, ReduceOp) or op.reduce_kind != "MEAN":
        return False
    return tuple(op.dimensions) == (len(shape_of(op.operands[0])) - 1,)


LAYER_NORM = row_family(
    name="layer_norm",
    doc="layer normalization, its gradient, update of gamma and beta",
    match=match_layer_norm,
)


def match_batch_norm(assignment: Assignment) -> None:
    """Open a kernel for each normalization with all of its layer, then for each remaining gradient."""
    ops = list(enumerate(assignment.program.ops))
    for index, op in ops:
        if isinstance(op, FusedBatchNormOp) and assignment.is_free(index):
            _claim_batch_norm(assignment, assignment.open(NORMALIZATION, index), op)
    for index, op in ops:
        if isinstance(op, FusedBatchNormGradOp) and assignment.is_free(index):
            assignment.open(NORMALIZATION, index)


def _claim_batch_norm(assignment: Assignment, group: Group, op: FusedBatchNormOp) -> None:
    """Claim activation, gradients, vectors and moving averages of a batch norm."""
    program = assignment.program
    states = [*claim_epilogue(assignment, group, group.anchor)]
    for reader in program.users(op.x):
        gradient = program.ops[reader]
        if isinstance(gradient, FusedBatchNormGradOp) and gradient.scale is op.scale:
            assignment.claim(group, reader)
    for vector in (op.scale, op.offset, op.mean, op.variance):
        value, path = program.origin(vector)
        if value in program.state:
            states.append(value)
            for path_op in path:
                assignment.claim(group, path_op)
    for state in [*states, *_moving_averages(program, op)]:
        assignment.claim_update(group, state)


def _moving_averages(program: Program, op: FusedBatchNormOp) -> list[SSAValue]:
    """Return the state tensors whose new values are computed from the moments of an op."""
    moments = {
        index
        for moment in (op.batch_mean, op.batch_variance, op.saved_mean, op.saved_variance)
        for index in program.users(moment)
    }
    return [
        state
        for state in program.replacements
        if shape_of(state) == shape_of(op.saved_mean) and moments.intersection(update_region(program, state))
    ]


NORMALIZATION = loop_family(
    name="normalization",
    doc="batch normalization, an activation, their gradients, update of the vectors",
    match=match_batch_norm,
    has_images=True,
    label="norm",
)

"""Layer normalization: the op and its gradient, or the ops that it was written as, and the update."""

from __future__ import annotations

from cgc.cirh.base import CirhOp
from cgc.cirh.layer_norm import LayerNormGradOp, LayerNormOp
from cgc.cirh.ops import ReduceOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.naming import layer_path

FAMILY = "layer_norm"


def match(assignment: Assignment) -> None:
    """Opens a kernel for each layer norm, and for each layer of free ops that computes one."""
    program = assignment.program
    for index, op in enumerate(program.ops):
        if isinstance(op, LayerNormOp) and assignment.is_free(index):
            _claim_layer(assignment, assignment.open(FAMILY, index), op)
    for index, op in enumerate(program.ops):
        if isinstance(op, LayerNormGradOp) and assignment.is_free(index):
            assignment.open(FAMILY, index)
    _match_unfused(assignment)


def _claim_layer(assignment: Assignment, group: Group, op: LayerNormOp) -> None:
    program = assignment.program
    gradients = [at for at in program.users(op.mean) if isinstance(program.ops[at], LayerNormGradOp)]
    for reader in gradients:
        assignment.claim(group, reader)
    for vector in (op.scale, op.offset):
        state, path = program.origin(vector)
        for on_the_way in path:
            assignment.claim(group, on_the_way)
        if state in program.state:
            assignment.claim_update(group, state)
    path_of_layer = layer_path(program, group.anchor)
    if not gradients and path_of_layer:
        for index in assignment.free():
            backward = index not in program.forward and program.is_per_sample(index)
            if backward and layer_path(program, index) == path_of_layer:
                assignment.claim(group, index)


def _match_unfused(assignment: Assignment) -> None:
    """A layer whose free ops take two means along a row and one reciprocal root of a sum of squares."""
    program = assignment.program
    roots = [index for index in assignment.free() if program.mnemonics[index] == "Rsqrt"]
    layers = {
        path: index for index in roots if index in program.forward and (path := layer_path(program, index))
    }
    if not layers:
        return
    members: dict[tuple[str, ...], list[int]] = {path: [] for path in layers}
    for index in assignment.free():
        path = layer_path(program, index)
        if path in members and program.is_per_sample(index):
            members[path].append(index)
    for found in members.values():
        means = [
            index for index in found if _is_mean_of_rows(program.ops[index]) and index in program.forward
        ]
        if len(means) != 2:
            continue
        group = assignment.open(FAMILY, means[0])
        read = {operand for index in found for operand in program.ops[index].operands}
        for index in found:
            assignment.claim(group, index)
        for value in read:
            state, _ = program.origin_through_broadcast(value)
            if state in program.state:
                assignment.claim_update(group, state)


def _is_mean_of_rows(op: CirhOp) -> bool:
    """Whether an op is the mean over the last dimension alone."""
    if not isinstance(op, ReduceOp) or op.reduce_kind != "MEAN":
        return False
    return tuple(op.dimensions) == (len(shape_of(op.operands[0])) - 1,)

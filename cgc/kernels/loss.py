"""Softmax cross entropy with its gradient, the mean over the batch and the scale of the gradient."""

from __future__ import annotations

from cgc.cirh import ops
from cgc.cirh.nn import CrossEntropyOp
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.program import RELABELS, elements

FAMILY = "loss"
_FOLLOWING = RELABELS | frozenset(
    {ops.ReduceOp, ops.MulOp, ops.DivOp, ops.AddOp, ops.NegOp, ops.BroadcastInDimOp, ops.SelectOp}
)


def match(assignment: Assignment) -> None:
    """Opens a kernel for each cross entropy."""
    program = assignment.program
    for index, op in enumerate(program.ops):
        if isinstance(op, CrossEntropyOp) and assignment.is_free(index):
            group = assignment.open(FAMILY, index)
            loss, backprop = op.results
            _claim_following(assignment, group, program.users(loss), elements(loss))
            _claim_gradient(assignment, group, program.users(backprop), elements(backprop))


def _claim_following(assignment: Assignment, group: Group, users: list[int], limit: int) -> None:
    """Ops on the losses of the samples, up to the scalar that they are reduced to."""
    program = assignment.program
    for user in users:
        fits = program.kinds[user] in _FOLLOWING and program.elements(user) <= limit
        if fits and assignment.claim(group, user) and program.elements(user) > 1:
            _claim_following(assignment, group, program.user_indices(user), limit)


def _claim_gradient(assignment: Assignment, group: Group, users: list[int], size: int) -> None:
    """Elementwise ops on the gradient of the logits, with the ops that bring the scale to its shape."""
    program = assignment.program
    for user in users:
        fits = program.kinds[user] in _FOLLOWING and program.elements(user) == size
        if not fits or user in program.forward or not assignment.claim(group, user):
            continue
        _claim_scale(assignment, group, user)
        _claim_gradient(assignment, group, program.user_indices(user), size)


def _claim_scale(assignment: Assignment, group: Group, index: int) -> None:
    program = assignment.program
    for producer in program.producers(index):
        scale = program.kinds[producer] in _FOLLOWING and producer not in program.forward
        if scale and program.elements(producer) > 1 and assignment.claim(group, producer):
            _claim_scale(assignment, group, producer)

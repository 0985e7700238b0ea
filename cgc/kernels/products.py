"""What layers with a product share: weights, the bias and activation behind it, all of their gradients."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.activation import CompositeOp
from cgc.cirh.base import CirhOp
from cgc.cirh.ops import ops_where
from cgc.kernels.assignment import Assignment, Group, single
from cgc.kernels.program import PASS_THROUGH, RELABELS, Program, elements

ACTIVATIONS = ops_where(lambda op: op.TRAITS.activation) - {ops.GeluOp}
"""Activations that the lines after the core compute; GELU has its own kernel, as in published reports."""

GRADIENTS = ops_where(
    lambda op: op.TRAITS.gradient_of is not None and op.TRAITS.gradient_of.TRAITS.activation
)
_OWN_GRADIENTS = frozenset(op for op in GRADIENTS if op.TRAITS.gradient_of in ACTIVATIONS)
_SUMS = frozenset({ops.BiasAddOp, ops.AddOp})


def weight_operand(assignment: Assignment, index: int) -> int | None:
    """Which operand of a matrix product is a state tensor: 1, 0, or None."""
    program = assignment.program
    for position in (1, 0):
        if program.origin(program.ops[index].operands[position])[0] in program.state:
            return position
    return None


def claim_products(assignment: Assignment, group: Group, weights: SSAValue, product: type[CirhOp]) -> None:
    """The product with the same weights for the delta, and the casts and transposes of the weights."""
    program = assignment.program
    pending = program.users(weights)
    while pending:
        index = pending.pop()
        if program.kinds[index] is product:
            assignment.claim(group, index)
        elif program.kinds[index] in PASS_THROUGH and assignment.claim(group, index):
            pending += program.user_indices(index)


def claim_epilogue(assignment: Assignment, group: Group, index: int) -> list[SSAValue]:
    """Walks from the product over reshapes, casts, bias and one activation; returns the bias tensors."""
    program = assignment.program
    biases: list[SSAValue] = []
    while (following := single(set(program.user_indices(index)) & program.forward)) is not None:
        kind, is_last = program.kinds[following], _activation(program.ops[following]) in ACTIVATIONS
        with_bias = kind in _SUMS or (kind is CompositeOp and is_last)
        bias = _bias(assignment, following) if with_bias else None
        if bias is not None and assignment.is_free(following):
            biases.append(bias[0])
            for on_the_way in bias[1]:
                assignment.claim(group, on_the_way)
        elif not (kind in RELABELS or is_last) or not assignment.is_free(following):
            break
        assignment.claim(group, following)
        index = following
        if is_last:
            break
    _claim_activation_gradient(assignment, group)
    return biases


def _bias(assignment: Assignment, index: int) -> tuple[SSAValue, list[int]] | None:
    """The state tensor that an op adds to its other operand, and the ops that bring it into shape."""
    program = assignment.program
    for operand in reversed(list(program.ops[index].operands)):
        value, path = program.origin_through_broadcast(operand)
        if value in program.state and elements(value) < program.elements(index):
            return value, path
    return None


def _claim_activation_gradient(assignment: Assignment, group: Group) -> None:
    program = assignment.program
    for member in sorted(group.members):
        for user in program.user_indices(member):
            if program.kinds[user] in _OWN_GRADIENTS:
                assignment.claim(group, user)


def constant_shaped(program: Program, index: int) -> bool:
    """Whether an op only spreads something smaller or constant, such as a mask that layers share."""
    return program.kinds[index] in (ops.BroadcastInDimOp, ops.ConstOp) or index in program.constant


def _activation(op: CirhOp) -> type[CirhOp]:
    """The activation that an op is, or is a sum with; the op's own class where it is another op."""
    return op.activation if isinstance(op, CompositeOp) else type(op)

"""Fully connected layers: product with weights, bias, activation, their gradients, the weight update."""

from __future__ import annotations

from xdsl.ir import SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.composite import COMPOSITES, CompositeOp
from cgc.kernels.assignment import Assignment, Group, single
from cgc.kernels.program import Program, elements

FAMILY = "fully_connected"
ACTIVATIONS = frozenset({"Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "Softplus", "HardSigmoid"})
"""Activations that the lines after the core compute; GELU has its own kernel, as in published reports."""

_OWN_GRADIENTS = frozenset(f"{name}Grad" for name in ACTIVATIONS)
GRADIENTS = _OWN_GRADIENTS | {"GeluGrad"}
_SAME_ELEMENTS = frozenset({"Reshape", "Cast"})
_COMPOSITES = frozenset(name for name, (activation, _) in COMPOSITES.items() if activation in ACTIVATIONS)
_WITH_BIAS = _COMPOSITES | {"BiasAdd", "Add"}


def match(assignment: Assignment) -> None:
    """Opens a kernel for each matrix product with a state tensor, and gives it all of that layer."""
    program = assignment.program
    for index, mnemonic in enumerate(program.mnemonics):
        if mnemonic != "MatMul" or not assignment.is_free(index):
            continue
        weights = _weights(assignment, index)
        if weights is None:
            continue
        group = assignment.open(FAMILY, index)
        states = [weights, *claim_epilogue(assignment, group, index)]
        claim_products(assignment, group, weights, "MatMul")
        for state in states:
            assignment.claim_update(group, state)


def weight_operand(assignment: Assignment, index: int) -> int | None:
    """Which operand of a matrix product is a state tensor: 1, 0, or None."""
    program = assignment.program
    for position in (1, 0):
        if program.origin(program.ops[index].operands[position])[0] in program.state:
            return position
    return None


def _weights(assignment: Assignment, index: int) -> SSAValue | None:
    position = weight_operand(assignment, index)
    if position is None:
        return None
    return assignment.program.origin(assignment.program.ops[index].operands[position])[0]


def claim_products(assignment: Assignment, group: Group, weights: SSAValue, product: str) -> None:
    """The product with the same weights for the delta, and the casts and transposes of the weights."""
    program = assignment.program
    pending = program.users(weights)
    while pending:
        index = pending.pop()
        if program.mnemonics[index] == product:
            assignment.claim(group, index)
        elif program.mnemonics[index] in ("Cast", "Transpose", "Reshape") and assignment.claim(group, index):
            pending += program.user_indices(index)


def claim_epilogue(assignment: Assignment, group: Group, index: int) -> list[SSAValue]:
    """Walks from the product over reshapes, casts, bias and one activation; returns the bias tensors."""
    program = assignment.program
    biases: list[SSAValue] = []
    activations = ACTIVATIONS | _COMPOSITES
    while (following := single(set(program.user_indices(index)) & program.forward)) is not None:
        mnemonic = program.mnemonics[following]
        if mnemonic == "Composite":
            mnemonic = _composite(program.ops[following])
        bias = _bias(assignment, following) if mnemonic in _WITH_BIAS else None
        if bias is not None and assignment.is_free(following):
            biases.append(bias[0])
            for on_the_way in bias[1]:
                assignment.claim(group, on_the_way)
        elif mnemonic not in _SAME_ELEMENTS | activations or not assignment.is_free(following):
            break
        assignment.claim(group, following)
        index = following
        if mnemonic in activations:
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
            if program.mnemonics[user] in _OWN_GRADIENTS:
                assignment.claim(group, user)


def constant_shaped(program: Program, index: int) -> bool:
    """Whether an op only spreads something smaller or constant, such as a mask that layers share."""
    return program.mnemonics[index] in ("BroadcastInDim", "Const") or index in program.constant


def _composite(op: CirhOp) -> str:
    """The function of a composite as if it were an op's name, "BiasRelu"."""
    return op.function if isinstance(op, CompositeOp) else ""

"""Convolution layers: convolution with a filter, bias, activation, their gradients, the filter's update.

A convolution runs as a product: each place of the output is a row that streams through, as long as the window
times the input channels, and the filter is the operand that stays. So the cost is that of a fully connected
kernel with as many multiplications; what neighbouring windows share is not counted as saved.
"""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from cgc.cirh.convolution import ConvolutionOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group
from cgc.kernels.fully_connected import claim_epilogue, claim_products, weight_operand

FAMILY = "convolution"


def match(assignment: Assignment) -> None:
    """Opens a kernel for each convolution with a state tensor and all of its layer, then for the others."""
    program = assignment.program
    convolutions = [index for index, kind in enumerate(program.kinds) if kind is ConvolutionOp]
    for index in convolutions:
        weights = _weights(assignment, index)
        if weights is None or not assignment.is_free(index):
            continue
        group = assignment.open(FAMILY, index)
        states = [weights, *claim_epilogue(assignment, group, index)]
        claim_products(assignment, group, weights, ConvolutionOp)
        for state in states:
            assignment.claim_update(group, state)
    for index in convolutions:
        if assignment.is_free(index):
            _open_with_gradients(assignment, index)


def convolution_sizes(op: ConvolutionOp, batch_size: int) -> tuple[int, int, int]:
    """Rows per sample, length of a row, and results of a row of the product that a convolution is.

    A row of a grouped convolution is that of one group: each output channel reads no more. The two gradients
    have as many multiplications as the forward convolution, and its sizes.
    """
    kernel = op.result if op.conv_pass_direction == "BWD_KERNEL" else op.rhs
    output = {"FWD": op.result, "BWD_INPUT": op.lhs, "BWD_KERNEL": op.rhs}[op.conv_pass_direction]
    *window, results = shape_of(kernel)
    rows = -(-math.prod(shape_of(output)[:-1]) // batch_size)
    return max(1, rows), max(1, math.prod(window)), max(1, results)


def _weights(assignment: Assignment, index: int) -> SSAValue | None:
    program = assignment.program
    op = program.ops[index]
    if not isinstance(op, ConvolutionOp) or op.conv_pass_direction == "BWD_KERNEL":
        return None
    if weight_operand(assignment, index) != 1:
        return None
    return program.origin(op.rhs)[0]


def _open_with_gradients(assignment: Assignment, index: int) -> Group:
    """A convolution of two activations; backward ones that share an operand join it."""
    program = assignment.program
    group = assignment.open(FAMILY, index)
    if index in program.forward:
        for operand in program.ops[index].operands:
            origin, _ = program.origin(operand)
            readers = {user for value in (operand, origin) for user in program.users(value)}
            for user in sorted(readers - program.forward):
                if program.kinds[user] is ConvolutionOp:
                    assignment.claim(group, user)
    return group

"""Layers that run as matrix products: fully connected layers, convolutions, products of two activations."""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.convolution import ConvolutionOp
from cgc.cirh.types import shape_of
from cgc.kernels.assignment import Assignment, Group, Naming, claim_epilogue, claim_products, weight_operand
from cgc.kernels.matmul_cost import product_family
from cgc.kernels.program import Program
from cgc.kernels.sizing import product_figures


def match_fully_connected(assignment: Assignment) -> None:
    """Open a kernel for each matrix product with a state tensor, and claim all of its layer."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if kind is not ops.MatMulOp or not assignment.is_free(index):
            continue
        weights = _weights(assignment, index)
        if weights is None:
            continue
        group = assignment.open(FULLY_CONNECTED, index)
        states = [weights, *claim_epilogue(assignment, group, index)]
        claim_products(assignment, group, weights, ops.MatMulOp)
        for state in states:
            assignment.claim_update(group, state)


def _weights(assignment: Assignment, index: int) -> SSAValue | None:
    position = weight_operand(assignment, index)
    if position is None:
        return None
    return assignment.program.origin(assignment.program.ops[index].operands[position])[0]


def _fully_connected_label(_program: Program, group: Group) -> str:
    """Return `emb_fc` for weights that are an embedding table as well, as in published reports."""
    return "emb_fc" if group.sizes.get("lookup") else "fc"


FULLY_CONNECTED = product_family(
    name="fully_connected",
    doc="product with weights, bias, activation, their gradients and weight update",
    match=match_fully_connected,
    label=_fully_connected_label,
)


# A convolution runs as a product. Each output position is a row that streams through; its length is the size
# of the window times the input channels. The filter is the stationary operand. So the cost is that of a fully
# connected kernel with as many multiplications: the overlap of neighboring windows saves nothing.


def match_convolutions(assignment: Assignment) -> None:
    """Open a kernel for each convolution with a state tensor and all of its layer, then for the others."""
    program = assignment.program
    convolutions = [index for index, kind in enumerate(program.kinds) if kind is ConvolutionOp]
    for index in convolutions:
        weights = _filter(assignment, index)
        if weights is None or not assignment.is_free(index):
            continue
        group = assignment.open(CONVOLUTION, index)
        states = [weights, *claim_epilogue(assignment, group, index)]
        claim_products(assignment, group, weights, ConvolutionOp)
        for state in states:
            assignment.claim_update(group, state)
    for index in convolutions:
        if assignment.is_free(index):
            _open_with_gradients(assignment, index)


def convolution_sizes(op: ConvolutionOp, batch_size: int) -> tuple[int, int, int]:
    """Return rows per sample, inputs and outputs of a convolution, or of its gradient, as a product."""
    # The filter of a grouped convolution has the input channels of one group: no output reads more. The two
    # gradients have as many multiplications as the forward convolution.
    kernel = op.result if op.conv_pass_direction == "BWD_KERNEL" else op.rhs
    output = {"FWD": op.result, "BWD_INPUT": op.lhs, "BWD_KERNEL": op.rhs}[op.conv_pass_direction]
    *window, results = shape_of(kernel)
    rows = -(-math.prod(shape_of(output)[:-1]) // batch_size)
    return max(1, rows), max(1, math.prod(window)), max(1, results)


def _filter(assignment: Assignment, index: int) -> SSAValue | None:
    """Return the state tensor that is the filter of a convolution; None for other convolutions."""
    program = assignment.program
    op = program.ops[index]
    if not isinstance(op, ConvolutionOp) or op.conv_pass_direction == "BWD_KERNEL":
        return None
    if weight_operand(assignment, index) != 1:
        return None
    return program.origin(op.rhs)[0]


def _open_with_gradients(assignment: Assignment, index: int) -> Group:
    """Open a kernel for a convolution of two activations; backward ones that share an operand join it."""
    program = assignment.program
    group = assignment.open(CONVOLUTION, index)
    if index in program.forward:
        for operand in program.ops[index].operands:
            origin, _ = program.origin(operand)
            readers = {user for value in (operand, origin) for user in program.users(value)}
            for user in sorted(readers - program.forward):
                if program.kinds[user] is ConvolutionOp:
                    assignment.claim(group, user)
    return group


def _anchor_sizes(assignment: Assignment, group: Group) -> tuple[int, int, int]:
    op = assignment.program.ops[group.anchor]
    assert isinstance(op, ConvolutionOp)
    return convolution_sizes(op, assignment.program.batch_size)


def _convolution_figures(assignment: Assignment, group: Group) -> dict[str, int]:
    """Return the parameters of a product; a line of the image has one start, and copies share the lines."""
    op = assignment.program.ops[group.anchor]
    assert isinstance(op, ConvolutionOp)
    rows = _anchor_sizes(assignment, group)[0]
    line = min(rows, max(1, max(shape_of(value)[-2] for value in (op.lhs, op.result))))
    return {
        **product_figures(assignment, group, _anchor_sizes),
        "rows_per_start": line,
        "copies": -(-rows // line),
    }


CONVOLUTION = product_family(
    name="convolution",
    doc="convolution, bias, activation, their gradients and weight update",
    match=match_convolutions,
    figures=_convolution_figures,
    rows=lambda assignment, group: _anchor_sizes(assignment, group)[0],
    has_images=True,
    label=lambda _program, _group: "conv",
    naming=Naming.BY_LAYER,
)


def match_matmul(assignment: Assignment) -> None:
    """Open a kernel for each remaining product; backward products that share an operand join it."""
    program = assignment.program
    for index, kind in enumerate(program.kinds):
        if kind is not ops.MatMulOp or not assignment.is_free(index):
            continue
        group = assignment.open(MATMUL, index)
        if index not in program.forward:
            continue
        for operand in program.ops[index].operands:
            origin, _ = program.origin(operand)
            readers = {user for value in (operand, origin) for user in program.users(value)}
            for user in sorted(readers - program.forward):
                if program.kinds[user] is ops.MatMulOp:
                    assignment.claim(group, user)


MATMUL = product_family(
    name="matmul",
    doc="product of two activations and its gradients",
    match=match_matmul,
    label=lambda _program, _group: "matmul",
    naming=Naming.BY_LAYER,
)

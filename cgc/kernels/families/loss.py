"""Softmax cross entropy with its gradient, the mean over the batch and the scale of the gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from xdsl.ir import SSAValue

from cgc.cirh import ops
from cgc.cirh.softmax import CrossEntropyOp
from cgc.kernels.assignment import Assignment, Family, Group
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    Configurations,
    Ints,
    ceil_div,
    line_ladder,
    useful_splits,
    whole_cycles,
)
from cgc.kernels.cost import LINES, line_cycles, reserve
from cgc.kernels.program import RELABELS, Program, elements
from cgc.kernels.row_cost import PARAMETERS
from cgc.kernels.sizing import ROW_LIMIT_TEXT, row_figures, rows_of, widest_rows

# Ops on the losses of the samples up to the scalar loss, and on the gradient of the logits.
_EPILOGUE_OPS = RELABELS | frozenset(
    {ops.ReduceOp, ops.MulOp, ops.DivOp, ops.AddOp, ops.NegOp, ops.BroadcastInDimOp, ops.SelectOp}
)


def match_cross_entropy(assignment: Assignment) -> None:
    """Open a kernel for each cross entropy."""
    program = assignment.program
    for index, op in enumerate(program.ops):
        if isinstance(op, CrossEntropyOp) and assignment.is_free(index):
            group = assignment.open(LOSS, index)
            loss, backprop = op.results
            _claim_following(assignment, group, program.users(loss), elements(loss))
            _claim_gradient(assignment, group, program.users(backprop), elements(backprop))


def _claim_following(assignment: Assignment, group: Group, users: list[int], limit: int) -> None:
    """Claim the ops on the losses of the samples, up to the reduction to a scalar."""
    program = assignment.program
    for user in users:
        fits = program.kinds[user] in _EPILOGUE_OPS and program.elements(user) <= limit
        if fits and assignment.claim(group, user) and program.elements(user) > 1:
            _claim_following(assignment, group, program.user_indices(user), limit)


def _claim_gradient(assignment: Assignment, group: Group, users: list[int], size: int) -> None:
    """Claim elementwise ops on the gradient of the logits, and the ops that broadcast the scale."""
    program = assignment.program
    for user in users:
        fits = program.kinds[user] in _EPILOGUE_OPS and program.elements(user) == size
        if not fits or user in program.forward or not assignment.claim(group, user):
            continue
        _claim_scale(assignment, group, user)
        _claim_gradient(assignment, group, program.user_indices(user), size)


def _claim_scale(assignment: Assignment, group: Group, index: int) -> None:
    program = assignment.program
    for producer in program.producers(index):
        scale = program.kinds[producer] in _EPILOGUE_OPS and producer not in program.forward
        if scale and program.elements(producer) > 1 and assignment.claim(group, producer):
            _claim_scale(assignment, group, producer)


# A layout with many lines may be folded: N times as wide, with an Nth of the height.
_FOLDS = np.array([1, 2, 4, 8], np.int64)
_MAX_PARALLEL_ROWS = 3000


def _configurations(parameters: Mapping[str, int]) -> Configurations:
    """Return layouts by number of lines; a line is as long as the steps of the loss, or its memory, need."""
    lines, parallel_rows, folds = _layouts(parameters)
    piece = ceil_div(parameters["row_elements"], lines)
    rows = ceil_div(parameters["rows"], parallel_rows) * parameters["passes"] / 2
    # No width factor: logits have 32 bits whatever the precision of other tensors.
    row = coefficient("loss_element") * piece + coefficient("loss_hop") * lines + coefficient("start")
    length = int(coefficient("loss_lines")) + np.ceil(piece / coefficient("loss_buffer")).astype(np.int64)
    pes = length * lines * parallel_rows
    cycles = rows * row + parameters["step_millicycles"] / 1000 / parameters["batch"] / pes
    wire = rows * coefficient("loss_wire_element") * piece
    buffers = coefficient("row_buffers") * 4 * piece
    held = parameters["resident_bytes"] / pes
    return Configurations(
        width=length * folds,
        height=lines * parallel_rows // folds,
        compute_cycles=whole_cycles(cycles.astype(np.float64)),
        transmission_cycles=whole_cycles(np.maximum(wire, line_cycles(parameters))),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + buffers + held).astype(np.int64),
        busy_pe_cycles=coefficient("loss_busy") * cycles * pes,
        resident_bytes=np.full(lines.shape, float(parameters["resident_bytes"])),
        reserve=reserve(parameters),
    )


def _layouts(parameters: Mapping[str, int]) -> tuple[Ints, Ints, Ints]:
    """Return lines of a row, rows that are computed at the same time, and folds of these lines."""
    classes = parameters["row_elements"]
    lines = useful_splits(classes)
    lines = lines[lines <= coefficient("matmul_lines_max")]
    parallel_rows = np.ones(1, np.int64)
    if classes <= coefficient("loss_buffer"):
        # One line has room for all classes, so several lines may work on one row each.
        lines = np.ones(1, np.int64)
        parallel_rows = line_ladder(min(parameters["rows"], _MAX_PARALLEL_ROWS))
    lines, parallel_rows, folds = (
        grid.ravel() for grid in np.meshgrid(lines, parallel_rows, _FOLDS, indexing="ij")
    )
    useful = (lines * parallel_rows) % folds == 0
    return lines[useful], parallel_rows[useful], folds[useful]


def _label(program: Program, group: Group) -> str:
    """Return the label of published reports: `mlm_loss` for language models (tokens, after a product)."""
    logits = program.ops[group.anchor].operands[0]
    of_tokens = rows_of(logits, program.batch_size)[0] > 1 and _is_product(program, logits)
    return "mlm_loss" if of_tokens else "loss"


def _is_product(program: Program, value: SSAValue) -> bool:
    """Return True if a value comes from a matrix product, not from a convolution as in images."""
    index = program.producer(program.origin(value)[0])
    while index is not None and program.kinds[index] in (ops.BiasAddOp, ops.AddOp):
        index = program.producer(program.origin(program.ops[index].operands[0])[0])
    return index is not None and program.kinds[index] is ops.MatMulOp


LOSS = Family(
    name="loss",
    doc="softmax cross entropy, its gradient and the reduction to the loss",
    match=match_cross_entropy,
    cost=_configurations,
    parameters=PARAMETERS,
    optional=LINES,
    figures=row_figures,
    rows=widest_rows,
    fastest=ROW_LIMIT_TEXT,
    has_images=True,
    stores_operands=False,
    absorbs_layer=True,
    label=_label,
)

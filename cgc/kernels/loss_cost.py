"""Cost of softmax cross entropy: the classes of a row over lines of PEs that share maximum and sum."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    Configurations,
    Ints,
    ceil_div,
    line_ladder,
    useful_splits,
    whole_cycles,
)
from cgc.kernels.row_cost import PARAMETERS
from cgc.kernels.stream_cost import line_cycles, reserve

__all__ = ["PARAMETERS", "loss_configurations"]

_FOLDS = np.array([1, 2, 4, 8], np.int64)
_MOST_AT_ONCE = 3000


def loss_configurations(parameters: Mapping[str, int]) -> Configurations:
    """All numbers of lines; a line is as long as the steps of the loss, and longer where it holds much.

    Where one line has room for all classes, several lines may work on a row each. Logits come in 32 bits
    whatever the precision of the rest, so that the figures hold as they are.
    """
    lines, at_once, folds = _layouts(parameters)
    piece = ceil_div(parameters["row_elements"], lines)
    rows = ceil_div(parameters["rows"], at_once) * parameters["passes"] / 2
    row = coefficient("loss_element") * piece + coefficient("loss_hop") * lines + coefficient("start")
    long = int(coefficient("loss_lines")) + np.ceil(piece / coefficient("loss_buffer")).astype(np.int64)
    pes = long * lines * at_once
    cycles = rows * row + parameters["step_millicycles"] / 1000 / parameters["batch"] / pes
    wire = rows * coefficient("loss_wire_element") * piece
    buffers = coefficient("row_buffers") * 4 * piece
    held = parameters["resident_bytes"] / pes
    return Configurations(
        width=long * folds,
        height=lines * at_once // folds,
        compute_cycles=whole_cycles(cycles.astype(np.float64)),
        transmission_cycles=whole_cycles(np.maximum(wire, line_cycles(parameters))),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + buffers + held).astype(np.int64),
        busy_pe_cycles=coefficient("loss_busy") * cycles * pes,
        reserve=reserve(parameters),
    )


def _layouts(parameters: Mapping[str, int]) -> tuple[Ints, Ints, Ints]:
    """Lines of a row, rows that are worked on at once, and how often these lines are folded."""
    classes = parameters["row_elements"]
    lines = useful_splits(classes)
    lines = lines[lines <= coefficient("matmul_lines_max")]
    at_once = np.ones(1, np.int64)
    if classes <= coefficient("loss_buffer"):
        lines = np.ones(1, np.int64)
        at_once = line_ladder(min(parameters["rows"], _MOST_AT_ONCE))
    lines, at_once, folds = (grid.ravel() for grid in np.meshgrid(lines, at_once, _FOLDS, indexing="ij"))
    useful = (lines * at_once) % folds == 0
    return lines[useful], at_once[useful], folds[useful]

"""Cost of library kernels that work on rows: layer norm, activations, sums, dropout, position encodings.

A row is split over columns of a few PEs (`<kind>_lanes`, 1 by default). Every row costs a start, the elements
of a column, and for sums over the row the hops along the columns:

    cycles = start + element * ceil(row_elements / columns) + hop * columns

Every sample costs a start as well (`sample_start`). Coefficients are for forward and backward pass together;
a kernel without gradients takes half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from cgc.kernels.assignment import Family, Rule
from cgc.kernels.coefficients import COEFFICIENTS, coefficient
from cgc.kernels.configurations import (
    MIN_STASHED_SAMPLES,
    Configurations,
    Ints,
    ceil_div,
    line_ladder,
    whole_cycles,
)
from cgc.kernels.cost import LINES, line_cycles, reserve, width_factor
from cgc.kernels.sizing import ROW_LIMIT_TEXT, row_figures, widest_rows

PARAMETERS = frozenset(
    {
        "rows",  # rows per sample
        "row_elements",  # elements of a row
        "passes",  # 2 forward and backward, 1 forward
        "element_bytes",  # of the rows
        "resident_bytes",  # parameters and their state, of all PEs together
        "stash_bytes",  # activations of one sample that wait for its backward pass
        "step_millicycles",  # parameter update: per batch, over all PEs
        "batch",  # samples of a step
    }
)
# A layout with many columns may be folded into N lines of an Nth of the columns.
_FOLDS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32], np.int64)
_MAX_LINE_LENGTH = 4096

# There are layouts with enough columns for at most this many bytes on a PE.
_MAX_BYTES_PER_PE = 16_384


def row_configurations(kind: str) -> Callable[[Mapping[str, int]], Configurations]:
    """Return the cost function of one kind of kernel, by the prefix of its coefficients."""

    def configurations(parameters: Mapping[str, int]) -> Configurations:
        return _configurations(kind, parameters)

    return configurations


def _configurations(kind: str, parameters: Mapping[str, int]) -> Configurations:
    """Return all layouts: columns in one line, or folded into several lines."""
    lanes = int(_optional(kind, "lanes", 1))
    columns, folds = _layouts(kind, parameters, lanes)
    piece = ceil_div(parameters["row_elements"], columns)
    share = parameters["passes"] / 2
    # Random numbers have 32 bits whatever the data they apply to, so dropout has no factor for wide elements.
    row = share * (
        _optional(kind, "start")
        + (1.0 if kind == "dropout" else width_factor(parameters)) * _optional(kind, "element") * piece
        + _optional(kind, "hop") * np.minimum(columns, parameters["row_elements"])
    )
    pes = columns * lanes
    update = parameters["step_millicycles"] / 1000 / parameters["batch"] / pes
    cycles = share * coefficient("sample_start") + parameters["rows"] * row + update
    width = -(-columns * (100 + int(100 * _optional(kind, "spare"))) // (100 * folds))
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * piece
    held = parameters["resident_bytes"] / pes
    return Configurations(
        width=width,
        height=lanes * folds,
        compute_cycles=whole_cycles(cycles),
        transmission_cycles=whole_cycles(np.full(folds.shape, _wire_cycles(parameters))),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + buffers + held).astype(np.int64),
        busy_pe_cycles=_optional(kind, "busy", 1.0) * cycles * width * lanes * folds,
        resident_bytes=np.full(folds.shape, float(parameters["resident_bytes"])),
        reserve=reserve(parameters),
    )


def _layouts(kind: str, parameters: Mapping[str, int], lanes: int) -> tuple[Ints, Ints]:
    """Return columns and folds; more columns than a row has pieces only if their memory is needed."""
    smallest = _optional(kind, "piece", coefficient("smallest_piece"))
    pieces = math.ceil(parameters["row_elements"] / smallest)
    held = parameters["resident_bytes"] + MIN_STASHED_SAMPLES * parameters["stash_bytes"]
    max_columns = max(pieces, -(-held // (_MAX_BYTES_PER_PE * lanes)))
    ladder = line_ladder(max(max_columns, 1))
    exact = ceil_div(parameters["row_elements"], np.arange(1, min(64, pieces) + 1, dtype=np.int64))
    columns = np.unique(np.concatenate([ladder, exact[exact <= max_columns]]))
    columns, folds = (grid.ravel() for grid in np.meshgrid(columns, _FOLDS, indexing="ij"))
    useful = (folds == 1) | ((folds <= columns) & (columns % folds == 0)) | (columns > 64 * folds)
    useful &= columns // folds <= _MAX_LINE_LENGTH
    return columns[useful], folds[useful]


def _wire_cycles(parameters: Mapping[str, int]) -> float:
    """Return the transmission cycles of a sample: of its rows, or of its lines if it is an image."""
    if "lines" in parameters:
        return line_cycles(parameters)
    groups = math.ceil(parameters["row_elements"] / coefficient("stream_group"))
    streams = groups * coefficient("stream_lanes")
    row = coefficient("stream_start") + width_factor(parameters) * parameters["row_elements"] / streams
    return parameters["passes"] / 2 * parameters["rows"] * row


def _optional(kind: str, part: str, default: float = 0.0) -> float:
    """Return a coefficient of a kind, or the default if published reports do not show it."""
    found = COEFFICIENTS.get(f"{kind}_{part}")
    return default if found is None else found.value


def row_family(
    *,
    name: str,
    doc: str,
    match: Rule,
    one_way: bool = False,
    has_images: bool = False,
    recomputes_results: bool = False,
    absorbs_layer: bool = False,
) -> Family:
    """Return a family whose kernels work on rows; its coefficients are prefixed with its name.

    Args:
        name: of the family.
        doc: one line about its kernels.
        match: its rule.
        one_way: its coefficients are those of its only pass.
        has_images: passed to `Family`.
        recomputes_results: passed to `Family`.
        absorbs_layer: passed to `Family`.
    """
    return Family(
        name=name,
        doc=doc,
        match=match,
        cost=row_configurations(name),
        parameters=PARAMETERS,
        optional=LINES,
        figures=partial(row_figures, one_way=one_way),
        rows=widest_rows,
        fastest=ROW_LIMIT_TEXT,
        has_images=has_images,
        stores_operands=False,
        recomputes_results=recomputes_results,
        absorbs_layer=absorbs_layer,
    )

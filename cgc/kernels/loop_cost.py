"""Cost of a library kernel that runs loops over the elements of rows, such as pooling and batch norm.

A row of a sample is spread over a rectangle of lanes (height) and PEs per lane (width). Rows stream through
sequentially; each of them starts the passes and reductions again. Rows do not depend on each other: copies of
one lane may share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from cgc.kernels.assignment import Assignment, Family, Group, Naming, Rule
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    MIN_STASHED_SAMPLES,
    Configurations,
    Floats,
    Ints,
    ceil_div,
    line_ladder,
    whole_cycles,
    with_copies,
)
from cgc.kernels.cost import LINES, line_cycles, reserve
from cgc.kernels.sizing import ROW_LIMIT_TEXT, loop_figures, widest_rows

PARAMETERS = frozenset(
    {
        "rows",  # rows per sample
        "row_elements",  # elements of the widest tensor in a row: the most PEs that can work at once
        "starts",  # passes over a row: 1 forward, 2 with backward, 0 where all work is once a step
        "reductions",  # sums or maxima over a row
        "work_millicycles",  # per sample, over all PEs
        "step_millicycles",  # per batch, over all PEs
        "streamed_elements",  # of the widest stream in or out, per sample
        "element_bytes",  # of that stream
        "resident_bytes",  # tables, parameters and their state, of all PEs together
        "stash_bytes",  # activations of one sample that wait for its backward pass
        "batch",  # samples of a step
    }
)
_MAX_LINE_LENGTH = 1024


def loop_configurations(parameters: Mapping[str, int]) -> Configurations:
    """Return layouts lanes x PEs per lane, and copies of one lane, without those of more PEs than work."""
    width, height, copies = _layouts(parameters)
    lane_pes = width * height
    rows = ceil_div(parameters["rows"], copies)
    local = ceil_div(parameters["row_elements"], lane_pes)
    share = local / parameters["row_elements"]
    fixed = parameters["starts"] * coefficient("start") + parameters["reductions"] * coefficient("reduction")
    update = parameters["step_millicycles"] / parameters["batch"] / 1000
    work = parameters["work_millicycles"] / 1000
    copy_sums = np.where(copies > 1, parameters["reductions"] * (coefficient("reduction") + copies), 0)
    stream: Floats = np.ceil(np.float64(parameters["streamed_elements"]) / (height * copies))
    wide = coefficient("wide_element_factor") if parameters["element_bytes"] > 2 else 1.0
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * local
    held = parameters["resident_bytes"] / lane_pes
    return Configurations(
        width=width,
        height=height * copies,
        compute_cycles=whole_cycles(
            rows * fixed + (work * rows / parameters["rows"] + update) * share + copy_sums
        ),
        transmission_cycles=whole_cycles(np.maximum(wide * stream, line_cycles(parameters))),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + buffers + held).astype(np.int64),
        busy_pe_cycles=parameters["rows"] * fixed * np.minimum(lane_pes, parameters["row_elements"])
        + work
        + update * copies,
        resident_bytes=np.float64(parameters["resident_bytes"]) * copies,
        reserve=reserve(parameters),
    )


def _layouts(parameters: Mapping[str, int]) -> tuple[Ints, Ints, Ints]:
    """Return widths, heights, copies; more PEs than a row has pieces only if their memory is needed."""
    held = parameters["resident_bytes"] + MIN_STASHED_SAMPLES * parameters["stash_bytes"]
    pieces = math.ceil(parameters["row_elements"] / coefficient("smallest_piece"))
    ladder = line_ladder(_MAX_LINE_LENGTH)
    width, height = (grid.ravel() for grid in np.meshgrid(ladder, ladder, indexing="ij"))
    useful = width * height <= max(pieces, held // 1024)
    useful |= (width == 1) & (height == 1)
    return with_copies(width[useful], height[useful], parameters["rows"])


def loop_family(
    *,
    name: str,
    doc: str,
    match: Rule | None = None,
    figures: Callable[[Assignment, Group], dict[str, int]] = loop_figures,
    has_images: bool = False,
    label: str | None = None,
    naming: Naming = Naming.BY_LAYER,
) -> Family:
    """Return a family whose kernels run loops over the elements of a row; its label defaults to its name."""
    return Family(
        name=name,
        doc=doc,
        match=match,
        cost=loop_configurations,
        parameters=PARAMETERS,
        optional=LINES,
        figures=figures,
        rows=widest_rows,
        fastest=ROW_LIMIT_TEXT,
        has_images=has_images,
        label=lambda _program, _group: label or name,
        naming=naming,
    )

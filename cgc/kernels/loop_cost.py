"""Cost of a kernel that runs loops over the elements of a row: everything that is not a matrix product.

A row of a sample is spread over a rectangle of lanes (height) and PEs per lane (width). Rows stream through
one after the other; each starts the passes and the reductions anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Configurations, Floats, Ints, ceil_div, line_ladder, whole_cycles

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
        "stash_bytes",  # activations that wait for the backward pass, of all samples in flight
        "batch",  # samples of a step
    }
)
_LONGEST_LINE = 1024


def loop_configurations(parameters: Mapping[str, int]) -> Configurations:
    """All layouts lanes x PEs per lane from a ladder of lengths, without those with more PEs than work."""
    width, height = _shapes(
        parameters["row_elements"], parameters["resident_bytes"] + parameters["stash_bytes"]
    )
    pes = width * height
    local = ceil_div(parameters["row_elements"], pes)
    share = local / parameters["row_elements"]
    fixed = parameters["rows"] * (
        parameters["starts"] * coefficient("start") + parameters["reductions"] * coefficient("reduction")
    )
    update = parameters["step_millicycles"] / parameters["batch"]
    work = (parameters["work_millicycles"] + update) / 1000
    stream: Floats = np.ceil(np.float64(parameters["streamed_elements"]) / height)
    wide = coefficient("wide_element_factor") if parameters["element_bytes"] > 2 else 1.0
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * local
    spread = (parameters["resident_bytes"] + parameters["stash_bytes"]) / pes
    return Configurations(
        width=width,
        height=height,
        compute_cycles=whole_cycles(fixed + work * share),
        transmission_cycles=whole_cycles(wide * stream),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + buffers + spread).astype(np.int64),
        busy_pe_cycles=fixed * np.minimum(pes, parameters["row_elements"]) + work,
    )


def _shapes(row_elements: int, held_bytes: int) -> tuple[Ints, Ints]:
    """Widths and heights; more PEs than pieces of a row only where their memory is needed."""
    pieces = math.ceil(row_elements / coefficient("smallest_piece"))
    ladder = line_ladder(_LONGEST_LINE)
    width, height = (grid.ravel() for grid in np.meshgrid(ladder, ladder, indexing="ij"))
    useful = width * height <= max(pieces, held_bytes // 1024)
    useful |= (width == 1) & (height == 1)
    return width[useful], height[useful]

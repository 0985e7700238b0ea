"""Cost of an embedding: a table over as many PEs as its memory needs, rows of which are looked up."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Configurations, line_ladder, whole_cycles
from cgc.kernels.core_cost import width_factor
from cgc.kernels.row_cost import PARAMETERS

__all__ = ["PARAMETERS", "table_configurations"]

_LONGEST_LINE = 800


def table_configurations(parameters: Mapping[str, int]) -> Configurations:
    """All rectangles from a ladder of lengths; more PEs do not make a lookup faster, they only hold more."""
    ladder = line_ladder(_LONGEST_LINE)
    width, height = (grid.ravel() for grid in np.meshgrid(ladder, ladder, indexing="ij"))
    pes = width * height
    factor = width_factor(parameters) * parameters["passes"] / 2 * parameters["rows"]
    update = parameters["step_millicycles"] / 1000 / parameters["batch"] / pes
    cycles = factor * coefficient("lookup_row") + update
    groups = math.ceil(parameters["row_elements"] / coefficient("stream_group"))
    wire = factor * coefficient("lookup_wire") * parameters["row_elements"] / groups
    return Configurations(
        width=width,
        height=height,
        compute_cycles=whole_cycles(cycles),
        transmission_cycles=whole_cycles(np.full(width.shape, wire)),
        memory_per_pe_bytes=np.ceil(coefficient("code_bytes") + parameters["resident_bytes"] / pes).astype(
            np.int64
        ),
        busy_pe_cycles=coefficient("emb_busy") * cycles * pes,
    )

"""Cost formulas that all kernels share: a row on one PE of a matrix product, and lines of images on a stream.

The lines of an image follow each other on a stream. A stream has lanes for every group of elements of a line,
so that a long line takes no longer than one full group. Copies of a kernel receive the same stream, so they
do not shorten its time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Floats, Ints

# Samples, height, width and channels; a volume has one more.
_IMAGE_RANK = 4

LINES = frozenset(
    {
        "lines",  # lines of the images of a sample on the slowest stream; left out where there are no images
        "line_elements",  # elements of such a line
    }
)


def tile_cycles(tile_in: Ints, tile_out: Ints) -> Floats:
    """Return the compute cycles of a row of 16-bit elements over a tile, three passes, without start."""
    cycles: Floats = (
        coefficient("matmul_mac") * tile_in * tile_out
        + coefficient("matmul_vector") * tile_in * np.ceil(tile_out / 4)
        + coefficient("matmul_input") * tile_in
        + coefficient("matmul_output") * tile_out
    )
    return cycles


def line_tile_cycles(tile_in: Ints, tile_out: Ints, line: int) -> Floats:
    """Return the compute cycles of an image position over a tile, vectors along the line, three passes."""
    # Four positions of a line are multiplied at once.
    lanes = 4 * math.ceil(line / 4) / line
    tile: Floats = (tile_in * tile_out).astype(np.float64)
    return coefficient("convolution_mac") * lanes * tile


def tile_wire_cycles(tile_in: Ints, tile_out: Ints) -> Floats:
    """Return the transmission cycles of a row of 16-bit elements over a tile, three passes, without start."""
    cycles: Floats = (
        coefficient("matmul_wire_weight") * tile_in * tile_out
        + coefficient("matmul_wire_input") * tile_in
        + coefficient("matmul_wire_output") * tile_out
    )
    return cycles


def pass_share(parameters: Mapping[str, int]) -> float:
    """Return the passes of a kernel as a share of the three passes of the formulas."""
    return parameters["passes"] / coefficient("matmul_passes")


def width_factor(parameters: Mapping[str, int]) -> float:
    """Return the cost of an element as a multiple of that of a 16-bit one."""
    return coefficient("wide_element_factor") if parameters["element_bytes"] > 2 else 1.0


def image_lines(shape: Sequence[int], batch: int) -> dict[str, int]:
    """Return the parameters `LINES` of a tensor [samples, ..., height, width, channels]; {} for others."""
    elements = math.prod(shape[-2:])
    if len(shape) < _IMAGE_RANK or not math.prod(shape):
        return {}
    return {"lines": -(-math.prod(shape[:-2]) // batch), "line_elements": elements}


def line_cycles(parameters: Mapping[str, int]) -> float:
    """Return the transmission cycles per sample of a kernel's slowest stream of lines; 0 without one."""
    if "lines" not in parameters:
        return 0.0
    words = width_factor(parameters) * _group_cycles(parameters["line_elements"])
    return parameters["lines"] * (coefficient("line_start") + words)


def reserve(parameters: Mapping[str, int], without_lines: float = 1.0) -> float:
    """Return `Configurations.reserve` of a kernel, the share of its cycles that it computes in."""
    # A kernel of images computes while the words of a line arrive, not during the start of a line.
    if "lines" not in parameters:
        return without_lines
    words = _group_cycles(coefficient("stream_group"))
    return words / (coefficient("line_start") + words)


def _group_cycles(elements: float) -> float:
    """Return the cycles of the 16-bit elements of a line: those of its largest group."""
    return min(elements, coefficient("stream_group")) / coefficient("stream_lanes")

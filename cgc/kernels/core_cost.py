"""What one PE of a matrix product needs for a row: the formulas that all kernels with products share."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Floats, Ints


def tile_cycles(tile_in: Ints, tile_out: Ints) -> Floats:
    """Compute cycles of a row of 16-bit elements over a tile, all three passes, without the start."""
    cycles: Floats = (
        coefficient("matmul_mac") * tile_in * tile_out
        + coefficient("matmul_vector") * tile_in * np.ceil(tile_out / 4)
        + coefficient("matmul_input") * tile_in
        + coefficient("matmul_output") * tile_out
    )
    return cycles


def line_tile_cycles(tile_in: Ints, tile_out: Ints, line: int) -> Floats:
    """Compute cycles of a position of an image over a tile, all three passes, with vectors along its line.

    Four positions of a line are multiplied at once.
    """
    lanes = 4 * math.ceil(line / 4) / line
    tile: Floats = (tile_in * tile_out).astype(np.float64)
    return coefficient("convolution_mac") * lanes * tile


def tile_wire_cycles(tile_in: Ints, tile_out: Ints) -> Floats:
    """Transmission cycles of a row of 16-bit elements over a tile, all three passes, without the start."""
    cycles: Floats = (
        coefficient("matmul_wire_weight") * tile_in * tile_out
        + coefficient("matmul_wire_input") * tile_in
        + coefficient("matmul_wire_output") * tile_out
    )
    return cycles


def pass_share(parameters: Mapping[str, int]) -> float:
    """Passes of a kernel as a share of the three that the formulas count."""
    return parameters["passes"] / coefficient("matmul_passes")


def width_factor(parameters: Mapping[str, int]) -> float:
    """What wide elements cost, as a multiple of 16-bit ones."""
    return coefficient("wide_element_factor") if parameters["element_bytes"] > 2 else 1.0

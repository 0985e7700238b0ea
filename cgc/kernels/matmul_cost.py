"""Cost of a matrix product whose second operand stays in a rectangle of PEs while rows stream through.

Geometry and cycle counts are those recovered from published compile reports, see `cgc.kernels.coefficients`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import Configurations, Floats, Ints, ceil_div, useful_splits, whole_cycles

PARAMETERS = frozenset(
    {
        "rows",  # rows per sample that stream through
        "inputs",  # length of a row
        "outputs",  # length of a result row
        "passes",  # matrix products over the tile: 1 forward, 2 with one gradient, 3 with both
        "element_bytes",  # of the streamed elements
        "resident_bytes",  # weights, gradients and optimizer state of all PEs together
        "stash_bytes",  # activations that wait for the backward pass, of all samples in flight
        "epilogue_millicycles",  # bias, activation and their gradients: per sample, over all PEs
        "step_millicycles",  # weight update: per batch, over all PEs
        "reload",  # 1 where the second operand is new for every sample, else 0
        "batch",  # samples of a step
    }
)


def matmul_configurations(parameters: Mapping[str, int]) -> Configurations:
    """All layouts a x b of the core; a PE holds ceil(inputs / a) * ceil(outputs / b) elements of the operand.

    The rectangle is (a + n + 1) x (b + 3): n lines after the core do the epilogue, two lines before it
    convert, and one fan line is on each of the two sides. n is the smallest number of lines that keeps up
    with the core.
    """
    a, b = (grid.ravel() for grid in np.meshgrid(*_core_sides(parameters), indexing="ij"))
    tile_in = ceil_div(parameters["inputs"], a)
    tile_out = ceil_div(parameters["outputs"], b)
    core = parameters["rows"] * _row_cycles(parameters, tile_in, tile_out)
    epilogue = parameters["epilogue_millicycles"] / 1000 / b
    lines = np.clip(
        np.ceil(epilogue / core), coefficient("postadapt_lines_min"), coefficient("postadapt_lines_max")
    ).astype(np.int64)
    update = parameters["step_millicycles"] / 1000 / parameters["batch"]
    share = tile_in * tile_out / (parameters["inputs"] * parameters["outputs"])
    core_total = core + update * share
    fans = int(coefficient("fan_lines"))
    return Configurations(
        width=a + lines + fans,
        height=b + int(coefficient("preadapt_lines")) + fans,
        compute_cycles=whole_cycles(np.maximum(core_total, epilogue / lines)),
        transmission_cycles=whole_cycles(_wire_cycles(parameters, tile_in, tile_out)),
        memory_per_pe_bytes=_memory(parameters, tile_in, tile_out, a, b),
        busy_pe_cycles=a * b * core_total + parameters["epilogue_millicycles"] / 1000,
    )


def _core_sides(parameters: Mapping[str, int]) -> tuple[Ints, Ints]:
    splits = useful_splits(parameters["inputs"])
    pieces = math.ceil(parameters["inputs"] / coefficient("smallest_piece"))
    return splits[splits <= pieces], useful_splits(parameters["outputs"])


def _width_factor(parameters: Mapping[str, int]) -> float:
    return coefficient("wide_element_factor") if parameters["element_bytes"] > 2 else 1.0


def _row_cycles(parameters: Mapping[str, int], tile_in: Ints, tile_out: Ints) -> Floats:
    elements = (
        coefficient("matmul_mac") * tile_in * tile_out
        + coefficient("matmul_vector") * tile_in * np.ceil(tile_out / 4)
        + coefficient("matmul_input") * tile_in
    )
    passes = parameters["passes"] / coefficient("matmul_passes")
    cycles: Floats = passes * (_width_factor(parameters) * elements + coefficient("matmul_start"))
    return cycles


def _wire_cycles(parameters: Mapping[str, int], tile_in: Ints, tile_out: Ints) -> Floats:
    """Transmission of all rows, and of an operand that is new for every sample."""
    row = coefficient("matmul_wire_weight") * tile_in * tile_out + coefficient("matmul_wire_edge") * (
        tile_in + tile_out
    )
    passes = parameters["passes"] / coefficient("matmul_passes")
    reload = parameters["reload"] * parameters["inputs"] * tile_out
    cycles: Floats = _width_factor(parameters) * (parameters["rows"] * passes * row + reload)
    return cycles


def _memory(parameters: Mapping[str, int], tile_in: Ints, tile_out: Ints, a: Ints, b: Ints) -> Ints:
    share = tile_in * tile_out / (parameters["inputs"] * parameters["outputs"])
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * (tile_in + tile_out)
    stash = parameters["stash_bytes"] / (a * b)
    total = coefficient("code_bytes") + parameters["resident_bytes"] * share + buffers + stash
    return np.ceil(total).astype(np.int64)

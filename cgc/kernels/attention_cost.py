"""Cost of an attention layer: projections, a forward and a backward core, the projection of the result.

The blocks share one rectangle, as in published reports (GPT-2 small: projections of 24 x 96 PEs, output
24 x 32, forward core 1536, backward core 3072 PEs in 52 x 169):

    +-----------------------+----------+      projections   a x 3b   rows of length `inputs`
    |      projections      |          |      output        a x b
    +--------+--------------+ backward |      forward core  a x f    the products with keys and values
    | output | forward core |   core   |      backward core 2a x f   twice as many products
    +--------+--------------+----------+

with 9 columns and 4 lines of adapters and fans. What the blocks do not fill of the rectangle is idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    Configurations,
    Floats,
    Ints,
    ceil_div,
    line_ladder,
    pooled_memory,
    useful_splits,
    whole_cycles,
)
from cgc.kernels.core_cost import pass_share, tile_cycles, tile_wire_cycles, width_factor

PARAMETERS = frozenset(
    {
        "rows",  # queries of a sample
        "keys",  # that a query is compared with
        "heads",
        "inputs",  # length of a row before the projections; of the heads where there are none
        "width",  # of all heads together
        "projections",  # of query, key and value: how many this kernel computes
        "outputs",  # length of a row of the result; 0 where this kernel does not project it
        "passes",  # 3 with gradients, 1 without
        "element_bytes",  # of the streamed elements
        "resident_bytes",  # weights, gradients and optimizer state of all PEs together
        "stash_bytes",  # activations of one sample that wait for its backward pass
        "step_millicycles",  # weight update: per batch, over all PEs
        "batch",  # samples of a step
    }
)
OPTIONAL = frozenset(
    {
        "causal",  # 1 where a query sees no later key; such rows wait for nobody
        "update_bytes",  # of resident_bytes, what only the weight update reads; 0 if left out
    }
)
_LONGEST_CORE = 600


def attention_configurations(parameters: Mapping[str, int]) -> Configurations:
    """All layouts by a, b and f, in the figure above."""
    a, b, f = _layouts(parameters)
    projections, backward = parameters["projections"], int(parameters["passes"] > 1)
    output = int(parameters["outputs"] > 0)
    lower = output * b + f
    lines = np.where(projections, 2 * a, a)
    width = np.maximum(projections * b, lower) + backward * -(-2 * a * f // lines)
    row, wire = _slowest_block(parameters, a, b, f)
    rows = parameters["rows"]
    weights = (projections + output) * a * b
    blocks = 1 + 2 * backward
    cores = blocks * a * f
    update = parameters["step_millicycles"] / 1000 / parameters["batch"] / np.maximum(1, weights)
    busy = coefficient("matmul_busy") * weights * (rows * _projection_row(parameters, a, b) + update)
    busy += coefficient("attention_busy") * blocks * rows * _products(parameters)
    width = width + int(coefficient("attention_lines_x"))
    height = lines + int(coefficient("attention_lines_y"))
    fullest, held = _memory(parameters, (a, b), weights, weights + cores, width * height)
    return Configurations(
        width=width,
        height=height,
        compute_cycles=whole_cycles(rows * row + update),
        transmission_cycles=whole_cycles(rows * wire),
        memory_per_pe_bytes=fullest,
        held_bytes=held,
        busy_pe_cycles=busy,
    )


def _layouts(parameters: Mapping[str, int]) -> tuple[Ints, Ints, Ints]:
    """a, b and f of every layout worth trying: with projections, cores no wider than three times these."""
    if not parameters["projections"] and not parameters["outputs"]:
        ladder = line_ladder(_LONGEST_CORE)
        a, f = (grid.ravel() for grid in np.meshgrid(ladder[ladder <= 200], ladder, indexing="ij"))
        return a, np.zeros_like(a), f
    pieces = math.ceil(parameters["inputs"] / coefficient("smallest_piece"))
    first = useful_splits(parameters["inputs"])
    second = useful_splits(parameters["width"])
    second = second[second <= coefficient("matmul_lines_max")]
    grids = np.meshgrid(first[first <= pieces], second, line_ladder(_LONGEST_CORE), indexing="ij")
    a, b, f = (grid.ravel() for grid in grids)
    sensible = f <= 6 * b + 60
    even = f == f.min()  # once for every a and b: a core that ends where the projections end
    return (
        np.concatenate([a[sensible], a[even]]),
        np.concatenate([b[sensible], b[even]]),
        np.concatenate([f[sensible], 2 * b[even]]),
    )


def _slowest_block(parameters: Mapping[str, int], a: Ints, b: Ints, f: Ints) -> tuple[Floats, Floats]:
    """Compute and transmission cycles of a row in the slowest of the blocks."""
    compute = np.maximum(_core_row(parameters, a * f), _projection_row(parameters, a, b))
    tile_in, tile_out = _tiles(parameters, a, b)
    wire = tile_wire_cycles(tile_in, tile_out) * width_factor(parameters) + coefficient("matmul_wire_start")
    return compute, pass_share(parameters) * wire


def _tiles(parameters: Mapping[str, int], a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """The larger of the tiles of the projections before and after the cores."""
    lines = np.maximum(b, 1)
    inputs = max(parameters["inputs"] if parameters["projections"] else 0, parameters["width"])
    outputs = max(parameters["width"] if parameters["projections"] else 0, parameters["outputs"])
    return ceil_div(inputs, a), ceil_div(outputs, lines)


def _projection_row(parameters: Mapping[str, int], a: Ints, b: Ints) -> Floats:
    """Compute cycles of a row in a projection; 0 where there is none."""
    if not parameters["projections"] and not parameters["outputs"]:
        return np.zeros(a.shape)
    cycles = width_factor(parameters) * tile_cycles(*_tiles(parameters, a, b)) + coefficient("matmul_start")
    return pass_share(parameters) * cycles


def _products(parameters: Mapping[str, int]) -> int:
    """Multiplications of a row with keys and values."""
    return 2 * parameters["keys"] * parameters["width"]


def _core_row(parameters: Mapping[str, int], pes: Ints) -> Floats:
    """Compute cycles of a row in the forward core; the backward one takes as long."""
    scores = parameters["heads"] * parameters["keys"]
    work = coefficient("attention_mac") * _products(parameters) + coefficient("attention_exp") * scores
    cycles: Floats = coefficient("attention_start") + width_factor(parameters) * work / pes
    return cycles


def _memory(
    parameters: Mapping[str, int], lines: tuple[Ints, Ints], weights: Ints, pes: Ints, area: Ints
) -> tuple[Ints, Ints]:
    """Bytes of the fullest PE and of the rectangle.

    Projections work on their own weights; what only the update reads lies anywhere in the rectangle.
    """
    tile_in, tile_out = _tiles(parameters, *lines)
    worked = parameters["resident_bytes"] - parameters.get("update_bytes", 0)
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * (tile_in + tile_out)
    held = coefficient("code_bytes") * area + np.float64(parameters["resident_bytes"]) + pes * buffers
    projecting: Ints = np.where(weights > 0, weights, pes)
    return pooled_memory(coefficient("code_bytes") + worked / projecting + buffers, held, area)

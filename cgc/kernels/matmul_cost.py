"""Cost of a matrix product: its second operand is stationary in a rectangle of PEs, and rows stream through.

Geometry and cycle counts were recovered from published compile reports (`cgc.kernels.coefficients`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from cgc.kernels.assignment import Assignment, Family, Group, Naming, Rule
from cgc.kernels.coefficients import coefficient
from cgc.kernels.configurations import (
    Configurations,
    Floats,
    Ints,
    ceil_div,
    pool_memory,
    useful_splits,
    whole_cycles,
)
from cgc.kernels.cost import (
    LINES,
    line_cycles,
    line_tile_cycles,
    pass_share,
    reserve,
    tile_cycles,
    tile_wire_cycles,
    width_factor,
)
from cgc.kernels.program import Program
from cgc.kernels.sizing import product_figures, product_rows

PARAMETERS = frozenset(
    {
        "rows",  # rows per sample that stream through
        "inputs",  # length of a row
        "outputs",  # length of a result row
        "passes",  # matrix products over the tile: 1 forward, 2 with one gradient, 3 with both
        "element_bytes",  # of the streamed elements
        "resident_bytes",  # weights, gradients and optimizer state of all PEs together
        "stash_bytes",  # activations of one sample that wait for its backward pass
        "epilogue_millicycles",  # bias, activation and their gradients: per sample, over all PEs
        "step_millicycles",  # weight update: per batch, over all PEs
        "reload",  # 1 where the second operand is new for every sample, else 0
        "batch",  # samples of a step
    }
)
OPTIONAL = frozenset(
    {
        "update_bytes",  # part of resident_bytes that only the weight update reads; 0 if left out
        "loss_outputs",  # 1 if a loss reads the results
        "lookup",  # 1 if the second operand is also an embedding table
        "rows_per_start",  # rows after each start: those of a line of an image; 1 if left out
        "copies",  # maximum number of copies of the core that share the rows; 1 if left out
        *LINES,
    }
)

# Images are split in four directions; finer steps would make millions of layouts.
_MIN_SPLIT_RATIO = 1.25


def matmul_configurations(parameters: Mapping[str, int]) -> Configurations:
    """Return all layouts of a x b PEs for the core, with the lines around it.

    A PE holds ceil(inputs / a) * ceil(outputs / b) elements of the second operand. The rectangle has (a + n +
    1) x (b + 3) PEs: n lines after the core compute the epilogue, two lines before it convert elements, and
    one fan line is on each of the two sides. Copies of a core form a grid; they share the rows and the fans.
    """
    a, b, across, along = _layouts(parameters)
    copies = across * along
    tile_in = ceil_div(parameters["inputs"], a)
    tile_out = ceil_div(parameters["outputs"], b)
    rows = ceil_div(parameters["rows"], copies)
    core = _core_cycles(parameters, rows, tile_in, tile_out)
    epilogue = parameters["epilogue_millicycles"] / 1000 / (b * copies)
    # As many lines after the core as the epilogue needs to keep up with it.
    min_lines = coefficient("postadapt_lines_min")
    if parameters["epilogue_millicycles"]:
        min_lines += coefficient("bias_lines")
    lines = np.clip(np.ceil(epilogue / core), min_lines, coefficient("postadapt_lines_max")).astype(np.int64)
    update = parameters["step_millicycles"] / 1000 / parameters["batch"]
    share = tile_in * tile_out / (parameters["inputs"] * parameters["outputs"])
    core_total = core + pass_share(parameters) * coefficient("sample_start") + update * share
    extra = int(coefficient("lookup_lines")) * parameters.get("lookup", 0) + int(coefficient("fan_lines"))
    width = across * (a + lines) + extra
    height = along * (b + int(coefficient("preadapt_lines"))) + extra
    fullest, held = _memory(parameters, (tile_in, tile_out), a * b, copies, width * height)
    elements = rows * width_factor(parameters) * tile_wire_cycles(tile_in, tile_out)
    starts = rows / parameters.get("rows_per_start", 1) * coefficient("matmul_wire_start")
    reload = width_factor(parameters) * parameters["reload"] * parameters["inputs"] * tile_out
    wire = np.maximum(pass_share(parameters) * (elements + starts) + reload, line_cycles(parameters))
    return Configurations(
        width=width,
        height=height,
        compute_cycles=whole_cycles(np.maximum(core_total, epilogue / lines)),
        transmission_cycles=whole_cycles(wire),
        memory_per_pe_bytes=fullest,
        held_bytes=held,
        busy_pe_cycles=_busy_share(parameters) * a * b * copies * core_total,
        resident_bytes=np.float64(parameters["resident_bytes"]) * copies,
        reserve=reserve(parameters, coefficient("matmul_reserve")),
    )


def _layouts(parameters: Mapping[str, int]) -> tuple[Ints, Ints, Ints, Ints]:
    """Return a, b, and the copies across and along of every layout."""
    splits = useful_splits(parameters["inputs"])
    pieces = math.ceil(parameters["inputs"] / coefficient("smallest_piece"))
    splits = splits[splits <= pieces]
    lines = useful_splits(parameters["outputs"])
    lines = lines[lines <= coefficient("matmul_lines_max")]
    max_copies = parameters.get("copies", 1)
    if max_copies == 1:
        a, b = (grid.ravel() for grid in np.meshgrid(splits, lines, indexing="ij"))
        return a, b, np.ones_like(a), np.ones_like(a)
    ladder = _thin(useful_splits(max_copies))
    grids = np.meshgrid(_thin(splits), _thin(lines), ladder, ladder, indexing="ij")
    a, b, across, along = (grid.ravel() for grid in grids)
    useful = across * along <= max_copies
    return a[useful], b[useful], across[useful], along[useful]


def _thin(splits: Ints) -> Ints:
    """Keep splits that are at least a quarter more than the previous one, and the last."""
    kept = [int(splits[0])]
    for split in splits[1:].tolist():
        if split >= _MIN_SPLIT_RATIO * kept[-1]:
            kept.append(split)
    return np.unique(np.array([*kept, splits[-1]], np.int64))


def _core_cycles(parameters: Mapping[str, int], rows: Ints, tile_in: Ints, tile_out: Ints) -> Floats:
    """Return the compute cycles of a sample's rows on one PE of the core."""
    line = parameters.get("rows_per_start", 1)
    starts = rows / line
    elements = np.minimum(tile_cycles(tile_in, tile_out), line_tile_cycles(tile_in, tile_out, line))
    elements += coefficient("matmul_loss_output") * parameters.get("loss_outputs", 0) * tile_out
    cycles: Floats = pass_share(parameters) * (
        width_factor(parameters) * rows * elements + starts * coefficient("matmul_start")
    )
    return cycles


def _busy_share(parameters: Mapping[str, int]) -> float:
    return coefficient("convolution_busy" if "lines" in parameters else "matmul_busy")


def _memory(
    parameters: Mapping[str, int], tile: tuple[Ints, Ints], pes: Ints, copies: Ints, area: Ints
) -> tuple[Ints, Ints]:
    """Return the bytes of the fullest PE and of the rectangle; every copy of the core has all weights."""
    # A PE works on its own weights and sums their gradients. Data that only the update reads may be stored
    # anywhere, on the lines next to the core as well.
    tile_in, tile_out = tile
    share = tile_in * tile_out / (parameters["inputs"] * parameters["outputs"])
    worked = parameters["resident_bytes"] - parameters.get("update_bytes", 0)
    buffers = coefficient("row_buffers") * parameters["element_bytes"] * (tile_in + tile_out)
    held = coefficient("code_bytes") * area + copies * (parameters["resident_bytes"] + pes * buffers)
    return pool_memory(coefficient("code_bytes") + worked * share + buffers, held, area)


def product_family(
    *,
    name: str,
    doc: str,
    match: Rule,
    figures: Callable[[Assignment, Group], dict[str, int]] = product_figures,
    rows: Callable[[Assignment, Group], int] = product_rows,
    has_images: bool = False,
    label: Callable[[Program, Group], str],
    naming: Naming = Naming.NUMBERED,
) -> Family:
    """Return a family whose kernels are a product over a rectangle, with adapters on the lines around it."""
    return Family(
        name=name,
        doc=doc,
        match=match,
        cost=matmul_configurations,
        parameters=PARAMETERS,
        optional=OPTIONAL,
        figures=figures,
        rows=rows,
        fastest=_FASTEST,
        has_images=has_images,
        label=label,
        naming=naming,
    )


_FASTEST = (
    ": {inputs:,} inputs and {outputs:,} outputs are spread as finely as starts and sums allow, more PEs do "
    "not help."
)

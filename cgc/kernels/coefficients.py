"""The constants of the cost model that do not follow from sizes, each with unit and source.

Sources:
    FITTED: found by `benchmarks/fit_performance_model.py` from the kernel rows of three published compile
        reports (`benchmarks/published/kernels.csv`) and written to `cgc.kernels.fitted`, with the
        remaining error. Samples/s of a row are converted to cycles with the clock of 850 MHz.
    REPORTS: read off these rows without a fit.
    ASSUMED: no published figure is known; the reason is given.

A row is one position of a sample: a token of a sequence, a pixel of an image, or the whole sample where
there are no positions. All cycle counts are for 16-bit elements; costs per element grow in proportion to
the element size.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cgc.kernels.fitted import FITTED


class Coefficient(NamedTuple):
    """One number of the cost model."""

    value: float
    unit: str
    source: str


_MATMUL_UNITS = {
    "matmul_mac": "cycles per weight of the local tile and row, three passes",
    "matmul_vector": "cycles per input and four outputs of the tile and row, three passes",
    "matmul_input": "cycles per input of the tile and row, three passes",
    "matmul_output": "cycles per output of the tile and row, three passes",
    "matmul_start": "cycles per row, three passes",
    "matmul_loss_output": "additional cycles per output and row if 32-bit results go to a loss and come back",
    "matmul_wire_weight": "transmission cycles per weight of the local tile and row, three passes",
    "matmul_wire_input": "transmission cycles per input of the tile and row, three passes",
    "matmul_wire_output": "transmission cycles per output of the tile and row, three passes",
    "matmul_wire_start": "transmission cycles per row, three passes",
}
_ATTENTION_UNITS = {
    "attention_mac": "cycles per multiplication of scores and context on a PE and row; the backward core has "
    "twice as many multiplications on twice as many PEs",
    "attention_start": "cycles per row of an attention core",
    "attention_busy": "cycles per multiplication and row in which the PEs of a core run code",
}
_ROW_UNITS = {
    "start": "cycles per row",
    "element": "cycles per element of a row on a PE",
    "hop": "cycles per column that the sums of a row travel over",
    "spare": "additional PEs, as a share of the columns",
}
_ROW_FITS = ("layer_norm", "nlin", "add", "dropout", "pos_encoding")
_LOSS_UNITS = {
    "loss_element": "cycles per class on a line and row",
    "loss_hop": "cycles per line that the sums of a row travel over",
    "loss_wire_element": "transmission cycles per class on a line and row",
}
_BUSY_UNIT = "share of a kernel's compute cycles in which its PEs run code, mean over the rectangle"


def _from_fit(units: dict[str, str]) -> dict[str, Coefficient]:
    return {
        name: Coefficient(FITTED[name][0], unit, f"FITTED: {FITTED[name][1]}") for name, unit in units.items()
    }


_FITTED_ROWS = {
    f"{kind}_{part}": unit
    for kind in _ROW_FITS
    for part, unit in _ROW_UNITS.items()
    if f"{kind}_{part}" in FITTED
}
_FITTED_BUSY = {
    name: _BUSY_UNIT for name in FITTED.keys() - _ATTENTION_UNITS.keys() if name.endswith("_busy")
}

COEFFICIENTS: Final[dict[str, Coefficient]] = {
    **_from_fit(_MATMUL_UNITS),
    **_from_fit(_ATTENTION_UNITS),
    **_from_fit(_FITTED_ROWS),
    **_from_fit(_LOSS_UNITS),
    **_from_fit(_FITTED_BUSY),
    **_from_fit(
        {
            "code_bytes": "bytes of SRAM per PE for code, stack, routing tables and lines next to a table",
            "matmul_reserve": "cycles of fully connected kernels as a share of the cycles they are sized for",
            "sample_start": "cycles per sample of products and row kernels, in addition to those of the rows",
        }
    ),
    "convolution_busy": Coefficient(
        0.75,
        _BUSY_UNIT,
        "REPORTS: 52 % of all PEs in the same U-Net; see the limits in docs/explanation/performance-model.md",
    ),
    "matmul_passes": Coefficient(
        3.0, "passes in the figures above: forward, delta, weight gradient", "REPORTS"
    ),
    "matmul_lines_max": Coefficient(
        400.0,
        "maximum number of output lines of a core",
        "REPORTS: the vocabulary heads of all Transformers stop at 398 lines and bound the speed, though "
        "402 lines, the next tile, would be faster",
    ),
    "preadapt_lines": Coefficient(
        2.0, "lines of PEs before a matmul core", "REPORTS: exact in all 81 FC rows"
    ),
    "fan_lines": Coefficient(1.0, "lines of PEs on each side with a fan", "REPORTS: exact in all 81 FC rows"),
    "postadapt_lines_min": Coefficient(2.0, "lines of PEs after a matmul core", "REPORTS: smallest found"),
    "postadapt_lines_max": Coefficient(10.0, "lines of PEs after a matmul core", "REPORTS: largest found"),
    "lookup_lines": Coefficient(
        17.0,
        "additional lines on both sides of a core whose weights are an embedding table as well",
        "REPORTS: GPT-2's emb_fc1, 65,604 PEs = (289 + 3 + 16) x (192 + 3 + 18) with a tile of 4 x 174",
    ),
    "attention_lines_x": Coefficient(
        9.0, "columns of adapters and fans in an attention kernel", "REPORTS: 169 = 5 * 32 + 9 in GPT-2"
    ),
    "attention_lines_y": Coefficient(
        4.0, "lines of adapters and fans in an attention kernel", "REPORTS: 52 = 2 * 24 + 4 in GPT-2"
    ),
    "attention_exp": Coefficient(
        20.0,
        "cycles per score on a PE and row: scale, mask, exponential, maximum and sum",
        "ASSUMED: the rows do not separate it from the multiplications; 20 makes attention as large as the "
        "sweep's width of 16 needs",
    ),
    "attention_delay": Coefficient(
        0.92,
        "samples that an attention holds back in each direction where its queries see later keys",
        "REPORTS: the Transformer of 42 + 42 layers; waiting for the last key of a sample is at most 1",
    ),
    "layer_norm_lanes": Coefficient(6.0, "PEs of a column", "REPORTS: all rows are multiples of 6"),
    "nlin_piece": Coefficient(
        2.0, "minimum number of elements of a row on a PE", "REPORTS: 1,536 PEs for GELU of 3,072 elements"
    ),
    "pos_encoding_lanes": Coefficient(4.0, "PEs of a column", "REPORTS: 24 and 28 PEs"),
    "loss_lines": Coefficient(
        24.0, "PEs of a line, plus one per `loss_buffer` classes", "REPORTS: 25 x 386 and 27 x 234 PEs"
    ),
    "loss_buffer": Coefficient(
        100.0, "classes on a line per additional PE", "REPORTS: as above; 95 and 215 classes"
    ),
    "stream_lanes": Coefficient(
        4.0,
        "elements of a row that arrive together",
        "REPORTS: `add` and layer norm, 64 cycles more with 512 elements more",
    ),
    "stream_start": Coefficient(
        64.0,
        "transmission cycles per row in addition to the elements",
        "REPORTS: `add`: 128 with 256, 256 with 768",
    ),
    "stream_group": Coefficient(
        768.0,
        "elements of a row that one group of lanes carries; longer rows have several groups",
        "REPORTS: GELU of 3,072 elements is as fast as `add` of 768, 267 to 286 cycles",
    ),
    "line_start": Coefficient(
        33.5,
        "transmission cycles per line of an image in addition to the elements",
        "REPORTS: a U-Net for 256 x 256 pixels, 57,728 cycles = 256 x (192 + 33.5): 192 for the 768 elements "
        "of a full group of lanes",
    ),
    "convolution_mac": Coefficient(
        0.75,
        "cycles per weight of the local tile and position of an image, three passes",
        "REPORTS: the slowest kernel of the same U-Net computes for 49,168 cycles, 3/4 x 256 x 256 + 16. So "
        "vectors along the lines use all four multipliers, and windows come from the PE's memory",
    ),
    "lookup_row": Coefficient(
        200.0, "cycles per row of a lookup and of its gradient", "REPORTS: median of 132, 190, 306 and 534"
    ),
    "lookup_wire": Coefficient(
        0.5, "transmission cycles per element of a row that is looked up", "REPORTS: 83 to 387 with 256"
    ),
    "bias_lines": Coefficient(
        1.0,
        "additional lines after a core for an activation, a bias or a dropout",
        "REPORTS: 2, 3 and 5 lines",
    ),
    "start": Coefficient(
        36.0,
        "cycles to start one pass over a row",
        "REPORTS: a third of 109, the cycles per row of fully connected kernels in a fit of three terms",
    ),
    "reduction": Coefficient(
        48.0,
        "cycles per reduction of a row along the kernel",
        "REPORTS: layer norm's 263 cycles per row beyond its elements, less two starts, over four reductions",
    ),
    "stream": Coefficient(
        2.0,
        "cycles per element that enters or leaves a PE",
        "REPORTS: `add`, 8 cycles per element on 4 streams",
    ),
    "simple": Coefficient(
        0.25, "cycles per element of an add, multiply, compare, select", "four 16-bit lanes of the datapath"
    ),
    "divide": Coefficient(
        20.0,
        "cycles per element of a division, square root or power of one",
        "ASSUMED: four Newton steps of five dependent operations",
    ),
    "transcendental": Coefficient(
        70.0,
        "cycles per element of exp, log, tanh, erf, sin",
        "REPORTS: GELU forward and backward (three of them) 217 cycles per element; language model losses 90",
    ),
    "random": Coefficient(
        100.0,
        "cycles per random number",
        "REPORTS: dropout, 518 cycles per row of 4 elements per PE, less streams",
    ),
    "smallest_piece": Coefficient(
        4.0,
        "minimum number of elements of a row that a PE works on",
        "REPORTS: vocabulary heads of width 16, 256 and 512 all have 4 inputs per PE, dropout 4 elements; "
        "one 64-bit memory access brings four",
    ),
    "row_buffers": Coefficient(
        2.0, "rows of each stream in a PE's buffers: one being computed, one arriving", "ASSUMED"
    ),
    "wide_element_factor": Coefficient(
        2.0,
        "cost of a 32-bit element over a 16-bit one",
        "16 data bits per wavelet; half the elements per 64-bit memory access (arXiv 2409.00287)",
    ),
}


def coefficient(name: str) -> float:
    """Return the value of a coefficient by its name in the table."""
    return COEFFICIENTS[name].value

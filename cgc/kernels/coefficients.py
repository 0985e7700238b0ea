"""The numbers of the cost model that do not follow from sizes, each with unit and source.

Sources:
    REPORTS: the per-kernel rows of four published compile reports (GPT-2 small and three Transformers;
        DABench-LLM, arXiv 2601.19904), samples/s turned into cycles per row with the clock of 850 MHz. A
        row is one position of a sample: a token of a sequence, or the whole sample where there is no
        sequence.
    ASSUMED: no published figure is known; the reason is given.

All cycle counts are for 16-bit elements; costs per element grow in proportion to the element size.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Coefficient(NamedTuple):
    """One number of the cost model."""

    value: float
    unit: str
    source: str


_FIT = "REPORTS: least squares over 46 shapes of fully connected kernels, 23 cycles rms"

COEFFICIENTS: Final[dict[str, Coefficient]] = {
    "matmul_mac": Coefficient(0.87, "cycles per weight of the local tile and row, three passes", _FIT),
    "matmul_vector": Coefficient(
        0.64, "cycles per input and four outputs of the tile and row, three passes", _FIT
    ),
    "matmul_input": Coefficient(0.55, "cycles per input of the tile and row, three passes", _FIT),
    "matmul_start": Coefficient(109.0, "cycles per row, three passes", _FIT),
    "matmul_wire_weight": Coefficient(
        0.374,
        "transmission cycles per weight of the local tile and row, three passes",
        "REPORTS: least squares over 11 tile shapes, largest error 5 %",
    ),
    "matmul_wire_edge": Coefficient(
        1.147, "transmission cycles per input and per output of the tile and row, three passes", "as above"
    ),
    "matmul_passes": Coefficient(
        3.0, "passes in the figures above: forward, delta, weight gradient", "REPORTS"
    ),
    "preadapt_lines": Coefficient(
        2.0, "lines of PEs before a matmul core", "REPORTS: exact in all 81 FC rows"
    ),
    "fan_lines": Coefficient(1.0, "lines of PEs on each side with a fan", "REPORTS: exact in all 81 FC rows"),
    "postadapt_lines_min": Coefficient(2.0, "lines of PEs after a matmul core", "REPORTS: smallest found"),
    "postadapt_lines_max": Coefficient(10.0, "lines of PEs after a matmul core", "REPORTS: largest found"),
    "start": Coefficient(
        36.0,
        "cycles to start one pass over a row",
        "REPORTS: a third of matmul_start, one of its three passes",
    ),
    "reduction": Coefficient(
        48.0,
        "cycles per reduction of a row along the kernel",
        "REPORTS: layer norm's 263 cycles per row beyond its elements, less two starts, over four "
        "reductions; the model as a whole still predicts layer norm up to 49 % too fast",
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
        "elements of a row that a PE works on at least",
        "REPORTS: GELU of 3,072 elements takes 945 cycles on 912, 1032, 1036 and on 1190 PEs; the median "
        "error of its eight shapes is 5.5 % with this limit and 19 % without. Layer norm speaks against it "
        "where all its PEs share a row (576 PEs for 768 elements). It was introduced because FC-MNIST came "
        "out too fast, and that estimate depends on it: 250 cycles with 1, 333 with 2, 545 with 4, 1018 "
        "with 8 (published: 669 and 464), so agreement there is no check of the model",
    ),
    "code_bytes": Coefficient(
        4096.0, "bytes of SRAM per PE for code, stack and routing tables", "ASSUMED: a twelfth of 48 KB"
    ),
    "row_buffers": Coefficient(
        2.0, "rows that a PE holds of each stream: one that is worked on, one that arrives", "ASSUMED"
    ),
    "wide_element_factor": Coefficient(
        2.0,
        "cost of a 32-bit element over a 16-bit one",
        "16 data bits per wavelet; half the elements per 64-bit memory access (arXiv 2409.00287)",
    ),
}


def coefficient(name: str) -> float:
    """The value of a coefficient by its name in the table."""
    return COEFFICIENTS[name].value

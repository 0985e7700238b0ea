"""Fits the constants of the kernel cost model to published compile reports.

    python -m benchmarks.fit_performance_model            # prints the fit and its errors
    python -m benchmarks.fit_performance_model --write    # and writes cgc/kernels/fitted.py

Least squares of relative errors over the rows of `benchmarks/published/kernels.csv`. Of the overall
figures only FC-MNIST's rate is used, so that all others check the model; where a fit has enough rows, it is
repeated without one report at a time and checked on that report.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.published import KernelRow, kernel_rows, overall_rows
from cgc.kernels import coefficients
from cgc.kernels.coefficients import Coefficient, coefficient
from cgc.kernels.families.attention import attention_configurations

TARGET = Path(__file__).resolve().parent.parent / "cgc" / "kernels" / "fitted.py"

Floats: TypeAlias = NDArray[np.float64]
Tile: TypeAlias = tuple[int, int]
Fitted: TypeAlias = dict[str, tuple[float, str]]

CLOCK_HZ = 850e6
PACE = {"gpt2_small": 964.0, "transformer_6_6": 563.0, "transformer_12_12": 563.0}
"""Cycles per row of the pipeline: what utilization is a share of."""
_LAYERS = {"gpt2_small": (768, 3072), "transformer_6_6": (256, 1024), "transformer_12_12": (256, 1024)}
_POSTADAPT = (2, 3, 5, 6, 8, 9, 10)
_START = {
    "compute": np.array([0.87, 0.64, 0.55, 0.0, 109.0]),
    "transmission": np.array([0.374, 1.147, 1.147, 0.0]),
}
_HEADS = (("transformer_6_6", "fc_head", (4, 92)), ("gpt2_small", "emb_fc", (4, 174)))
"""Tiles of the vocabulary heads: 256 / 64 x 36,550 / 398, and 768 / 192 x 50,257 / 289."""
_LOSS_LINES = {"gpt2_small": (50257, 234), "transformer_6_6": (36550, 386)}
_BYTES_PER_PARAMETER = 16
"""float32 value, two Adam moments and the gradient, a sum of single rows."""


def rows_of(*families: str) -> list[KernelRow]:
    """The rows of some families, each figure once."""
    found = {}
    for row in kernel_rows():
        if row.family in families:
            found.setdefault((row.report, row.active_pes, row.compute_cycles, row.utilization_percent), row)
    return list(found.values())


def compute_terms(tile: Tile) -> Floats:
    """Terms of the compute cycles of a product; their factors are matmul_mac ... matmul_start."""
    inputs, outputs = tile
    return np.array([inputs * outputs, inputs * math.ceil(outputs / 4), inputs, outputs, 1.0])


def wire_terms(tile: Tile) -> Floats:
    """Terms of the transmission cycles of a product."""
    inputs, outputs = tile
    return np.array([inputs * outputs, inputs, outputs, 1.0])


def least_squares(terms: Sequence[Floats], cycles: Sequence[float]) -> Floats:
    """Factors of the least relative errors."""
    matrix = np.array(terms) / np.array(cycles)[:, None]
    solution: Floats = np.linalg.lstsq(matrix, np.ones(len(cycles)), rcond=None)[0]
    return solution


def errors(terms: Sequence[Floats], factors: Floats, cycles: Sequence[float]) -> Floats:
    """Relative errors."""
    found: Floats = np.array(terms) @ factors / np.array(cycles) - 1
    return found


def candidates(row: KernelRow) -> Iterator[tuple[Tile, int]]:
    """Tiles and core PEs of all layouts (b + 3) x (a + n + 1) of a row's area."""
    narrow, wide = _LAYERS[row.report]
    for lines, (inputs, outputs) in product(_POSTADAPT, ((narrow, wide), (wide, narrow))):
        for b in range(4, 400):
            a, rest = divmod(row.active_pes, b + 3)
            a -= lines + 1
            if rest == 0 and 1 <= a <= inputs:
                yield (math.ceil(inputs / a), math.ceil(outputs / b)), a * b


def fit_tiles(rows: Sequence[KernelRow]) -> tuple[list[tuple[Tile, int]], Floats, Floats]:
    """Finds the layout of each row and the factors together: the best layouts by the factors, then again."""
    compute, wire = _START["compute"], _START["transmission"]
    for _ in range(12):
        chosen = [
            min(candidates(row), key=lambda found: _misfit(row, found[0], compute, wire)) for row in rows
        ]
        compute = least_squares([compute_terms(t) for t, _ in chosen], [r.compute_cycles for r in rows])
        wire = least_squares([wire_terms(t) for t, _ in chosen], [r.transmission_cycles for r in rows])
    return chosen, compute, wire


def _misfit(row: KernelRow, tile: Tile, compute: Floats, wire: Floats) -> float:
    first = compute_terms(tile) @ compute / row.compute_cycles - 1
    second = wire_terms(tile) @ wire / row.transmission_cycles - 1
    return float(first**2 + second**2)


def fit_matmul() -> Fitted:
    """Fully connected kernels."""
    rows = rows_of("fc")
    chosen, compute, wire = fit_tiles(rows)
    names = ("mac", "vector", "input", "output", "start")
    wires = ("weight", "input", "output", "start")
    cycles, transmission = [r.compute_cycles for r in rows], [r.transmission_cycles for r in rows]
    note = summary([compute_terms(t) for t, _ in chosen], compute, cycles)
    wire_note = summary([wire_terms(t) for t, _ in chosen], wire, transmission)
    cross_validate("fully connected, compute", rows, [compute_terms(t) for t, _ in chosen], cycles)
    cross_validate("fully connected, transmission", rows, [wire_terms(t) for t, _ in chosen], transmission)
    extra = [
        (row.compute_cycles - compute_terms(tile) @ compute) / tile[1]
        for report, family, tile in _HEADS
        for row in rows_of(family)
        if row.report == report
    ]
    busy = [
        row.utilization_percent / 100 * row.active_pes * PACE[row.report] / (pes * row.compute_cycles)
        for row, (_, pes) in zip(rows, chosen, strict=True)
    ]
    paces = [
        r.compute_cycles / PACE[r.report] for r in kernel_rows() if r.family == "fc" for _ in range(r.count)
    ]
    return {
        "matmul_reserve": (statistics.mean(paces), spread(paces)),
        **{f"matmul_{name}": (value, note) for name, value in zip(names, compute, strict=True)},
        **{f"matmul_wire_{name}": (value, wire_note) for name, value in zip(wires, wire, strict=True)},
        "matmul_loss_output": (statistics.mean(extra), spread(extra)),
        "matmul_busy": (statistics.mean(busy), spread(busy)),
    }


def fit_layer_norm() -> Fitted:
    """Layer norm: columns of six PEs."""
    rows = rows_of("layer_norm")
    terms, cycles = [], [row.compute_cycles for row in rows]
    for row in rows:
        columns = row.active_pes // 6
        terms.append(np.array([1.0, math.ceil(_LAYERS[row.report][0] / columns), columns]))
    factors = least_squares(terms, cycles)
    cross_validate("layer norm, compute", rows, terms, cycles)
    note = summary(terms, factors, cycles)
    names = ("start", "element", "hop")
    return {
        **{f"layer_norm_{name}": (value, note) for name, value in zip(names, factors, strict=True)},
        **busy_of("layer_norm"),
    }


def fit_activation() -> Fitted:
    """GELU kernels of GPT-2: the pieces of the published rectangles are not whole numbers of elements."""
    rows = rows_of("nlin")
    terms = [np.array([1.0, _LAYERS[row.report][1] / row.active_pes]) for row in rows]
    cycles = [row.compute_cycles for row in rows]
    start, element = least_squares(terms, cycles)
    note = summary(terms, np.array([start, element]), cycles)
    return {"nlin_start": (start, note), "nlin_element": (element, note), **busy_of("nlin")}


def fit_residual() -> Fitted:
    """Residual sums of 8 and 12 PEs; those of 36 have a second stage."""
    rows = [row for row in rows_of("add") if row.active_pes < 36]
    terms = [np.array([1.0, _LAYERS[row.report][0] / row.active_pes]) for row in rows]
    cycles = [row.compute_cycles for row in rows]
    start, element = least_squares(terms, cycles)
    note = summary(terms, np.array([start, element]), cycles)
    return {"add_start": (start, note), "add_element": (element, note), **busy_of("add")}


def fit_dropout() -> Fitted:
    """Dropout has one shape: four elements on each of 64 PEs, and 14 more. Busy time gives the element."""
    rows = rows_of("dropout")
    row, pieces = rows[0], 64
    busy = statistics.mean(r.utilization_percent for r in rows) / 100 * PACE[row.report] * row.active_pes
    element = busy / _LAYERS[row.report][0]
    return {
        "dropout_element": (element, "busy time of the only shape, 78 PEs for 256 elements"),
        "dropout_start": (
            row.compute_cycles - element * _LAYERS[row.report][0] / pieces,
            "what remains of 518",
        ),
        "dropout_spare": (row.active_pes / pieces - 1, "PEs in addition to 64 with four elements each"),
        **busy_of("dropout"),
    }


def fit_sample_start() -> Fitted:
    """Return the time per sample outside of kernels, from FC-MNIST: one row is faster than the whole."""
    row = next(row for row in overall_rows() if row.name == "fc_mnist")
    dropout = fit_dropout()
    piece = math.ceil(coefficient("smallest_piece"))
    fastest = dropout["dropout_start"][0] + piece * dropout["dropout_element"][0]
    cycles = CLOCK_HZ / row.samples_per_s
    note = f"FC-MNIST takes {cycles:.0f} cycles, its dropout at least {fastest:.0f}; 0.1% of 256 rows"
    return {"sample_start": (cycles - fastest, note)}


def fit_positions() -> Fitted:
    """Position codes that are constants; those that are learned are as large as their memory."""
    rows = [row for row in rows_of("pos_encoding") if row.report != "gpt2_small"]
    terms = [np.array([4 * _LAYERS[row.report][0] / row.active_pes]) for row in rows]
    cycles = [row.compute_cycles for row in rows]
    factors = least_squares(terms, cycles)
    note = summary(terms, factors, cycles)
    return {"pos_encoding_element": (factors[0], note), **busy_of("pos_encoding")}


def fit_loss() -> Fitted:
    """Language model losses: the two published shapes decide two factors."""
    rows = [row for row in rows_of("mlm_loss") if row.report in _LOSS_LINES]
    terms, cycles, wires = [], [], []
    for row in rows:
        classes, lines = _LOSS_LINES[row.report]
        piece = math.ceil(classes / lines)
        terms.append(np.array([piece, lines]))
        cycles.append(row.compute_cycles - coefficient("start"))
        wires.append(row.transmission_cycles / piece)
    element, hop = np.linalg.solve(np.array(terms, np.float64), np.array(cycles))
    note = "exact: two shapes, 25 x 386 and 27 x 234 PEs"
    return {
        "loss_element": (element, note),
        "loss_hop": (hop, note),
        "loss_wire_element": (statistics.mean(wires), spread(wires)),
        **busy_of("mlm_loss", "loss"),
    }


def fit_memory() -> Fitted:
    """The smallest published table fills its PEs."""
    smallest = min(row.active_pes for row in rows_of("emb"))
    held = _BYTES_PER_PARAMETER * 36550 * 256 / smallest
    return {
        "code_bytes": (49152 - held, f"an embedding of 36,550 x 256 takes {smallest:,} PEs"),
        **busy_of("emb"),
    }


def fit_attention() -> Fitted:
    """Cores of attention: GPT-2's has 1,536 PEs at 964 cycles, the Transformers' have their mean area."""
    transformer = [
        row for row in kernel_rows() if row.family == "attention" and row.report == "transformer_12_12"
    ]
    count = sum(row.count for row in transformer)
    area = sum(row.active_pes * row.count for row in transformer) / count
    pace = PACE["transformer_12_12"]
    best: tuple[float, float, float] | None = None
    for mac in np.arange(0.2, 0.9, 0.005):
        start = PACE["gpt2_small"] - (mac * 2 * 1024 * 768 + coefficient("attention_exp") * 12 * 1024) / 1536
        with trial(attention_mac=mac, attention_start=start):
            found = smallest_area(_LAYER, pace)
        misfit = abs(found / area - 1)
        if best is None or misfit < best[0]:
            best = misfit, float(mac), start
    assert best is not None
    misfit, mac, start = best
    note = (
        f"GPT-2's core exact; {area:,.0f} PEs, the Transformers' mean, at {pace:.0f} cycles to {misfit:.1%}"
    )
    with trial(attention_mac=mac, attention_start=start):
        busy = [
            _busy_per_product(row)
            for row in kernel_rows()
            if row.family == "attention"
            for _ in range(row.count)
        ]
    return {
        "attention_mac": (mac, note),
        "attention_start": (start, note),
        "attention_busy": (statistics.mean(busy), spread(busy)),
    }


_LAYER = {
    "rows": 1,
    "keys": 256,
    "heads": 2,
    "inputs": 256,
    "width": 256,
    "projections": 3,
    "outputs": 256,
    "passes": 3,
    "element_bytes": 2,
    "resident_bytes": 0,
    "stash_bytes": 0,
    "step_millicycles": 0,
    "batch": 1,
}
_ATTENTIONS = {
    "gpt2_small": _LAYER | {"keys": 1024, "heads": 12, "inputs": 768, "width": 768, "outputs": 768},
    "transformer_6_6": _LAYER,
    "transformer_12_12": _LAYER,
}
"""Attention layers of the reports, for one row."""


def smallest_area(parameters: dict[str, int], pace: float) -> float:
    """PEs of the smallest attention kernel that keeps a pace; infinite where none does."""
    found = attention_configurations(parameters)
    return float(found.area[found.compute_cycles <= pace].min(initial=1 << 40))


def _busy_per_product(row: KernelRow) -> float:
    """Return the busy cycles per multiplication of the cores, without projections."""
    parameters = _ATTENTIONS[row.report]
    with trial(attention_busy=0.0):
        found = attention_configurations(parameters)
    fast = found.where(found.compute_cycles <= row.compute_cycles)
    projections = fast[int(fast.area.argmin())].busy_pe_cycles
    busy = row.utilization_percent / 100 * row.active_pes * PACE[row.report]
    return (busy - projections) / (3 * 2 * parameters["keys"] * parameters["width"])


@contextlib.contextmanager
def trial(**values: float) -> Iterator[None]:
    """Coefficients with other values for a while."""
    table = coefficients.COEFFICIENTS
    before = dict(table)
    table.update({name: Coefficient(value, "", "") for name, value in values.items()})
    try:
        yield
    finally:
        table.clear()
        table.update(before)


def busy_of(family: str, name: str | None = None) -> Fitted:
    """The share of its compute cycles in which a kernel is busy."""
    found = [
        row.utilization_percent / 100 * PACE[row.report] / row.compute_cycles
        for row in kernel_rows()
        if row.family == family
        for _ in range(row.count)
    ]
    return {f"{name or family}_busy": (min(1.0, statistics.mean(found)), spread(found))}


def spread(values: Sequence[float]) -> str:
    """A note on a mean."""
    return f"mean of {len(values)}, from {min(values):.3g} to {max(values):.3g}"


def summary(terms: Sequence[Floats], factors: Floats, cycles: Sequence[float]) -> str:
    """A note on a fit."""
    found = np.abs(errors(terms, factors, cycles))
    return f"{len(cycles)} shapes, median error {np.median(found):.1%}, largest {found.max():.1%}"


def cross_validate(
    name: str, rows: Sequence[KernelRow], terms: Sequence[Floats], cycles: Sequence[float]
) -> None:
    """Prints the errors on each report of factors that were fitted without it."""
    print(f"{name}:")
    for report in PACE:
        inside = [index for index, row in enumerate(rows) if row.report != report]
        outside = [index for index, row in enumerate(rows) if row.report == report]
        factors = least_squares([terms[i] for i in inside], [cycles[i] for i in inside])
        found = errors([terms[i] for i in outside], factors, [cycles[i] for i in outside])
        print(
            f"  without {report:18} {len(outside):3} shapes of it: median |error| "
            f"{np.median(np.abs(found)):.1%}, mean {found.mean():+.1%}, largest {np.abs(found).max():.1%}"
        )


FITS: tuple[Callable[[], Fitted], ...] = (
    fit_matmul,
    fit_layer_norm,
    fit_activation,
    fit_residual,
    fit_dropout,
    fit_sample_start,
    fit_positions,
    fit_loss,
    fit_memory,
)


def fit() -> Fitted:
    """All fitted coefficients; attention's need those of products."""
    found: Fitted = {}
    for step in FITS:
        found.update(step())
    with trial(**{name: value for name, (value, _) in found.items()}, attention_busy=0.0):
        found.update(fit_attention())
    return found


def text_of(found: Fitted) -> str:
    """The module `cgc.kernels.fitted`."""
    lines = "".join(
        f'    "{name}": (\n        {value:.5g},\n        "{note}",\n    ),\n'
        for name, (value, note) in found.items()
    )
    return (
        '"""Fitted constants of the cost model, with the error that remains.\n\n'
        "Written by `python -m benchmarks.fit_performance_model --write`; their meaning is in\n"
        '`cgc.kernels.coefficients`.\n"""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import Final\n\n"
        f"FITTED: Final[dict[str, tuple[float, str]]] = {{\n{lines}}}\n"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write cgc/kernels/fitted.py")
    args = parser.parse_args()
    found = fit()
    for name, (value, note) in found.items():
        print(f"{name:24} {value:10.5g}   {note}")
    if args.write:
        TARGET.write_text(text_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()

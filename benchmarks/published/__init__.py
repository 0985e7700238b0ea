"""Figures of published compile reports, for the fit of the cost model and for the table of its errors."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class KernelRow:
    """Kernels with equal figures in one report; cycles are per row (position of the sequence).

    Attributes:
        report: name of the report.
        family: "fc", "fc_head", "emb_fc", "attention", "layer_norm" ...
        active_pes: PEs of its rectangle.
        compute_cycles: cycles of the busiest PE.
        transmission_cycles: cycles of the busiest link.
        utilization_percent: utilization of its PEs at the rate of the report.
        count: number of kernels with this row.
    """

    report: str
    family: str
    active_pes: int
    compute_cycles: float
    transmission_cycles: float
    utilization_percent: float
    count: int


@dataclass(frozen=True)
class OverallRow:
    """Overall figures of a report, or of a row of a sweep; None where they are not published.

    Attributes:
        name: name of the row.
        sizes: sizes of the network: model, encoder_layers, decoder_layers, hidden, heads, head_size, filter,
            positions, vocabulary.
        held_out: True if the fit does not use it.
    """

    name: str
    sizes: dict[str, str]
    samples_per_s: float
    transmission_samples_per_s: float | None
    active_pes_percent: float | None
    utilization_percent: float
    active_pes: int | None
    held_out: bool
    compute_samples_per_s: float | None

    def size(self, name: str) -> int:
        """Return a size of the network."""
        return int(self.sizes[name])


_SIZES = (
    "model",
    "encoder_layers",
    "decoder_layers",
    "hidden",
    "heads",
    "head_size",
    "filter",
    "positions",
    "vocabulary",
)


@cache
def kernel_rows() -> tuple[KernelRow, ...]:
    """Return all rows of kernels.csv."""
    return tuple(
        KernelRow(
            row["report"],
            row["family"],
            int(row["active_pes"]),
            float(row["compute_cycles"]),
            float(row["transmission_cycles"]),
            float(row["utilization_percent"]),
            int(row["count"]),
        )
        for row in _rows("kernels.csv")
    )


@cache
def overall_rows() -> tuple[OverallRow, ...]:
    """Return all rows of overall.csv."""
    return tuple(
        OverallRow(
            row["name"],
            {name: row[name] for name in _SIZES},
            float(row["samples_per_s"]),
            _number(row["transmission_samples_per_s"]),
            _number(row["active_pes_percent"]),
            float(row["utilization_percent"]),
            int(row["active_pes"]) if row["active_pes"] else None,
            row["held_out"] == "1",
            _number(row["compute_samples_per_s"]),
        )
        for row in _rows("overall.csv")
    )


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def _rows(name: str) -> Iterator[dict[str, str]]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    yield from csv.DictReader(line for line in lines if not line.startswith("#"))

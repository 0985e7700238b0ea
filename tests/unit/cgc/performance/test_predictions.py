"""Published compile reports against ours, from the example models through the whole compiler."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.performance_model import BEGIN, END, PAGE, Prediction, predict, summary, table
from cgc.performance.published import OverallRow, overall_rows

ROWS = {row.name: row for row in overall_rows()}


def prediction(row: OverallRow, factor: float) -> Prediction:
    figures = {
        "samples_per_s": row.samples_per_s * factor,
        "transmission_samples_per_s": 1.0,
        "active_pes_percent": 37.4,
        "compute_utilization_percent": row.utilization_percent,
    }
    return Prediction(row, figures, "fc1", 3)


def test_the_table_has_signed_errors_of_what_is_published() -> None:
    found = prediction(ROWS["transformer_width_512"], 1.1)
    lines = table([found]).splitlines()
    # Nothing is published of transmission in the sweep of widths.
    assert len(lines) == 2 + 3
    assert lines[2] == "| transformer_width_512 | held out | samples/s | 5,897.0 | 6,486.7 | +10.0% |"
    assert "| all figures of rows held out | 3 | 10.0% |" in summary([found])
    assert "| all figures of rows seen | 0 | | |" in summary([found])


def test_the_page_keeps_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN), text.index(END)
    assert all(name in text[begin:end] for name in ROWS)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_published_rows_are_predicted() -> None:
    """The aim is a median error under 10 %; rates of Transformers are within 1 %."""
    found = [predict(row) for row in ROWS.values()]
    errors = [abs(error) for one in found for error in one.errors() if error is not None]
    assert statistics.median(errors) < 0.05
    for one in found:
        rate = one.errors()[0]
        assert rate is not None
        assert abs(rate) < {"transformer": 0.01, "gpt2": 0.05, "fc_mnist": 0.35}[one.row.sizes["model"]]

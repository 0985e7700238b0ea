"""Suggestions for the bottleneck kernel: every sentence comes from its cost function."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cgc.kernels import Kernel, KernelGraph
from cgc.kernels.families import configurations
from cgc.placement import place
from cgc.report import build_report, render_html, render_text
from cgc.report.model import CompileReport
from cs_toolkit.fabric import Fabric, load_fabric

DROPOUT = {
    "rows": 1,
    "row_elements": 500,
    "passes": 2,
    "element_bytes": 4,
    "resident_bytes": 0,
    "stash_bytes": 500,
    "step_millicycles": 0,
    "batch": 256,
}
PRODUCT = {
    "rows": 128,
    "inputs": 1024,
    "outputs": 4096,
    "passes": 3,
    "element_bytes": 4,
    "resident_bytes": 4 * 4 * 1024 * 4096,
    "stash_bytes": 0,
    "epilogue_millicycles": 0,
    "step_millicycles": 0,
    "reload": 0,
    "batch": 32,
}


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return load_fabric("cs2")


def report_of(kernel: Kernel, fabric: Fabric) -> CompileReport:
    graph = KernelGraph((kernel,), batch_size=kernel.parameters["batch"])
    return build_report(graph, place(graph, fabric), fabric)


def test_nothing_is_promised_to_a_kernel_whose_start_takes_its_time(fabric: Fabric) -> None:
    """It has one row a sample: fewer rows, which older reports advised, there cannot be."""
    report = report_of(Kernel("dropout1", "dropout", DROPOUT), fabric)
    text, page = render_text(report), render_html(report)
    assert not any(change.helps for change in report.changes)
    assert report.suggestions[0].lever == "replicas"
    assert "half as many" not in text
    assert "cycles per sample; no layout of it is faster, whatever its area." in text
    assert "ewer rows" not in text
    assert "no other rectangle" not in page
    count = len(configurations(report.pipelined.kernels[0].kernel).cycles)
    assert f"it is at its fastest: none of its {count} layouts on this fabric is faster." in page


def test_every_what_if_is_computed_by_the_cost_function(fabric: Fabric) -> None:
    kernel = Kernel("fc1", "fully_connected", PRODUCT)
    report = report_of(kernel, fabric)
    found = {change.change: change.cycles for change in report.changes}
    for change, parameters in (
        ("16-bit elements", {"element_bytes": 2}),
        ("half as many rows a sample (64)", {"rows": 64}),
        ("half as many inputs (512)", {"inputs": 512, "resident_bytes": PRODUCT["resident_bytes"] // 2}),
        ("half as many outputs (2,048)", {"outputs": 2048, "resident_bytes": PRODUCT["resident_bytes"] // 2}),
    ):
        other = report_of(replace(kernel, parameters={**PRODUCT, **parameters}), fabric)
        least = next(change for change in other.changes if change.change == "more PEs").cycles
        assert found[change] == least, change
    # The kernel is the only one, so its cycles are those of the step.
    sizes = {one.change: one.samples_per_s for one in report.suggestions if one.lever == "shape"}
    assert sizes
    assert all(fabric.clock_hz / rate == pytest.approx(found[change]) for change, rate in sizes.items())
    text, page = render_text(report), render_html(report)
    assert all(f"| {change} " in text and f">{change}<" in page for change in sizes)

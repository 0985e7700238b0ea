from __future__ import annotations

import json
import re

import pytest

from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.kernels.configurations import Configuration
from cgc.placement import Placement, Rect
from cgc.report import (
    CompileReport,
    build_json,
    build_report,
    render_html,
    render_kernel_list,
    render_plan,
    render_text,
    render_verdict,
)
from cgc.report.text import table
from cs_runtime.terminal import shorten_report
from cs_toolkit.fabric import Fabric, load_fabric

LOOP = {
    "rows": 1,
    "row_elements": 64,
    "starts": 2,
    "reductions": 2,
    "work_millicycles": 64_000,
    "step_millicycles": 0,
    "streamed_elements": 64,
    "element_bytes": 4,
    "resident_bytes": 0,
    "stash_bytes": 0,
    "batch": 32,
}


@pytest.fixture
def fabric() -> Fabric:
    return load_fabric("cs2")


def report_of(
    fabric: Fabric, compute: int = 988_027, transmission: int = 987_109, target: int = 1
) -> CompileReport:
    """Two kernels; the defaults are the cycles of a published report (GPT-2 small).

    A target above what pays means that the kernels did not fit together in a faster layout.
    """
    kernels = (
        Kernel("fc1", "reduction", LOOP, ops=("cirh.Exp",) * 3, op_indices=(0, 1, 2), source="model.py:12"),
        Kernel("exp1", "elementwise", LOOP, ops=("cirh.Exp",), op_indices=(3,), generated=True),
    )
    graph = KernelGraph(kernels, (Edge("fc1", "exp1", 64),), batch_size=32)
    layouts = {
        "fc1": Configuration(650, 400, compute, transmission, 30_000, 260_000 * compute * 0.9),
        "exp1": Configuration(100, 232, 1000, 1024, 5_000, 0.0),
    }
    rects = {"fc1": Rect(0, 0, 650, 400), "exp1": Rect(0, 0, 100, 232)}
    placement = Placement("cs2", rects, layouts, target, 283_200, 283_200 / 307_840, 12.0)
    return build_report(graph, placement, fabric)


def test_the_head_has_exactly_the_published_lines(fabric: Fabric) -> None:
    head = render_text(report_of(fabric)).split("\n\n")[0]
    assert head.splitlines() == [
        "Estimated Overall Performance",
        "-------------------------------",
        "Samples/s:                                     860.3",
        "Compute Samples/s:                             860.3",
        "Transmission Samples/s:                        861.1",
        "Active PEs:                                    92%",
        "Compute Utilization:                           83%",
    ]


def test_small_shares_can_be_read_in_the_table(fabric: Fabric) -> None:
    text = render_text(report_of(fabric))
    assert "283200 (92.00%)" in text
    assert "82.63%" in text


def test_the_verdict_names_kernel_line_and_limit(fabric: Fabric) -> None:
    assert render_verdict(report_of(fabric)) == (
        "Verdict: kernel fc1 at model.py:12 bounds the speed: compute limits it to 988,027 cycles per "
        "sample; a percent of speed would cost more than 4 percent of area."
    )
    assert "transmission limits it" in render_verdict(report_of(fabric, compute=10, transmission=2000))


def test_the_verdict_names_kernels_that_are_just_as_slow(fabric: Fabric) -> None:
    """Making only the named kernel faster gains nothing."""
    report = report_of(fabric, compute=1024, transmission=1000)
    assert [row.kernel.name for row in report.pipelined.as_slow] == ["exp1"]
    assert report_of(fabric).pipelined.as_slow == ()
    assert "kernel fc1 at model.py:12 (just as slow: exp1) bounds the speed" in render_verdict(report)
    assert "<code>exp1</code> needs just as many cycles" in render_html(report)


def test_the_verdict_states_that_the_fabric_is_full(fabric: Fabric) -> None:
    report = report_of(fabric, target=988_027)
    assert "; no floorplan was found in which their rectangles pack." in report.explanations[0]
    assert render_verdict(report) == (
        "Verdict: kernel fc1 at model.py:12 bounds the speed: area limits it to 988,027 cycles per sample; "
        "the kernels take 92.0% of the fabric, larger ones do not fit together."
    )


def test_the_report_states_that_it_estimates_the_wafer(fabric: Fabric) -> None:
    assert "estimates of time on the wafer (cs2, 307,840 PEs, 850 MHz), not of the simulator" in render_text(
        report_of(fabric)
    )


def test_the_json_form_has_all_figures_unrounded(fabric: Fabric) -> None:
    data = json.loads(json.dumps(build_json(report_of(fabric))))
    figures = {
        "samples_per_s",
        "compute_samples_per_s",
        "transmission_samples_per_s",
        "active_pes",
        "active_pes_percent",
        "compute_utilization_percent",
        "deltat_cycles",
    }
    assert set(data["overall"]) == figures
    assert data["overall"]["deltat_cycles"] == 988_027
    assert data["overall"]["samples_per_s"] == 850e6 / 988_027
    first, second = data["kernels"]
    assert figures <= set(first)
    assert (first["name"], first["family"], first["source"]) == ("fc1", "reduction", "model.py:12")
    assert first["rectangle"] == {"x": 0, "y": 0, "width": 650, "height": 400}
    assert first["memory_per_pe_bytes"] == 30_000
    assert second["generated"] is True
    assert data["bottleneck"] == {
        "kernel": "fc1",
        "limit": "compute",
        "reason": "area_too_dear",
        "deltat_cycles": 988_027,
        "remedies": data["bottleneck"]["remedies"],
        "levers": data["bottleneck"]["levers"],
    }
    assert data["bottleneck"]["remedies"][0].startswith("fc1 could take ")


def test_the_plan_is_compact_and_holds_the_total_utilization(fabric: Fabric) -> None:
    text = render_plan(report_of(fabric))
    assert f'"total_utilization":{283_200 / 307_840}' in text
    assert json.loads(text)["kernels"] == {"fc1": [0, 0, 650, 400], "exp1": [0, 0, 100, 232]}


def test_the_kernel_list_distinguishes_matched_from_generated(fabric: Fabric) -> None:
    report = report_of(fabric)
    text = render_kernel_list(
        KernelGraph(tuple(row.kernel for row in report.pipelined.kernels), batch_size=32)
    )
    assert text.startswith("2 kernels for 4 ops, 32 samples per step\n")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells[1:] == [
        ["fc1", "reduction", "matched", "3", "model.py:12"],
        ["exp1", "elementwise", "generated", "1", "--"],
    ]


def test_a_terminal_shows_the_slowest_kernels_of_a_long_table_and_all_else() -> None:
    rates = [float(index * 37 % 100) for index in range(100)]
    rows = [(f"fc{index}", f"{rate:.1f}", "1.0", "1.0", "7", "1.00%") for index, rate in enumerate(rates)]
    total = ("overall", "0.0", "1.0", "1.0", "700 (1.00%)", "1.00%")
    header = ("Kernel Name", "Samples/s", "Compute", "Transmission", "Active PEs", "Utilization")
    text = f"head\n\n{table(header, [*rows, total])}\n\nVerdict: good.\n"
    lines = shorten_report(text, rows=5).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("fc")]
    slowest = sorted(range(100), key=lambda index: rates[index])[:5]
    assert names == [f"fc{index}" for index in sorted(slowest)]
    assert lines[:2] == ["head", ""]
    assert lines[2].split() == [
        *("Kernel", "Samples/s", "Compute", "Transmission", "Active", "PEs"),
        "Utilization",
    ]
    assert lines[-3:-1] == ["... and 95 faster ones, see compile_report.txt", "overall" + lines[-2][7:]]
    assert lines[-1] == "Verdict: good."


def test_a_report_takes_less_than_a_screen(fabric: Fabric) -> None:
    short = shorten_report(render_text(report_of(fabric)))
    assert short.startswith("Estimated Overall Performance: Samples/s ")
    assert re.search(r"with their share of the fabric: \w+ \d+ \(\d+\.\d+%\)", short)
    assert len(short.splitlines()) < 24
    assert max(len(line) for line in short.splitlines() if not line.startswith(("Verdict", "All fig"))) <= 100

"""Copies of a model in the compile report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.kernels import KernelGraph, match_kernels
from cgc.performance.replicas import select_replicas
from cgc.report import CompileReport, build_json, build_replicas_report, render_html, render_plan, render_text
from cs_runtime.terminal import shorten_report
from cs_toolkit.execution_options import ReplicaChoice
from cs_toolkit.fabric import load_fabric

FABRIC = load_fabric("cs2")
MNIST = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


@pytest.fixture(scope="module")
def graph() -> KernelGraph:
    return match_kernels(parse_module(MNIST.read_text()))


def report_of(graph: KernelGraph, choice: ReplicaChoice) -> CompileReport:
    return build_replicas_report(*select_replicas(graph, FABRIC, choice), FABRIC)


def test_one_copy_that_was_asked_for_is_no_replica(graph: KernelGraph) -> None:
    report = report_of(graph, 1)
    assert report.pipelined.replicas is None
    assert "Replicas" not in render_text(report)
    assert "replicas" not in build_json(report)
    assert "replicas-heading" not in render_html(report)


def test_rates_and_areas_are_those_of_all_copies(graph: KernelGraph) -> None:
    report = report_of(graph, 4)
    assert report.pipelined.replicas is not None
    copies = report.pipelined.replicas.copies
    data = json.loads(json.dumps(build_json(report)))
    assert data["batch_size"] == 256
    assert data["overall"]["samples_per_s"] == copies.samples_per_s
    assert data["overall"]["active_pes"] == 4 * sum(kernel["active_pes"] for kernel in data["kernels"])
    found = data["replicas"]
    assert (found["replicas"], found["samples_per_step"]) == (4, 64)
    assert found["columns"] * found["rows"] == 4
    assert (
        found["step_cycles"]
        == 64 * found["deltat_cycles"] + found["emptying_cycles"] + found["exchange_cycles"]
    )
    assert [row["replicas"] for row in found["tried"]] == [4]
    head = render_text(report).splitlines()[2]
    assert head.split() == ["Samples/s:", f"{copies.samples_per_s:.1f}"]


def test_the_plan_has_the_corners_of_all_copies(graph: KernelGraph) -> None:
    report = report_of(graph, 4)
    assert report.pipelined.replicas is not None
    plan = json.loads(render_plan(report))
    assert plan["copies"] == [list(corner) for corner in report.pipelined.replicas.copies.boxes.corners]
    assert (
        plan["total_utilization"]
        == report.pipelined.performance.overall.active_pes / FABRIC.processing_elements
    )


def test_the_page_draws_every_copy(graph: KernelGraph) -> None:
    html = render_html(report_of(graph, 8))
    whole = html[html.index('id="whole-title"') : html.index('class="plan main"')]
    assert whole.count('<use class="copy" href="#copy"') == 7
    assert whole.count('<rect class="box"') == 8
    assert len(set(re.findall(r'<use class="copy" href="#copy" x="([\d.-]+)" y="([\d.-]+)"', whole))) == 7
    assert "8 copies of the model" in whole
    assert "<span>8 replicas</span>" in html


def test_the_page_compares_the_numbers_that_auto_has_tried(graph: KernelGraph) -> None:
    report = report_of(graph, "auto")
    assert report.pipelined.replicas is not None
    html = render_html(report)
    table = html[html.index('<table class="tried cards">') :].split("</table>")[0]
    assert table.count("<tr") == 1 + len(report.pipelined.replicas.tried)
    assert table.count('class="chosen"') == 1
    assert f'<th scope="row">{report.pipelined.replicas.copies.count}' in table.split('class="chosen"')[1]


def test_a_step_reports_the_gain_of_a_larger_batch(graph: KernelGraph) -> None:
    report = report_of(graph, 8)
    assert report.pipelined.replicas is not None
    copies = report.pipelined.replicas.copies
    cycles = 2 * copies.samples * copies.per_replica.deltat_cycles + copies.exchange.cycles
    (batch,) = (one for one in report.suggestions if one.lever == "batch")
    assert batch.samples_per_s == pytest.approx(2 * 256 * FABRIC.clock_hz / cycles, rel=0.03)
    assert "take the same time for every batch size" in report.explanations[0]
    assert len(report.explanations) > 1


def test_crowded_copies_lead_to_the_advice_to_use_fewer(graph: KernelGraph) -> None:
    report = report_of(graph, 64)
    assert "Each of the 64 copies has a box of " in report.explanations[1]


def test_a_host_that_is_too_slow_for_all_copies_is_reported(graph: KernelGraph) -> None:
    slow = FABRIC.model_copy(update={"io_links": 1, "io_link_bits_per_s": 50e9})
    copies, tried = select_replicas(graph, slow, 16)
    report = build_replicas_report(copies, tried, slow)
    assert "per sample of each of the 16 copies (transmission)" in render_text(report)
    assert "to each of the 16 copies" in render_html(report)


def test_a_terminal_shows_the_replicas_without_the_numbers_compared(graph: KernelGraph) -> None:
    text = render_text(report_of(graph, "auto"))
    short = shorten_report(text, rows=3)
    assert "and 4 faster ones" in short
    assert text[text.index("Replicas: ") : text.index("\nNumbers of replicas")] in short
    assert "Numbers of replicas" not in short

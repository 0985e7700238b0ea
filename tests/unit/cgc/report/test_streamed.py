"""The report of a step with one layer at a time: text, JSON and page tell one story."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import unescape
from typing import Any

import pytest

from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.kernels.families import FAMILIES
from cgc.layers.traffic import LayerTraffic
from cgc.manifest import Bound
from cgc.performance.layers import (
    LayerCost,
    LayerPlan,
    PlacedLayer,
    StreamedPerformance,
    estimate_streamed_step,
)
from cgc.placement.replicas import place_copies
from cgc.report import CompileReport, StreamedPart, build_json, render_html, render_text, render_verdict
from cgc.report.families import sum_layer_families
from cgc.report.limit import explain_layers
from cgc.report.model import LayerReport
from cgc.report.suggestions import Suggestion, suggest_for_layers
from cgc.report.what_if import Estimate, find_slowest_kernel
from cs_runtime.terminal import shorten_report
from cs_toolkit.fabric import load_fabric

WAFER = load_fabric("cs2").for_execution("weight_streaming")
HOSTILE = "<b>block</b>"
TRAFFIC = LayerTraffic(weights=3_000_000, backward_weights=3_000_000, gradients=3_000_000, stash=2, update=9)


def plan(number: int) -> LayerPlan:
    sizes = {"rows": 16, "inputs": 256, "outputs": 256, "passes": 3, "element_bytes": 2, "batch": 64}
    parameters = {**dict.fromkeys(FAMILIES["fully_connected"].parameters, 0), **sizes}
    kernels = [
        Kernel(name, "fully_connected", parameters, source="model.py:1")
        for name in (f"fc<{number}>", "other")
    ]
    edges = (Edge(kernels[0].name, "other", 256),)
    graph = KernelGraph(tuple(kernels), edges, batch_size=64)
    copies = place_copies(graph, WAFER)
    return LayerPlan(number, graph, copies, copies.cycles / 3, copies.cycles * 2 / 3)


@pytest.fixture(scope="module")
def report() -> CompileReport:
    """Four layers of two kinds; the second one is computed again, the last one computes nothing."""
    first, second, empty = plan(0), plan(1), LayerPlan(2, None, None, 0.0, 0.0)
    placed = [
        PlacedLayer(name, kind)
        for name, kind in (("embedding", first), (HOSTILE, second), ("block 2", second), ("end", empty))
    ]
    costs = [
        LayerCost(
            layer.plan.forward_cycles,
            layer.plan.backward_cycles,
            layer.plan.copies.count if layer.plan.copies else 1,
            0,
            TRAFFIC,
        )
        for layer in placed
    ]
    performance = estimate_streamed_step(costs, 64, 1000, 10**9, joined_update=False, fabric=WAFER)
    layers = tuple(
        LayerReport(layer, TRAFFIC, time, index == 1)
        for index, (layer, time) in enumerate(zip(placed, performance.layers, strict=True))
    )
    return CompileReport(
        fabric=WAFER,
        batch_size=64,
        samples_per_s=64 / performance.step_s,
        active_pes=max(layer.plan.active_pes for layer in placed),
        notices=("a reason & its figures",),
        streamed=StreamedPart(layers, performance),
    )


def bound_by(report: CompileReport, bound: Bound, seconds: float = 1.0, **changes: Any) -> CompileReport:
    """Return the report of a step most of whose time is spent on one thing."""
    performance = report.streamed.performance
    parts = {**performance.parts, bound: seconds}
    part = replace(report.streamed, performance=replace(performance, parts=parts, **changes))
    return replace(report, streamed=part)


def test_the_text_has_a_row_for_each_layer_and_names_the_bottleneck(report: CompileReport) -> None:
    text = render_text(report)
    assert text.startswith("Estimated Overall Performance\n-------------------------------\nSamples/s:")
    assert f"{report.samples_per_s:.1f}" in text
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {HOSTILE} (recomputed)"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    compute, weights, exposed, activations, copies, pes = cells[1:]
    layer = report.streamed.layers[1]
    assert float(compute) == pytest.approx(1e3 * layer.time.compute_s, abs=1e-3)
    assert (weights, activations) == ("3.0", "0.0")
    assert float(exposed) == pytest.approx(1e3 * layer.time.exposed_s, abs=1e-3)
    assert layer.placed.plan.copies is not None
    assert (copies, pes) == (str(layer.placed.plan.copies.count), str(layer.placed.plan.active_pes))
    assert "Verdict: latency bounds the rate" in text
    assert "a reason & its figures" in text
    assert "estimates of time on the wafer (cs2, 745,500 PEs" in text


def test_the_same_figures_for_programs(report: CompileReport) -> None:
    found = build_json(report)
    overall = found["overall"]
    assert overall["samples_per_s"] == report.samples_per_s == pytest.approx(64 / overall["step_s"])
    assert sum(overall["seconds"].values()) == pytest.approx(overall["step_s"])
    assert overall["bound_by"] == max(overall["seconds"], key=overall["seconds"].get)
    assert [layer["name"] for layer in found["layers"]] == ["embedding", HOSTILE, "block 2", "end"]
    assert [layer["kind"] for layer in found["layers"]] == [0, 1, 1, 2]
    assert [layer["recomputed"] for layer in found["layers"]] == [False, True, False, False]
    assert sum(layer["compute_s"] for layer in found["layers"]) == pytest.approx(
        overall["seconds"]["compute"]
    )
    assert [kind["kind"] for kind in found["kinds"]] == [0, 1]
    assert {"x", "y", "width", "height"} == set(found["kinds"][0]["kernels"][0]["rectangle"])


def test_kernels_are_summed_by_family_over_all_layers(report: CompileReport) -> None:
    """Three layers with two kernels each: the time that one sets the pace is that of its layer."""
    (only,) = sum_layer_families(report.streamed.layers)
    assert (only.family, only.kernels, only.generated, only.layers) == ("fully_connected", 6, 0, 3)
    assert only.pace_s == pytest.approx(report.streamed.performance.parts["compute"])
    assert only.pe_time_percent == pytest.approx(100)
    other, *rest = (one for one in report.streamed.layers if one.placed.plan.graph is not None)
    graph = other.placed.plan.graph
    assert graph is not None
    slow = other.placed.plan.slowest_kernel
    kernels = tuple(
        kernel if kernel is slow else replace(kernel, family="softmax") for kernel in graph.kernels
    )
    plan = replace(other.placed.plan, graph=replace(graph, kernels=kernels))
    mixed = sum_layer_families([replace(other, placed=replace(other.placed, plan=plan)), *rest])
    assert [(one.family, one.kernels, one.layers) for one in mixed] == [
        ("fully_connected", 5, 3),
        ("softmax", 1, 1),
    ]
    assert mixed[1].pace_s == 0
    copies = other.placed.plan.copies
    assert copies is not None
    (name,) = (kernel.name for kernel in graph.kernels if kernel is not slow)
    rect, layout = copies.placement.rects[name], copies.placement.layouts[name]
    expected = 100 * layout.busy_pe_cycles / (rect.area * copies.cycles)
    assert mixed[1].compute_utilization_percent == pytest.approx(expected)
    assert sum(one.pe_time_percent for one in mixed) == pytest.approx(100)
    assert build_json(report)["families"] == [asdict(only)]
    assert f"| {1e3 * only.pace_s:.3f} | 100% |" in re.sub(" +", " ", render_text(report))
    assert "<caption>Kernels by family</caption>" in render_html(report)
    short = shorten_report(render_text(report))
    assert "Kernels by family, with their share of the PEs' time: fully_connected 6 (100%)\n" in short


def test_a_terminal_has_head_and_times_in_sentences(report: CompileReport) -> None:
    words = " ".join(shorten_report(render_text(report)).split())
    assert words.startswith("Estimated Overall Performance: Samples/s ")
    assert "Execution weight streaming, Layers 4," in words
    step_s = report.streamed.performance.step_s
    assert (
        f"Time of a step in ms: compute {1e3 * report.streamed.performance.parts['compute']:.3f} (" in words
    )
    assert f", step {1e3 * step_s:.3f} (100%) " in words


def test_the_page_draws_a_kind_of_layer_once_and_links_every_layer_to_it(report: CompileReport) -> None:
    page = render_html(report)
    assert page == render_html(report)
    assert re.findall(r'<article class="layer" id="kind-(\d)"', page) == ["0", "1", "2"]
    assert re.findall(r'<th scope="row"><a href="#kind-(\d)"', page) == ["0", "1", "1", "2"]
    copies = report.streamed.layers[0].placed.plan.copies
    assert copies is not None
    assert page.count('href="#copy-0"') == copies.count - 1
    assert page.count('<rect class="frame"') == page.count('<svg class="plan main"') == 2
    assert page.count('<rect class="slowest-outline"') == 4, "enlarged and in its place on the wafer"
    assert "This layer computes nothing." in page
    assert "a reason &amp; its figures" in page


def test_names_of_the_program_are_escaped_and_nothing_is_loaded(report: CompileReport) -> None:
    page = render_html(report)
    assert HOSTILE not in page
    assert HOSTILE in unescape(page).replace("<wbr>", "")
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("compute", "layer embedding computes the longest"),
        ("latency", "the start of 4 layers"),
        ("weight bandwidth", "at 150 GB/s that compute does not hide"),
        ("activation memory", "the wafer has room for"),
        ("update", "the update of the weights at MemoryX"),
    ],
)
def test_the_verdict_has_the_figures_of_what_bounds_the_rate(
    report: CompileReport, bound: Bound, said: str
) -> None:
    parts = dict.fromkeys(report.streamed.performance.parts, 0.25)
    quarters = replace(report.streamed, performance=replace(report.streamed.performance, parts=parts))
    found = render_verdict(bound_by(replace(report, streamed=quarters), bound))
    assert found.startswith(f"Verdict: {bound} bounds the rate: 50% of a step of 2e+03 ms")
    assert said in found


def suggestions_of(report: CompileReport, estimate: Estimate) -> tuple[Suggestion, ...]:
    placed = [layer.placed for layer in report.streamed.layers]
    kernel = find_slowest_kernel(report.streamed.slowest.placed, WAFER)
    costs = [LayerCost(1.0, 1.0, 1, 0, TRAFFIC) for _ in placed]
    return suggest_for_layers(placed, costs, kernel, estimate, report.batch_size, "float32", WAFER)


def test_the_report_ranks_the_changes_of_the_step(report: CompileReport) -> None:
    def estimate(times: int, share: float, costs: Sequence[LayerCost]) -> StreamedPerformance:
        # Half of the activations are a third of the time; smaller kernels do not matter.
        parts = {part: seconds * share**1.585 for part, seconds in report.streamed.performance.parts.items()}
        return replace(report.streamed.performance, parts=parts, micro_batches=2, activation_room_bytes=1)

    changed = replace(report, suggestions=suggestions_of(report, estimate))
    precision, batch = changed.suggestions
    assert (precision.lever, precision.option) == ("precision", ("precision", "cbfloat16"))
    assert precision.times == pytest.approx(3, rel=1e-3)
    assert batch.samples_per_s == pytest.approx(2 * report.samples_per_s)
    text, page = render_text(changed), render_html(changed)
    assert text.index(f"| {precision.change} |") < text.index("| a batch twice as large (128) ")
    assert f"; {precision.change}: {precision.samples_per_s:,.0f} samples/s" in render_verdict(changed)
    assert f" {precision.samples_per_s:.1f} | " in text
    assert page.count("Times as fast") == 3, "head and cells"
    assert [one["lever"] for one in build_json(changed)["suggestions"]] == ["precision", "batch"]


def test_a_change_that_is_no_faster_is_left_out(report: CompileReport) -> None:
    parts = {part: 2 * seconds for part, seconds in report.streamed.performance.parts.items()}
    slower = replace(report.streamed.performance, parts=parts)

    def estimate(times: int, share: float, costs: Sequence[LayerCost]) -> StreamedPerformance:
        return report.streamed.performance if (times, share) == (1, 1.0) else slower

    changed = replace(report, suggestions=suggestions_of(report, estimate))
    assert changed.suggestions == ()
    assert "twice as large" not in render_text(changed)
    assert "is predicted to be faster; latency bounds the rate.\n" in render_text(changed)
    assert "predicted to be faster; latency bounds the rate." in render_html(changed)


def test_where_compute_bounds_the_rate_its_kernel_is_named(report: CompileReport) -> None:
    kernel = find_slowest_kernel(report.streamed.layers[0].placed, WAFER)
    assert kernel is not None
    copies = report.streamed.layers[0].placed.plan.copies
    assert copies is not None
    assert kernel.cycles == copies.cycles
    named, other = (bound_by(report, bound) for bound in ("compute", "update"))
    named, other = (
        replace(one, explanations=explain_layers(kernel, one.streamed.performance)) for one in (named, other)
    )
    sentence = f"Kernel fc<0> sets the pace of layer embedding, {kernel.cycles:,} cycles a sample"
    assert sentence in render_text(named)
    assert build_json(named)["remedies"] == list(named.explanations)
    assert sentence not in render_text(other)


def test_micro_batches_that_the_program_asks_for_are_not_put_on_the_memory(report: CompileReport) -> None:
    asked = bound_by(report, "activation memory", micro_batches=4)
    assert asked.streamed.performance.fits_unsplit
    verdict = render_verdict(asked)
    assert "the program asks for 4 micro-batches, of 0.0 MB of activations each" in verdict
    assert "16-bit" not in verdict

    def estimate(times: int, share: float, costs: Sequence[LayerCost]) -> StreamedPerformance:
        return (asked if share == 1 else report).streamed.performance

    changes = {one.lever: one.option for one in suggestions_of(report, estimate)}
    assert changes["micro_batches"] == ("micro_batch_size", "auto")

"""The report of a step with one layer at a time, for a browser: with a floorplan of each layer.

The page has no script: links choose the layer that is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cgc.kernels.graph import Edge
from cgc.performance.layer_costs import LayerPlan
from cgc.performance.model import estimate
from cgc.provenance import Provenance
from cgc.report.floorplan import BINS, Floorplan, detail, overview, used_window, whole_window
from cgc.report.model import KernelReport
from cgc.report.page import asset, page_environment
from cgc.report.streamed import StreamedReport
from cgc.report.streamed_families import layered_family_sums
from cgc.report.streamed_text import change_text, streamed_remedies, streamed_verdict
from cs_toolkit.fabric import Fabric

_WAFER_WIDTH, _COPY_WIDTH = 460.0, 780.0


@dataclass(frozen=True)
class _Copy:
    """One copy of a layer, whose box is all the PEs that it has."""

    fabric: Fabric
    kernels: Sequence[KernelReport]
    edges: Sequence[Edge]
    bottleneck: KernelReport | None


def render_streamed_html(report: StreamedReport, made: Provenance | None = None) -> str:
    """The text of `compile_report.html`: the same bytes for the same arguments, everything escaped.

    Args:
        report: all figures.
        made: where the step comes from.
    """
    layers = list(enumerate(report.layers))
    verdict = streamed_verdict(report).removeprefix("Verdict: ")
    return (
        page_environment()
        .get_template("streamed_report.html.j2")
        .render(
            report=report,
            made=(made or Provenance()).lines(),
            performance=report.performance,
            verdict=verdict[0].upper() + verdict[1:],
            remedies=streamed_remedies(report),
            change_text=change_text,
            layers=layers,
            kinds=_kinds(report),
            families=layered_family_sums(report.layers),
            bins=BINS,
            style=Markup("\n".join(map(asset, ("base.css", "compile_report.css", "streamed_report.css")))),
        )
    )


def _kinds(report: StreamedReport) -> list[dict[str, Any]]:
    """Number, layers and drawing of each kind of layer."""
    names: dict[int, list[str]] = {}
    plans = {}
    for layer in report.layers:
        plan = layer.placed.plan
        plans[plan.number] = plan
        names.setdefault(plan.number, []).append(layer.placed.name)
    return [
        {"number": number, "names": names[number], "drawn": _drawing(plan, report.fabric)}
        for number, plan in plans.items()
    ]


def _drawing(plan: LayerPlan, wafer: Fabric) -> dict[str, Any] | None:
    """The wafer with its copies, one copy enlarged, and its kernels; None where nothing is computed."""
    graph, copies = plan.graph, plan.copies
    if graph is None or copies is None:
        return None
    box = wafer.model_copy(update={"width": copies.width, "height": copies.height})
    figures = estimate(graph, copies.placement, box).kernels
    kernels = [
        KernelReport(
            kernel,
            copies.placement.rects[kernel.name],
            copies.placement.layouts[kernel.name].memory_per_pe_bytes,
            figures[kernel.name],
        )
        for kernel in graph.kernels
    ]
    slowest = max(kernels, key=lambda row: row.figures.compute_cycles)
    copy = _Copy(box, kernels, graph.edges, slowest)
    rects = [row.rectangle for row in kernels]
    window = used_window(rects, box, _COPY_WIDTH) or whole_window(box, _COPY_WIDTH)
    whole = whole_window(wafer, _WAFER_WIDTH)
    return {
        "copies": copies,
        "kernels": kernels,
        "one": detail(copy, window),
        "wafer": _on_wafer(copy, wafer),
        "boxes": [
            whole.box(column * copies.width, row * copies.height, copies.width, copies.height)
            for row in range(copies.rows)
            for column in range(copies.columns)
        ],
    }


def _on_wafer(copy: _Copy, wafer: Fabric) -> Floorplan:
    """The first copy at its place on the whole wafer."""
    window = whole_window(wafer, _WAFER_WIDTH)
    return overview(_Copy(wafer, copy.kernels, copy.edges, copy.bottleneck), window, window)

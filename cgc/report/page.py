"""The report for a browser: `compile_report.html`, one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from cgc.kernels.graph import Edge
from cgc.manifest import Provenance
from cgc.performance.layers import LayerPlan
from cgc.performance.model import MEMORY, estimate
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.floorplan import BINS, Floorplan, Window, detail, overview, used_window, whole_window
from cgc.report.model import CompileReport, KernelReport, StreamedReport
from cgc.report.replicas import summarize_replicas
from cgc.report.suggestions import Reason
from cgc.report.text import render_streamed_verdict, suggest_kernel_changes
from cgc.report.what_if import describe_kernel_change, describe_step_change
from cs_toolkit.fabric import Fabric

_WHOLE_WIDTH = 400.0
_DETAIL_WIDTH = 900.0
_ALONE_WIDTH = 1300.0
_DENSE = 60
_LONG_TABLE = 24
_LARGE_SHARE = 50.0


def render_html(report: CompileReport, made: Provenance | None = None) -> str:
    """Render the `compile_report.html` of a pipelined step; equal arguments give equal bytes.

    Everything from the user's program is escaped. A content security policy blocks all network access and
    all scripts except the page's own.

    Args:
        report: all figures.
        made: provenance of the compile, if known.
    """
    script = asset("compile_report.js")
    return (
        page_environment()
        .get_template("compile_report.html.j2")
        .render(
            report=report,
            made=(made or Provenance()).lines(),
            families=sum_families(report.kernels),
            describe_kernel_change=describe_kernel_change,
            overall=report.performance.overall,
            rows=[_row(index, row, report) for index, row in enumerate(report.kernels)],
            bars=_bars(report),
            plans=_plans(report),
            copies=_copies(report),
            kinds_shown=_kinds_shown(len(report.edges)),
            dense=_DENSE,
            sources=_common_folder([row.kernel.source for row in report.kernels]),
            definitions=DEFINITIONS,
            style=Markup(asset("base.css") + "\n" + asset("compile_report.css")),
            script=Markup(script),
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            Reason=Reason,
            bins=BINS,
            long_table=_LONG_TABLE,
            room_to_grow=report.performance.overall.active_pes_percent < _LARGE_SHARE and _count(report) == 1,
        )
    )


@cache
def page_environment() -> Environment:
    """Return the template environment of reports, with its filters and with escaping on."""
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        thousands=_thousands,
        percent=_percent,
        pixels=_pixels,
        breakable=_breakable,
        source_name=posixpath.basename,
    )
    return environment


@cache
def asset(name: str) -> str:
    """Read a text file of this package."""
    return resources.files("cgc.report").joinpath(name).read_text(encoding="utf-8").strip()


def _row(index: int, row: KernelReport, report: CompileReport) -> dict[str, Any]:
    return {
        "index": index,
        "kernel": row.kernel,
        "origin": "generated" if row.kernel.generated else "matched",
        "loops": row.kernel.loops.describe() if row.kernel.loops else (),
        "ops": [op.removeprefix("cirh.") for op in row.kernel.ops],
        "rectangle": row.rectangle,
        "memory": row.memory_per_pe_bytes,
        "memory_percent": 100 * row.memory_per_pe_bytes / report.fabric.memory_per_pe_bytes,
        "figures": row.figures,
        "slowest": row is report.bottleneck,
    }


def _bars(report: CompileReport) -> list[dict[str, Any]]:
    """Return how close compute, transmission, area, memory and exchange are to limiting the speed."""
    overall = report.performance.overall
    bars = [
        _bar("compute", overall.compute_cycles, overall.deltat_cycles, "cycles per sample"),
        _bar("transmission", overall.transmission_cycles, overall.deltat_cycles, "cycles per sample"),
        _bar("area", overall.active_pes, report.fabric.processing_elements, "PEs"),
    ]
    if report.limit.kind == MEMORY and report.bottleneck is not None:
        used, there = report.bottleneck.memory_per_pe_bytes, report.fabric.memory_per_pe_bytes
        bars.append(_bar(MEMORY, used, there, "bytes per PE"))
    if report.replicas is not None and report.replicas.copies.exchange.cycles:
        copies = report.replicas.copies
        bars.append(
            _bar("emptying and exchange", copies.exchange.cycles, copies.step_cycles, "cycles of a step")
        )
    for bar in bars:
        bar["limits"] = bar["kind"] == report.limit.kind
    return bars


def _bar(kind: str, used: int, limit: int, unit: str) -> dict[str, Any]:
    return {"kind": kind, "percent": 100 * used / limit, "text": f"{used:,} of {limit:,} {unit}"}


def _plans(report: CompileReport) -> dict[str, Floorplan | None]:
    """Draw `main`, with names and arrows, and `whole`, the fabric, if `main` shows only a part of it."""
    rects = [row.rectangle for row in report.kernels]
    window = used_window(rects, report.fabric, _DETAIL_WIDTH)
    if window is None and _count(report) > 1:
        window = whole_window(report.fabric, _DETAIL_WIDTH)
    if window is None:
        return {"main": detail(report, whole_window(report.fabric, _ALONE_WIDTH)), "whole": None}
    whole = whole_window(report.fabric, _WHOLE_WIDTH)
    return {"main": detail(report, window), "whole": overview(report, whole, _frame(report, window))}


def _frame(report: CompileReport, window: Window) -> Window:
    """Return the frame on the whole wafer: the first of several copies, otherwise the enlarged part."""
    if report.replicas is None or report.replicas.copies.count == 1:
        return window
    boxes = report.replicas.copies.boxes
    return Window(0, 0, boxes.width, boxes.height, window.pixels_per_pe)


def _count(report: CompileReport) -> int:
    """Return the number of copies of the model on the wafer."""
    return 1 if report.replicas is None else report.replicas.copies.count


def _copies(report: CompileReport) -> dict[str, Any] | None:
    """Return figures of the copies, their boxes on the whole wafer, and the counts compared."""
    if report.replicas is None:
        return None
    copies = report.replicas.copies
    boxes, window = copies.boxes, whole_window(report.fabric, _WHOLE_WIDTH)
    return {
        "count": copies.count,
        "grid": boxes,
        "samples": copies.samples,
        "exchange": copies.exchange,
        "exchange_percent": report.replicas.exchange_percent,
        "boxes": [window.box(x, y, boxes.width, boxes.height) for x, y in boxes.corners],
        "summary": summarize_replicas(report.replicas, report.fabric),
        "tried": report.replicas.tried,
    }


def _kinds_shown(arrows: int) -> tuple[str, ...]:
    """Return the kinds of arrows that are shown at first; the pointer shows those of a kernel anyway."""
    return () if arrows > _DENSE else ("forward", "backward", "control")


def _common_folder(sources: Sequence[str | None]) -> str:
    """Return the common folder of all source lines, with a slash; empty if there is none."""
    folders = {posixpath.dirname(source) for source in sources if source}
    if not folders or len({posixpath.isabs(folder) for folder in folders}) > 1:
        return ""
    folder = posixpath.commonpath(folders)
    return f"{folder}/" if folder.strip("/") else ""


def _thousands(value: float) -> str:
    """Format a number with the digits that a reader can use: 1,559,633 or 12.25."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:#.4g}"


def _percent(value: float) -> str:
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.2f} %" if value < 10 else f"{value:.1f} %"


def _breakable(text: str, separators: str) -> Markup:
    """Escape a name or path, and let a narrow column break it after its separators."""
    some = f"[{re.escape(separators)}]"
    return Markup("<wbr>").join(re.split(f"(?<={some})(?!{some}|$)", text))


def _pixels(value: float) -> str:
    return f"{value:.1f}"


@dataclass(frozen=True)
class Definition:
    """Name, unit and meaning of a figure."""

    term: str
    unit: str
    text: str


DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        "samples_per_s": Definition(
            "Samples/s",
            "samples per second",
            "How many samples pass through the whole pipeline in a second: the clock divided by the "
            "cycles per sample. Of a kernel: what it would reach alone; the pipeline runs at the speed of"
            " the slowest. Of several copies of the model: of all of them, less the time of their exchange.",
        ),
        "compute_samples_per_s": Definition(
            "Compute samples/s",
            "samples per second",
            "The rate if arithmetic alone limited the speed: the clock divided by the compute cycles.",
        ),
        "transmission_samples_per_s": Definition(
            "Transmission samples/s",
            "samples per second",
            "The rate if moving data alone limited the speed: the clock divided by the transmission cycles.",
        ),
        "active_pes": Definition(
            "Active PEs",
            "processing elements",
            "How many processing elements (PEs: small cores with memory and a router each) the kernels' "
            "rectangles cover, those for adapters and fans and unused ones inside a rectangle included.",
        ),
        "active_pes_percent": Definition(
            "Active PEs, share",
            "% of the fabric",
            "Active PEs divided by all PEs that kernels can be placed on.",
        ),
        "compute_utilization_percent": Definition(
            "Compute utilization",
            "% of the time",
            "The share of the time in which the active PEs run a kernel's code while the pipeline keeps "
            "its pace. The rest is waiting: for slower kernels, for data, or because a PE of the "
            "rectangle has no part of the work.",
        ),
        "deltat_cycles": Definition(
            "Cycles per sample (delta_t)",
            "clock cycles",
            "From one sample leaving the pipeline (of one copy of the model) to the next. The slowest "
            "kernel sets it, or the host's "
            "input if samples arrive more slowly than that, or the memory for activations if samples wait "
            "for room. Compute and transmission overlap, so the "
            "larger one counts.",
        ),
        "compute_cycles": Definition(
            "Compute cycles",
            "cycles per sample",
            "What the busiest PE of the kernel computes for one sample.",
        ),
        "transmission_cycles": Definition(
            "Transmission cycles",
            "cycles per sample",
            "How long the busiest link of the kernel is occupied for one sample; of the pipeline also the"
            " Ethernet links to the hosts.",
        ),
        "memory_per_pe_bytes": Definition(
            "Memory per PE",
            "bytes",
            "Memory that the fullest PE of the kernel needs for code, weights, optimizer state and "
            "activations.",
        ),
        "rectangle": Definition(
            "Rectangle",
            "PEs",
            "Width x height of the kernel and, after @, the column and row of its first PE, counted from "
            "0 at the top left corner of the floorplan.",
        ),
        "family": Definition(
            "Family",
            "",
            "The kind of kernel; it decides how work is spread over a rectangle and what it costs.",
        ),
        "origin": Definition(
            "Origin",
            "",
            "Matched: a kernel of the library fits these operations. Generated: none does, and the kernel"
            " was made from the operations' loops.",
        ),
        "source": Definition(
            "Source line",
            "",
            "The line of your program that the kernel's first operation is from.",
        ),
    }
)


_WAFER_WIDTH, _COPY_WIDTH = 460.0, 780.0


@dataclass(frozen=True)
class _Copy:
    """A copy of a layer, drawn as if its box were the fabric."""

    fabric: Fabric
    kernels: Sequence[KernelReport]
    edges: Sequence[Edge]
    bottleneck: KernelReport | None


def render_streamed_html(report: StreamedReport, made: Provenance | None = None) -> str:
    """Render the `compile_report.html` of a streamed step; equal arguments give equal bytes, all escaped.

    Args:
        report: all figures.
        made: provenance of the compile, if known.
    """
    layers = list(enumerate(report.layers))
    verdict = render_streamed_verdict(report).removeprefix("Verdict: ")
    return (
        page_environment()
        .get_template("streamed_report.html.j2")
        .render(
            report=report,
            made=(made or Provenance()).lines(),
            performance=report.performance,
            verdict=verdict[0].upper() + verdict[1:],
            suggestions=suggest_kernel_changes(report),
            describe_step_change=describe_step_change,
            layers=layers,
            kinds=_kinds(report),
            families=sum_layer_families(report.layers),
            bins=BINS,
            style=Markup("\n".join(map(asset, ("base.css", "compile_report.css", "streamed_report.css")))),
        )
    )


def _kinds(report: StreamedReport) -> list[dict[str, Any]]:
    """Return number, layer names and drawing of each kind of layer."""
    names: dict[int, list[str]] = {}
    plans = {}
    for layer in report.layers:
        plan = layer.placed.plan
        plans[plan.number] = plan
        names.setdefault(plan.number, []).append(layer.placed.name)
    return [
        {"number": number, "names": names[number], "drawn": _draw_layer(plan, report.fabric)}
        for number, plan in plans.items()
    ]


def _draw_layer(plan: LayerPlan, wafer: Fabric) -> dict[str, Any] | None:
    """Draw the wafer with all copies, and one copy enlarged; None if the layer computes nothing."""
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
        "wafer": _draw_wafer(copy, wafer),
        "boxes": [
            whole.box(column * copies.width, row * copies.height, copies.width, copies.height)
            for row in range(copies.rows)
            for column in range(copies.columns)
        ],
    }


def _draw_wafer(copy: _Copy, wafer: Fabric) -> Floorplan:
    """Draw the first copy in its place on the whole wafer."""
    window = whole_window(wafer, _WAFER_WIDTH)
    return overview(_Copy(wafer, copy.kernels, copy.edges, copy.bottleneck), window, window)

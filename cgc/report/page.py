"""The compile report for a browser: `compile_report.html`, one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from cgc.manifest import Provenance
from cgc.performance.layers import LayerPlan
from cgc.performance.model import MEMORY, estimate
from cgc.placement.model import Rect
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.floorplan import (
    BINS,
    Box,
    Floorplan,
    PlacedKernels,
    detail,
    overview,
    used_window,
    whole_window,
)
from cgc.report.limit import Reason
from cgc.report.model import CompileReport, KernelReport, PipelinedPart, StreamedPart, report_kernels
from cgc.report.pipeline import draw_pipeline
from cgc.report.text import (
    SUGGESTION_COLUMNS,
    explain_no_change,
    format_times,
    render_verdict,
    summarize_replicas,
)
from cs_toolkit.fabric import Fabric
from cs_toolkit.figures import format_percent, format_rate

# Pixels of a drawing of the whole wafer, of its enlarged part next to it, and of a wafer without such a part.
_WHOLE_WIDTH, _MAIN_WIDTH, _ONLY_WIDTH = 400.0, 900.0, 1300.0
# The same for a layer of a streamed step. Its page has no script that adapts the size of labels.
_LAYER_WHOLE_WIDTH, _LAYER_MAIN_WIDTH = 460.0, 780.0
_DENSE = 60  # arrows
_LONG_TABLE = 24  # rows
_LARGE_SHARE = 50.0  # percent of the fabric


@dataclass(frozen=True)
class Definition:
    """Name, unit and meaning of a figure."""

    term: str
    unit: str
    text: str


@dataclass(frozen=True)
class HeadFigure:
    """A figure at the top of the page.

    Attributes:
        term: its name.
        value: unrounded.
        shown: rounded.
        note: a remark below it.
        meaning: an explanation, or empty.
    """

    term: str
    value: float
    shown: str
    note: str
    meaning: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar for how much of a limit is used, or for a part of the time of a step.

    Attributes:
        title: its name.
        percent: its length, 0 to 100.
        amount: the same in a unit, unrounded.
        text: the same in a unit, rounded.
        limits: whether it bounds the speed.
    """

    title: str
    percent: float
    amount: float
    text: str
    limits: bool


@dataclass(frozen=True)
class Column:
    """A column of a table of kernel families.

    Attributes:
        title: its head.
        figure: attribute of a sum with the unrounded figure.
        meaning: an explanation of the figure.
        show: rounds the figure.
        unit: of the unrounded figure.
    """

    title: str
    figure: str
    meaning: str
    show: Callable[[float], str]
    unit: str = ""


@dataclass(frozen=True)
class Drawing:
    """Placed kernels, drawn.

    Attributes:
        kernels: the kernels, in data-flow order.
        main: the part of the wafer with kernels, or one of several copies, enlarged; otherwise the wafer.
        whole: the whole wafer if `main` does not show all of it.
        boxes: of all copies on the whole wafer, if there are several.
    """

    kernels: Sequence[KernelReport]
    main: Floorplan
    whole: Floorplan | None
    boxes: tuple[Box, ...]


def render_html(report: CompileReport, made: Provenance | None = None) -> str:
    """Render `compile_report.html`; equal arguments give equal bytes.

    Everything from the user's program is escaped. A content security policy blocks all network access and
    all scripts except the page's own.

    Args:
        report: all figures.
        made: provenance of the compile, if known.
    """
    if report.pipelined is not None:
        template, sections = "pipelined_report.html.j2", _build_pipelined_sections(report, report.pipelined)
    else:
        assert report.streamed is not None
        template, sections = "streamed_report.html.j2", _build_streamed_sections(report, report.streamed)
    return (
        page_environment()
        .get_template(template)
        .render(
            report=report,
            made=(made or Provenance()).lines(),
            definitions=DEFINITIONS,
            suggestion_columns=SUGGESTION_COLUMNS,
            front_end=made.front_end if made is not None else "",
            no_change="" if report.suggestions else explain_no_change(report),
            bins=BINS,
            style=Markup(asset("base.css") + "\n" + asset("compile_report.css")),
            **sections,
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
        percent=format_percent,
        pixels="{:.1f}".format,
        ms=_ms,
        times=format_times,
        breakable=_breakable,
        figure=_thousands,
        source_name=posixpath.basename,
    )
    return environment


@cache
def asset(name: str) -> str:
    """Read a text file of this package."""
    return resources.files("cgc.report").joinpath(name).read_text(encoding="utf-8").strip()


def _build_pipelined_sections(report: CompileReport, part: PipelinedPart) -> dict[str, Any]:
    """Return the variables of the template of a pipelined step."""
    script = asset("compile_report.js")
    placed = PlacedKernels(report.fabric, part.kernels, part.edges, part.bottleneck, part.interval_cycles)
    boxes, copies = [], None
    if part.replicas is not None:
        copies, grid = part.replicas.copies, part.replicas.copies.boxes
        if copies.count > 1:
            boxes = [Rect(x, y, grid.width, grid.height) for x, y in grid.corners]
    return {
        "part": part,
        "overall": part.performance.overall,
        "bars": _build_limit_bars(report, part),
        "figures": _build_pipelined_figures(report, part),
        "drawing": _draw(placed, report.fabric, boxes, _MAIN_WIDTH, _WHOLE_WIDTH),
        "pipeline": draw_pipeline(part),
        "copies": copies,
        "copies_summary": summarize_replicas(part.replicas, report.fabric) if part.replicas else [],
        "memory_uses": MEMORY_USES,
        "dense": _DENSE,
        "families": sum_families(part.kernels),
        "family_columns": _FAMILY_COLUMNS,
        "rows": [_build_row(index, row, report, part) for index, row in enumerate(part.kernels)],
        "long_table": _LONG_TABLE,
        "sources": _common_folder([row.kernel.source for row in part.kernels]),
        "Reason": Reason,
        "room_to_grow": part.performance.overall.active_pes_percent < _LARGE_SHARE and part.copies == 1,
        "script": Markup(script),
        "script_digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }


def _build_pipelined_figures(report: CompileReport, part: PipelinedPart) -> list[HeadFigure]:
    overall, clock_hz = part.performance.overall, report.fabric.clock_hz
    time = f"{_thousands(1e6 * overall.deltat_cycles / clock_hz)} µs at {_thousands(clock_hz / 1e6)} MHz"
    notes = {
        "samples_per_s": "estimated for the wafer",
        "compute_samples_per_s": "if only compute counted",
        "transmission_samples_per_s": "if only transmission counted",
        "active_pes": f"{format_percent(overall.active_pes_percent)} of the fabric",
        "compute_utilization_percent": "of the time of active PEs",
        "deltat_cycles": time,
    }
    figures = []
    for name, note in notes.items():
        value, definition = getattr(overall, name), DEFINITIONS[name]
        shown = format_percent(value) if name.endswith("percent") else _thousands(value)
        figures.append(HeadFigure(definition.term, value, shown, note, definition.text))
    return figures


def _build_limit_bars(report: CompileReport, part: PipelinedPart) -> list[Bar]:
    """Return how close compute, transmission, area, memory and exchange are to limiting the speed."""
    overall = part.performance.overall
    limits = [
        ("compute", overall.compute_cycles, overall.deltat_cycles, "cycles per sample"),
        ("transmission", overall.transmission_cycles, overall.deltat_cycles, "cycles per sample"),
        ("area", overall.active_pes, report.fabric.processing_elements, "PEs"),
    ]
    if part.limit.kind == MEMORY and part.bottleneck is not None:
        used = part.bottleneck.memory_per_pe_bytes
        limits.append((MEMORY, used, report.fabric.memory_per_pe_bytes, "bytes per PE"))
    if part.replicas is not None and part.replicas.copies.exchange.cycles:
        copies = part.replicas.copies
        limits.append(
            ("emptying and exchange", copies.exchange.cycles, copies.step_cycles, "cycles of a step")
        )
    return [
        Bar(kind, 100 * used / limit, used, f"{used:,} of {limit:,} {unit}", kind == part.limit.kind)
        for kind, used, limit, unit in limits
    ]


def _build_row(index: int, row: KernelReport, report: CompileReport, part: PipelinedPart) -> dict[str, Any]:
    return {
        "index": index,
        "kernel": row.kernel,
        "loops": row.kernel.loops.describe() if row.kernel.loops else (),
        "ops": [op.removeprefix("cirh.") for op in row.kernel.ops],
        "rectangle": row.rectangle,
        "memory": row.memory_per_pe_bytes,
        "memory_percent": 100 * row.memory_per_pe_bytes / report.fabric.memory_per_pe_bytes,
        "memory_bar": _stack_memory(row, report.fabric),
        "memory_text": _describe_memory(row),
        "figures": row.figures,
        "slowest": row is part.bottleneck,
    }


def _stack_memory(row: KernelReport, fabric: Fabric) -> list[tuple[str, float, float]]:
    """Return the stacked bar of the mean PE: use, start and width, in percent of a PE's memory."""
    stack, start, room = [], 0.0, row.rectangle.area * fabric.memory_per_pe_bytes
    for use, size in row.memory_parts.items():
        if size:
            stack.append((use, start, 100 * size / room))
            start += 100 * size / room
    return stack


def _describe_memory(row: KernelReport) -> str:
    """Return the bytes of the mean PE by use, and those of the fullest one."""
    means = [
        f"{MEMORY_USES[use]} {_thousands(size / row.rectangle.area)}"
        for use, size in row.memory_parts.items()
        if size
    ]
    fullest = f"fullest PE {row.memory_per_pe_bytes:,} B"
    return f"{', '.join(means)} B on the mean PE; {fullest}" if means else fullest


def _common_folder(sources: Sequence[str | None]) -> str:
    """Return the common folder of all source lines, with a slash; empty if there is none."""
    folders = {posixpath.dirname(source) for source in sources if source}
    if not folders or len({posixpath.isabs(folder) for folder in folders}) > 1:
        return ""
    folder = posixpath.commonpath(folders)
    return f"{folder}/" if folder.strip("/") else ""


def _build_streamed_sections(report: CompileReport, part: StreamedPart) -> dict[str, Any]:
    """Return the variables of the template of a step with streamed weights."""
    performance, verdict = part.performance, render_verdict(report).removeprefix("Verdict: ")
    kinds: dict[int, tuple[LayerPlan, list[str]]] = {}
    for layer in part.layers:
        plan = layer.placed.plan
        kinds.setdefault(plan.number, (plan, []))[1].append(layer.placed.name)
    return {
        "part": part,
        "performance": performance,
        "verdict": verdict[0].upper() + verdict[1:],
        "bars": [
            Bar(
                name,
                100 * seconds / performance.step_s,
                seconds,
                f"{1e3 * seconds:.3f} ms",
                name == performance.bound_by,
            )
            for name, seconds in performance.parts.items()
        ],
        "figures": _build_streamed_figures(report, part),
        "kinds": [
            {"number": number, "names": names, "copies": plan.copies, "drawing": _draw_layer(plan, report)}
            for number, (plan, names) in kinds.items()
        ],
        "families": sum_layer_families(part.layers),
        "family_columns": _LAYER_FAMILY_COLUMNS,
    }


def _build_streamed_figures(report: CompileReport, part: StreamedPart) -> list[HeadFigure]:
    performance, recomputed = part.performance, len(part.recomputed)
    activations, room = performance.activation_bytes, performance.activation_room_bytes
    share = 100 * report.active_pes / report.fabric.processing_elements
    return [
        HeadFigure(
            "Samples/s", report.samples_per_s, _thousands(report.samples_per_s), "estimated for the wafer"
        ),
        HeadFigure(
            "Step",
            performance.step_s,
            f"{1e3 * performance.step_s:.3g} ms",
            f"of {report.batch_size:,} samples",
        ),
        HeadFigure(
            "Micro-batches",
            performance.micro_batches,
            f"{performance.micro_batches:,}",
            f"of {performance.samples_per_micro_batch:,} samples",
        ),
        HeadFigure("Recomputed layers", recomputed, f"{recomputed:,}", "compute their forward part twice"),
        HeadFigure(
            "Activations", activations, f"{activations / 1e9:.3g} GB", f"room for {room / 1e9:.3g} GB"
        ),
        HeadFigure(
            "Active PEs", report.active_pes, f"{report.active_pes:,}", f"{format_percent(share)} of the wafer"
        ),
    ]


def _draw_layer(plan: LayerPlan, report: CompileReport) -> Drawing | None:
    """Draw a kind of layer; None if it computes nothing."""
    graph, copies = plan.graph, plan.copies
    if graph is None or copies is None:
        return None
    size = {"width": copies.width, "height": copies.height}
    box = report.fabric.model_copy(update=size)
    kernels = report_kernels(graph, copies.placement, estimate(graph, copies.placement, box))
    slowest = max(kernels, key=lambda row: row.figures.compute_cycles)
    boxes = [
        Rect(column * copies.width, row * copies.height, copies.width, copies.height)
        for row in range(copies.rows)
        for column in range(copies.columns)
    ]
    # Without a script there is no pointer to show the streams of a kernel for, and all would hide the names.
    placed = PlacedKernels(box, kernels, (), slowest, copies.cycles)
    return _draw(placed, report.fabric, boxes, _LAYER_MAIN_WIDTH, _LAYER_WHOLE_WIDTH)


def _draw(
    placed: PlacedKernels, wafer: Fabric, boxes: Sequence[Rect], main_width: float, whole_width: float
) -> Drawing:
    """Draw kernels enlarged, and the whole wafer with the boxes of all copies."""
    window = used_window([row.rectangle for row in placed.kernels], placed.fabric, main_width)
    if window is None and not boxes:
        return Drawing(placed.kernels, detail(placed, whole_window(wafer, _ONLY_WIDTH)), None, ())
    window = window or whole_window(placed.fabric, main_width)
    whole = whole_window(wafer, whole_width)
    return Drawing(
        placed.kernels,
        detail(placed, window),
        overview(replace(placed, fabric=wafer), whole, boxes[0] if boxes else window),
        tuple(whole.box(box.x, box.y, box.width, box.height) for box in boxes),
    )


def _thousands(value: float) -> str:
    """Format a number with the digits that a reader can use: 1,559,633 or 12.25."""
    return f"{value:,.0f}" if value == int(value) else format_rate(value)


def _breakable(text: str, separators: str) -> Markup:
    """Escape a name or path, and let a narrow column break it after its separators."""
    some = f"[{re.escape(separators)}]"
    return Markup("<wbr>").join(re.split(f"(?<={some})(?!{some}|$)", text))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


MEMORY_USES: Mapping[str, str] = MappingProxyType(
    {
        "weights": "weights and gradients",
        "optimizer_state": "optimizer state",
        "activations": "activations in work",
        "stash": "stash",
        "code": "code",
    }
)

DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        "samples_per_s": Definition(
            "Samples/s",
            "samples per second",
            "The rate of the whole pipeline: the clock divided by the cycles per sample. For a kernel, the "
            "rate that it would reach by itself; the slowest kernel sets the speed of the pipeline. For "
            "several copies of the model, the rate of all of them, including the time of their exchange.",
        ),
        "compute_samples_per_s": Definition(
            "Compute samples/s",
            "samples per second",
            "The rate if only arithmetic limited the speed: the clock divided by the compute cycles.",
        ),
        "transmission_samples_per_s": Definition(
            "Transmission samples/s",
            "samples per second",
            "The rate if only data movement limited the speed: the clock divided by the transmission cycles.",
        ),
        "active_pes": Definition(
            "Active PEs",
            "processing elements",
            "The processing elements (PEs: small cores, each with memory and a router) that the kernels' "
            "rectangles cover. They include PEs for adapters and fans, and unused ones inside a rectangle.",
        ),
        "active_pes_percent": Definition(
            "Active PEs, share",
            "% of the fabric",
            "Active PEs divided by all PEs that kernels can be placed on.",
        ),
        "compute_utilization_percent": Definition(
            "Compute utilization",
            "% of the time",
            "The share of the time in which the active PEs run kernel code while the pipeline is full. The "
            "rest is spent waiting for slower kernels or for data, or the PE has no part of the work.",
        ),
        "deltat_cycles": Definition(
            "Cycles per sample (delta_t)",
            "clock cycles",
            "The time between two samples that leave the pipeline of one copy of the model. It is set by the "
            "slowest kernel, by the hosts if they send samples more slowly, or by the memory if samples "
            "wait until there is room for their activations. Compute and transmission overlap, so a kernel "
            "takes the larger of the two.",
        ),
        "compute_cycles": Definition(
            "Compute cycles",
            "cycles per sample",
            "The compute time of the kernel's busiest PE for one sample.",
        ),
        "transmission_cycles": Definition(
            "Transmission cycles",
            "cycles per sample",
            "The time for which one sample occupies the busiest link of the kernel; for the pipeline, the "
            "Ethernet links to the hosts are included.",
        ),
        "memory_per_pe_bytes": Definition(
            "Memory per PE",
            "bytes",
            "The memory that the fullest PE of the kernel needs. The bar is the mean PE of its rectangle: "
            "weights with the sums of their gradients, tables and constants; state that only the optimizer "
            "reads; activations in work, with buffers and what rounding leaves; the stash, activations that "
            "wait for their backward pass; code, with stack and routing tables. The mark is the fullest PE.",
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
            "The kind of kernel. It determines how the work is spread over a rectangle, and its cost.",
        ),
        "origin": Definition(
            "Origin",
            "",
            "Matched: a kernel of the library implements these operations. Generated: the library has none, "
            "so the kernel was generated from the loops of the operations.",
        ),
        "source": Definition(
            "Source line",
            "",
            "The line of your program that created the kernel's first operation.",
        ),
    }
)

_FAMILY_COLUMNS = (
    Column("PEs", "active_pes", DEFINITIONS["active_pes"].text, _thousands),
    Column("PEs, share", "active_pes_percent", DEFINITIONS["active_pes_percent"].text, format_percent, " %"),
    Column("Slowest, samples/s", "samples_per_s", DEFINITIONS["samples_per_s"].text, _thousands),
    Column(
        "Utilization",
        "compute_utilization_percent",
        DEFINITIONS["compute_utilization_percent"].text,
        format_percent,
        " %",
    ),
)
_LAYER_FAMILY_COLUMNS = (
    Column("Layers", "layers", "Layers with kernels of this family", _thousands),
    Column(
        "Sets the pace, ms", "pace_s", "Compute of the layers whose slowest kernel is of this family", _ms
    ),
    Column(
        "PE time",
        "pe_time_percent",
        "Share of the kernels' PEs, each for as long as its layer computes",
        format_percent,
        " %",
    ),
    Column(
        "Utilization",
        "compute_utilization_percent",
        "Share of that time in which those PEs run kernel code",
        format_percent,
        " %",
    ),
)

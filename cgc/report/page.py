"""The report for a browser: `compile_report.html`, one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from cgc.performance.model import MEMORY
from cgc.provenance import Provenance
from cgc.report.definitions import DEFINITIONS
from cgc.report.families import family_sums
from cgc.report.floorplan import BINS, Floorplan, Window, detail, overview, used_window, whole_window
from cgc.report.levers import lever_text
from cgc.report.limit import Reason
from cgc.report.model import CompileReport, KernelReport
from cgc.report.replicas import summary

_WHOLE_WIDTH = 400.0
_DETAIL_WIDTH = 900.0
_ALONE_WIDTH = 1300.0
_DENSE = 60
_LONG_TABLE = 24
_LARGE_SHARE = 50.0


def render_html(report: CompileReport, made: Provenance | None = None) -> str:
    """The text of `compile_report.html`: the same bytes for the same arguments.

    Everything that comes from the user's program is escaped. A content security policy refuses every network
    access and every script but the page's own.

    Args:
        report: all figures.
        made: where the step comes from.
    """
    script = asset("compile_report.js")
    return (
        page_environment()
        .get_template("compile_report.html.j2")
        .render(
            report=report,
            made=(made or Provenance()).lines(),
            families=family_sums(report.kernels),
            lever_text=lever_text,
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
    """The templates of reports, with their filters; everything is escaped."""
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
    """The text of a file beside this one."""
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
    """What can limit the speed: compute and transmission as shares of the pace, area, memory, exchange."""
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
    """`main` has names and arrows; `whole` is the fabric, where `main` shows a part of it."""
    rects = [row.rectangle for row in report.kernels]
    window = used_window(rects, report.fabric, _DETAIL_WIDTH)
    if window is None and _count(report) > 1:
        window = whole_window(report.fabric, _DETAIL_WIDTH)
    if window is None:
        return {"main": detail(report, whole_window(report.fabric, _ALONE_WIDTH)), "whole": None}
    whole = whole_window(report.fabric, _WHOLE_WIDTH)
    return {"main": detail(report, window), "whole": overview(report, whole, _framed(report, window))}


def _framed(report: CompileReport, window: Window) -> Window:
    """What the drawing of the whole wafer frames: the enlarged part, of several copies the first."""
    if report.replicas is None or report.replicas.copies.count == 1:
        return window
    boxes = report.replicas.copies.boxes
    return Window(0, 0, boxes.width, boxes.height, window.pixels_per_pe)


def _count(report: CompileReport) -> int:
    """Copies of the model on the wafer."""
    return 1 if report.replicas is None else report.replicas.copies.count


def _copies(report: CompileReport) -> dict[str, Any] | None:
    """The copies of the model, their boxes on the drawing of the whole wafer, and the numbers compared."""
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
        "summary": summary(report.replicas, report.fabric),
        "tried": report.replicas.tried,
    }


def _kinds_shown(arrows: int) -> tuple[str, ...]:
    """The arrows that are drawn unasked; those of a kernel under the pointer always are."""
    return () if arrows > _DENSE else ("forward", "backward", "control")


def _common_folder(sources: Sequence[str | None]) -> str:
    """The folder, with a slash, that the paths of all source lines begin with; empty if there is none."""
    folders = {posixpath.dirname(source) for source in sources if source}
    if not folders or len({posixpath.isabs(folder) for folder in folders}) > 1:
        return ""
    folder = posixpath.commonpath(folders)
    return f"{folder}/" if folder.strip("/") else ""


def _thousands(value: float) -> str:
    """1,559,633 or 12.25: digits that a reader can use."""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:#.4g}"


def _percent(value: float) -> str:
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.2f} %" if value < 10 else f"{value:.1f} %"


def _breakable(text: str, separators: str) -> Markup:
    """A name or path, escaped, that a narrow column may break after its separators."""
    some = f"[{re.escape(separators)}]"
    return Markup("<wbr>").join(re.split(f"(?<={some})(?!{some}|$)", text))


def _pixels(value: float) -> str:
    return f"{value:.1f}"

"""Two compile reports side by side for a browser: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from cgc.report.floorplan import Box, Label, percent_bin, place_labels
from cgc.report.page import asset, page_environment
from cs_toolkit.figures import format_percent

_WIDTH = 660.0  # pixels of the wider floorplan
_TALLEST = 1.2  # height of a drawing, as a multiple of its width
_MOST_PARTS = 500  # rows of the table of kernels or layers


@dataclass(frozen=True)
class _Tile:
    """A kernel of one of the two floorplans."""

    box: Box
    bin: int
    title: str
    changed: bool
    slowest: bool


@dataclass(frozen=True)
class _Plan:
    """The kernels of one report; both plans have one scale."""

    width: float
    height: float
    tiles: tuple[_Tile, ...]
    labels: tuple[Label, ...]


def render_diff_html(diff: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> str:
    """Render two reports side by side. Everything from the reports is escaped.

    Args:
        diff: the comparison, as `cgc-report diff --json` prints it.
        reports: contents of the two `compile_report.json`.
    """
    parts = [row for row in diff["parts"] if row["a"] != row["b"] or row["pes"][0] != row["pes"][1]]
    changed = {str(row["name"]) for row in parts}
    largest = max((_effect(row) for row in parts), default=0) or 1
    return (
        page_environment()
        .get_template("diff_report.html.j2")
        .render(
            diff=diff,
            plans=_draw_plans(reports, changed),
            settings=[row for row in diff["head"] if row["a"] != row["b"]],
            same=[row for row in diff["head"] if row["a"] == row["b"]],
            parts=[(row, 100 * _effect(row) / largest) for row in parts[:_MOST_PARTS]],
            hidden=max(0, len(parts) - _MOST_PARTS),
            unchanged=len(diff["parts"]) - len(parts),
            noun="kernel" if diff["unit"] == "cycles" else "layer",
            ratio=_ratio,
            style=Markup(
                asset("base.css") + "\n" + asset("compile_report.css") + "\n" + asset("diff_report.css")
            ),
        )
    )


def _effect(row: Mapping[str, Any]) -> float:
    return abs(float(row["b"] or 0) - float(row["a"] or 0))


def _ratio(row: Mapping[str, Any]) -> str:
    """Return B as a multiple of A; empty if one of them is no number or A is 0."""
    if row["percent"] is None:
        return ""
    times = 1 + row["percent"] / 100
    return f"{times:,.0f}" if times >= 100 else f"{times:.3g}"


def _draw_plans(reports: Sequence[Mapping[str, Any]], changed: set[str]) -> list[_Plan]:
    """Draw the used parts of both wafers at one scale; nothing if a report has no kernels."""
    if not all(report.get("kernels") for report in reports):
        return []
    rows = [[(kernel, _rectangle(kernel)) for kernel in report["kernels"]] for report in reports]
    boxes = [box for report in rows for _, box in report]
    left, top = min(box.x for box in boxes), min(box.y for box in boxes)
    width = max(1.0, *(box.x + box.width - left for box in boxes))
    height = max(1.0, *(box.y + box.height - top for box in boxes))
    scale = min(_WIDTH / width, _TALLEST * _WIDTH / height)
    plans = []
    for report, kernels in zip(reports, rows, strict=True):
        slowest = report["bottleneck"]["kernel"]
        tiles = tuple(
            _Tile(
                Box((box.x - left) * scale, (box.y - top) * scale, box.width * scale, box.height * scale),
                percent_bin(float(kernel["compute_utilization_percent"])),
                _describe(kernel, box),
                str(kernel["name"]) in changed,
                kernel["name"] == slowest,
            )
            for kernel, box in kernels
        )
        names = [str(kernel["name"]) for kernel, _ in kernels]
        area = Box(0, 0, _WIDTH, height * scale)
        labels = place_labels([tile.box for tile in tiles], names, [""] * len(names), area)
        plans.append(_Plan(_WIDTH, height * scale, tiles, labels))
    return plans


def _rectangle(kernel: Mapping[str, Any]) -> Box:
    found = kernel["rectangle"]
    return Box(*(float(found[side]) for side in ("x", "y", "width", "height")))


def _describe(kernel: Mapping[str, Any], box: Box) -> str:
    return (
        f"{kernel['name']}: {box.width:g} x {box.height:g} PEs at column {box.x:g}, row {box.y:g}, "
        f"{kernel['deltat_cycles']:,} cycles per sample, utilization "
        f"{format_percent(kernel['compute_utilization_percent'])}"
    )

"""The floorplan that a chief offers to the CS system, from the files of its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cs_toolkit.files import parse_json
from cs_toolkit.floorplan import Floorplan, PlacedKernel

_NAME_CHARS = 200


def summarize_floorplan(report: bytes, plan: bytes | None) -> str:
    """Return the floorplan of an artifact as JSON; empty if it has none, or is over the limits of the system.

    Args:
        report: `compile_report.json`.
        plan: `plan.json` of a pipelined step; None for streamed weights.
    """
    try:
        fields = parse_json(report)
        found = _streamed(fields) if plan is None else _pipelined(fields, parse_json(plan))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StopIteration):
        # The report of an artifact is for readers; a program runs without it.
        return ""
    return "" if found is None else found.to_json()


def _pipelined(report: Mapping[str, Any], plan: Mapping[str, Any]) -> Floorplan:
    rows = {row["name"]: row for row in report["kernels"]}
    slowest = max(row["deltat_cycles"] for row in rows.values())
    bottleneck = report["bottleneck"]
    return Floorplan(
        part="",
        width=plan["width"],
        height=plan["height"],
        kernels=tuple(
            PlacedKernel(_shorten(name), x, y, width, height, round(rows[name]["deltat_cycles"] / slowest, 3))
            for name, (x, y, width, height) in plan["kernels"].items()
        ),
        copies=tuple((x, y) for x, y in plan.get("copies", ())[1:]),
        # Kernels within 1 % of the slowest one would bound the rate if only that were faster.
        bound_by=tuple(
            _shorten(name) for name, row in rows.items() if row["deltat_cycles"] >= 0.99 * slowest
        ),
        reason=f"{bottleneck['limit']} ({bottleneck['reason'].replace('_', ' ')})",
        samples_per_s=report["overall"]["samples_per_s"],
    )


def _streamed(report: Mapping[str, Any]) -> Floorplan | None:
    slowest = report["kernel"]
    if slowest is None:
        return None
    layer = next(layer for layer in report["layers"] if layer["name"] == slowest["layer"])
    kind = next((kind for kind in report["kinds"] if kind["kind"] == layer["kind"]), None)
    if kind is None:
        return None
    grid = kind["grid"]
    corners = [
        (column * grid["width"], row * grid["height"])
        for row in range(grid["rows"])
        for column in range(grid["columns"])
    ]
    return Floorplan(
        part=_shorten(slowest["layer"]),
        width=grid["columns"] * grid["width"],
        height=grid["rows"] * grid["height"],
        kernels=tuple(
            PlacedKernel(_shorten(kernel["name"]), **kernel["rectangle"]) for kernel in kind["kernels"]
        ),
        copies=tuple(corners[1:]),
        bound_by=(_shorten(slowest["name"]),),
        reason=report["overall"]["bound_by"].replace("_", " "),
        samples_per_s=report["overall"]["samples_per_s"],
    )


def _shorten(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"

"""Copies of the model on the wafer, in the text and JSON forms of the compile report."""

from __future__ import annotations

from typing import Any

from cgc.performance.replicas import Replicated
from cgc.report.model import ReplicaReport
from cgc.report.tables import table
from cs_toolkit.fabric import Fabric

_COLUMNS = (
    "Replicas",
    "Samples/s",
    "Samples/s of one",
    "PEs of one",
    "Active PEs",
    "Cycles per sample",
    "Emptying and exchange",
)


def render_replicas(replicas: ReplicaReport, fabric: Fabric) -> str:
    """Render rate, area and exchange of the copies, and a table of the counts that were compared."""
    lines = [
        _render_title(replicas.copies),
        *(f"  {label + ':':<12}{text}" for label, text in summarize_replicas(replicas, fabric)),
    ]
    if replicas.copies.count > 1:
        lines.append("  The kernels, the verdict and the suggestions are those of one copy.")
    if len(replicas.tried) > 1:
        lines += [
            "Numbers of replicas that divide the batch:",
            table(_COLUMNS, [_render_row(copies) for copies in replicas.tried], left=()),
        ]
    return "\n".join(lines)


def summarize_replicas(replicas: ReplicaReport, fabric: Fabric) -> list[tuple[str, str]]:
    """Return (label, figures) of one copy, all copies and their exchange."""
    copies = replicas.copies
    one, overall, exchange = copies.one, copies.performance.overall, copies.exchange
    area_of_one = f"on {one.active_pes:,} PEs ({one.active_pes_percent:.2f}%)"
    if copies.count == 1:
        return [("One copy", f"{one.samples_per_s:,.1f} samples/s {area_of_one}, without an exchange")]
    times = overall.samples_per_s / one.samples_per_s
    lines = [
        ("One copy", f"{one.samples_per_s:,.1f} samples/s without the exchange, {area_of_one}"),
        (
            "All copies",
            f"{overall.samples_per_s:,.1f} samples/s, {times:.2f} times as many, on {overall.active_pes:,} "
            f"PEs ({overall.active_pes_percent:.2f}%)",
        ),
    ]
    if not exchange.cycles:
        return [*lines, ("Exchange", "none, an evaluation has no gradients")]
    return [
        *lines,
        (
            "Exchange",
            f"{exchange.gradient_bytes:,} bytes of gradients of each copy, {exchange.exchange_cycles:,} "
            f"cycles ({_us(exchange.exchange_cycles, fabric)}) a step",
        ),
        (
            "Emptying",
            f"{exchange.emptying_cycles:,} cycles ({_us(exchange.emptying_cycles, fabric)}) a step, until "
            f"the last samples have passed; both together {replicas.exchange_percent:.1f}% of a step of "
            f"{copies.step_cycles:,} cycles",
        ),
    ]


def build_replicas_json(replicas: ReplicaReport) -> dict[str, Any]:
    """Build a JSON value of all figures, unrounded; `tried` has the counts that were compared, ascending."""
    copies = replicas.copies
    return {
        **_figures_json(copies),
        "columns": copies.boxes.columns,
        "rows": copies.boxes.rows,
        "box": {"width": copies.boxes.width, "height": copies.boxes.height},
        "samples_per_step": copies.samples,
        "gradient_bytes": copies.exchange.gradient_bytes,
        "step_cycles": copies.step_cycles,
        "exchange_percent": replicas.exchange_percent,
        "tried": [_figures_json(other) for other in replicas.tried],
    }


def _figures_json(copies: Replicated) -> dict[str, int | float]:
    overall = copies.performance.overall
    return {
        "replicas": copies.count,
        "samples_per_s": overall.samples_per_s,
        "samples_per_s_of_one": copies.one.samples_per_s,
        "active_pes": overall.active_pes,
        "active_pes_of_one": copies.one.active_pes,
        "active_pes_percent": overall.active_pes_percent,
        "deltat_cycles": copies.one.deltat_cycles,
        "emptying_cycles": copies.exchange.emptying_cycles,
        "exchange_cycles": copies.exchange.exchange_cycles,
    }


def _render_title(copies: Replicated) -> str:
    boxes = copies.boxes
    if copies.count == 1:
        return "Replicas: one copy of the model"
    return (
        f"Replicas: {copies.count:,} copies of the model, {boxes.columns:,} x {boxes.rows:,} boxes of "
        f"{boxes.width:,} x {boxes.height:,} PEs, {copies.samples:,} samples a step in each"
    )


def _render_row(copies: Replicated) -> tuple[str, ...]:
    overall = copies.performance.overall
    return (
        f"{copies.count}",
        f"{overall.samples_per_s:.1f}",
        f"{copies.one.samples_per_s:.1f}",
        f"{copies.one.active_pes}",
        f"{overall.active_pes} ({overall.active_pes_percent:.2f}%)",
        f"{copies.one.deltat_cycles}",
        f"{copies.exchange.cycles} cycles",
    )


def _us(cycles: int, fabric: Fabric) -> str:
    return f"{1e6 * cycles / fabric.clock_hz:.1f} us"

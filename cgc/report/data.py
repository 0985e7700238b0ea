"""The report for programs: `compile_report.json` and `plan.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cgc.performance.model import Figures
from cgc.report.families import family_sums
from cgc.report.model import CompileReport, KernelReport
from cgc.report.replicas import replicas_json


def report_json(report: CompileReport) -> dict[str, Any]:
    """All figures unrounded, as a JSON value.

    Keys: `fabric`, `clock_hz`, `batch_size`, `precision`, `overall` (figures), `kernels` (figures plus name,
    family, generated, origin ("matched" or "generated"), loops (of a generated kernel, one line a nest), ops,
    rectangle, memory_per_pe_bytes, source; in data-flow order), `families` (sums of the kernels by family),
    `bottleneck` (kernel, limit, reason, deltat_cycles, remedies: what would lift the limit, levers: what
    changes of that kernel would do), `notices` (why the step is executed so, where that was left to the
    compiler), `replicas` (where the model may stand on the wafer several times: the copies, their exchange,
    the numbers that were compared; `kernels` are those of one copy, and `overall` has the rates and PEs of
    all with the cycles of one).
    """
    performance = report.performance
    return {
        "fabric": report.fabric.name,
        "clock_hz": report.fabric.clock_hz,
        "estimate_of": "time on the wafer, not of the simulator",
        "batch_size": report.batch_size,
        "precision": report.precision,
        "overall": _figures(performance.overall),
        "kernels": [_kernel(kernel) for kernel in report.kernels],
        "families": [asdict(one) for one in family_sums(report.kernels)],
        "bottleneck": {
            "kernel": performance.bottleneck,
            "limit": report.limit.kind,
            "reason": report.limit.reason.value,
            "deltat_cycles": performance.overall.deltat_cycles,
            "remedies": list(report.remedies),
            "levers": [asdict(lever) for lever in report.levers],
        },
        **({"notices": list(report.notices)} if report.notices else {}),
        **({"replicas": replicas_json(report.replicas)} if report.replicas is not None else {}),
    }


def plan_json(report: CompileReport) -> str:
    """The placement as compact JSON: `total_utilization` (0 to 1), rectangles `[x, y, width, height]`.

    Of several copies of the model the rectangles are those of the first, and `copies` are the corners
    `[x, y]` of all boxes, to which the rectangles are moved.
    """
    placement = report.placement
    plan: dict[str, Any] = {
        "fabric": placement.fabric,
        "width": report.fabric.width,
        "height": report.fabric.height,
        "total_utilization": report.performance.overall.active_pes / report.fabric.processing_elements,
        "wire_length": placement.wire_length,
        "kernels": {name: [r.x, r.y, r.width, r.height] for name, r in placement.rects.items()},
    }
    if report.replicas is not None and report.replicas.copies.count > 1:
        plan["copies"] = [list(corner) for corner in report.replicas.copies.boxes.corners]
    return json.dumps(plan, separators=(",", ":"))


def _figures(figures: Figures) -> dict[str, int | float]:
    return {
        "samples_per_s": figures.samples_per_s,
        "compute_samples_per_s": figures.compute_samples_per_s,
        "transmission_samples_per_s": figures.transmission_samples_per_s,
        "active_pes": figures.active_pes,
        "active_pes_percent": figures.active_pes_percent,
        "compute_utilization_percent": figures.compute_utilization_percent,
        "deltat_cycles": figures.deltat_cycles,
    }


def _kernel(row: KernelReport) -> dict[str, Any]:
    return {
        "name": row.kernel.name,
        "family": row.kernel.family,
        "generated": row.kernel.generated,
        "origin": "generated" if row.kernel.generated else "matched",
        "loops": list(row.kernel.loops.describe()) if row.kernel.loops else [],
        "ops": list(row.kernel.ops),
        "source": row.kernel.source,
        "rectangle": asdict(row.rectangle),
        "memory_per_pe_bytes": row.memory_per_pe_bytes,
        **_figures(row.figures),
    }

"""The report for other programs: `compile_report.json` and `plan.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cgc.performance.model import Figures
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.model import CompileReport, KernelReport, LayerReport, StreamedReport
from cgc.report.replicas import build_replicas_json
from cgc.report.text import render_streamed_verdict, suggest_kernel_changes
from cgc.report.what_if import SlowestKernel


def build_json(report: CompileReport) -> dict[str, Any]:
    """Build the JSON value of a pipelined step's report, with all figures unrounded.

    Keys: `fabric`, `clock_hz`, `batch_size`, `precision`, `overall` (figures), `kernels` (figures plus name,
    family, generated, origin ("matched" or "generated"), loops (of a generated kernel, one line a nest), ops,
    rectangle, memory_per_pe_bytes, source; in data-flow order), `families` (sums of the kernels by family),
    `bottleneck` (kernel, limit, reason, deltat_cycles, remedies: suggestions that would lift the limit,
    levers: estimated changes of that kernel), `notices` (the reasons for this kind of execution, if the
    compiler chose it), `replicas` (only if the model may have several copies on the wafer: the copies, their
    exchange, the counts that were compared; `kernels` are then those of one copy, and `overall` has the rates
    and PEs of all copies with the cycles of one).
    """
    performance = report.performance
    return {
        "fabric": report.fabric.name,
        "clock_hz": report.fabric.clock_hz,
        "estimate_of": "time on the wafer, not of the simulator",
        "batch_size": report.batch_size,
        "precision": report.precision,
        "overall": _figures_json(performance.overall),
        "kernels": [_kernel_json(kernel) for kernel in report.kernels],
        "families": [asdict(one) for one in sum_families(report.kernels)],
        "bottleneck": {
            "kernel": performance.bottleneck,
            "limit": report.limit.kind,
            "reason": report.limit.reason.value,
            "deltat_cycles": performance.overall.deltat_cycles,
            "remedies": list(report.suggestions),
            "levers": [asdict(change) for change in report.changes],
        },
        **({"notices": list(report.notices)} if report.notices else {}),
        **({"replicas": build_replicas_json(report.replicas)} if report.replicas is not None else {}),
    }


def render_plan(report: CompileReport) -> str:
    """Render the placement as compact JSON: `total_utilization` (0 to 1), rectangles `[x, y, width, height]`.

    If the model has several copies, the rectangles are those of the first one, and `copies` has the corners
    `[x, y]` of the boxes of all.
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


def _figures_json(figures: Figures) -> dict[str, int | float]:
    return {
        "samples_per_s": figures.samples_per_s,
        "compute_samples_per_s": figures.compute_samples_per_s,
        "transmission_samples_per_s": figures.transmission_samples_per_s,
        "active_pes": figures.active_pes,
        "active_pes_percent": figures.active_pes_percent,
        "compute_utilization_percent": figures.compute_utilization_percent,
        "deltat_cycles": figures.deltat_cycles,
    }


def _kernel_json(row: KernelReport) -> dict[str, Any]:
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
        **_figures_json(row.figures),
    }


def build_streamed_json(report: StreamedReport) -> dict[str, Any]:
    """Build the JSON value of a streamed step's report, with all figures unrounded.

    Keys: `fabric`, `clock_hz`, `processing_elements` (of the whole wafer), `batch_size`, `precision`,
    `overall`, `layers` (in the order of the forward pass; layers of one `kind` share a floorplan), `kinds`
    (kernels with their rectangles in one copy), `families` (sums of the kernels of all layers), `verdict`,
    `remedies`, `kernel` (the slowest one of the slowest layer, with its `levers`: its estimated changes),
    `changes` (estimated changes of the step), `notices`.
    """
    performance = report.performance
    return {
        "fabric": report.fabric.name,
        "clock_hz": report.fabric.clock_hz,
        "processing_elements": report.fabric.processing_elements,
        "io_bytes_per_s": report.fabric.io_bytes_per_s,
        "estimate_of": "time on the wafer, not of the simulator",
        "execution": "weight_streaming",
        "batch_size": report.batch_size,
        "precision": report.precision,
        "overall": {
            "samples_per_s": report.samples_per_s,
            "step_s": performance.step_s,
            "seconds": dict(performance.parts),
            "bound_by": performance.bound_by,
            "layers": len(report.layers),
            "recomputed_layers": len(report.recomputed),
            "micro_batches": performance.micro_batches,
            "micro_batch_size": performance.micro_batch_size,
            "activation_bytes": performance.activation_bytes,
            "activation_room_bytes": performance.activation_room_bytes,
            "active_pes": report.active_pes,
        },
        "layers": [_layer_json(layer) for layer in report.layers],
        "kinds": _kinds_json(report),
        "families": [asdict(one) for one in sum_layer_families(report.layers)],
        "verdict": render_streamed_verdict(report),
        "remedies": list(suggest_kernel_changes(report)),
        "kernel": _slowest_kernel_json(report.kernel),
        "changes": [asdict(change) for change in report.changes],
        "notices": list(report.notices),
    }


def _slowest_kernel_json(slowest: SlowestKernel | None) -> dict[str, Any] | None:
    if slowest is None:
        return None
    return {
        "name": slowest.kernel.name,
        "layer": slowest.layer,
        "deltat_cycles": slowest.cycles,
        "levers": [asdict(change) for change in slowest.changes],
    }


def _layer_json(layer: LayerReport) -> dict[str, Any]:
    traffic, time, plan = layer.traffic, layer.time, layer.placed.plan
    return {
        "name": layer.placed.name,
        "kind": plan.number,
        "compute_s": time.compute_s,
        "latency_s": time.latency_s,
        "exposed_transfer_s": time.exposed_s,
        "weight_bytes": traffic.weights,
        "backward_weight_bytes": traffic.backward_weights,
        "gradient_bytes": traffic.gradients,
        "activation_bytes": traffic.stash,
        "recomputed": layer.recomputed,
        "copies": plan.copies.count if plan.copies else 0,
        "active_pes": plan.active_pes,
    }


def _kinds_json(report: StreamedReport) -> list[dict[str, Any]]:
    plans = {layer.placed.plan.number: layer.placed.plan for layer in report.layers}
    kinds = []
    for plan in plans.values():
        if plan.copies is None or plan.graph is None:
            continue
        copies, rects = plan.copies, plan.copies.placement.rects
        kernels = [
            {"name": kernel.name, "family": kernel.family, "rectangle": asdict(rects[kernel.name])}
            for kernel in plan.graph.kernels
        ]
        grid = {name: getattr(copies, name) for name in ("columns", "rows", "width", "height")}
        kinds.append({"kind": plan.number, "grid": grid, "kernels": kernels})
    return kinds

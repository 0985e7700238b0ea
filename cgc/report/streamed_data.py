"""The report of a step with one layer at a time, for programs: `compile_report.json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cgc.placement.model import Rect
from cgc.report.streamed import LayerReport, StreamedReport
from cgc.report.streamed_families import layered_family_sums
from cgc.report.streamed_levers import SlowestKernel
from cgc.report.streamed_text import streamed_remedies, streamed_verdict


def streamed_report_json(report: StreamedReport) -> dict[str, Any]:
    """All figures unrounded, as a JSON value.

    Keys: `fabric`, `clock_hz`, `processing_elements` (of the whole wafer), `batch_size`, `precision`,
    `overall`, `layers` (in the order of the forward pass; layers of one `kind` share a floorplan), `kinds`
    (kernels with their rectangles in one copy), `families` (sums of the kernels of all layers), `verdict`,
    `remedies`, `kernel` (that sets the pace of the slowest layer, with its `levers`: what one change of it
    would do), `changes` (of the step), `notices`.
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
        "layers": [_layer(layer) for layer in report.layers],
        "kinds": _kinds(report),
        "families": [asdict(one) for one in layered_family_sums(report.layers)],
        "verdict": streamed_verdict(report),
        "remedies": list(streamed_remedies(report)),
        "kernel": _kernel(report.kernel),
        "changes": [asdict(change) for change in report.changes],
        "notices": list(report.notices),
    }


def _kernel(slowest: SlowestKernel | None) -> dict[str, Any] | None:
    if slowest is None:
        return None
    levers = [asdict(lever) for lever in slowest.levers]
    return {
        "name": slowest.kernel.name,
        "layer": slowest.layer,
        "deltat_cycles": slowest.cycles,
        "levers": levers,
    }


def _layer(layer: LayerReport) -> dict[str, Any]:
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


def _kinds(report: StreamedReport) -> list[dict[str, Any]]:
    plans = {layer.placed.plan.number: layer.placed.plan for layer in report.layers}
    found = []
    for plan in plans.values():
        if plan.copies is None or plan.graph is None:
            continue
        copies, rects = plan.copies, plan.copies.placement.rects
        kernels = [
            {"name": kernel.name, "family": kernel.family, "rectangle": _corners(rects[kernel.name])}
            for kernel in plan.graph.kernels
        ]
        grid = {name: getattr(copies, name) for name in ("columns", "rows", "width", "height")}
        found.append({"kind": plan.number, "grid": grid, "kernels": kernels})
    return found


def _corners(rect: Rect) -> dict[str, int]:
    return {"x": rect.x, "y": rect.y, "width": rect.width, "height": rect.height}

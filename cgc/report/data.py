"""The compile report for programs: `compile_report.json` and `plan.json`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from cgc.performance.model import Figures
from cgc.performance.replicas import Replicated
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.model import (
    CompileReport,
    KernelReport,
    LayerReport,
    PipelinedPart,
    ReplicaReport,
    StreamedPart,
)
from cgc.report.suggestions import FRONT_ENDS, Suggestion
from cgc.report.text import render_verdict


def build_json(report: CompileReport) -> dict[str, Any]:
    """Build the JSON value of a report, with all figures unrounded.

    Keys of all reports: `fabric`, `clock_hz`, `estimate_of`, `batch_size`, `precision`, `overall` (figures),
    `families` (sums of the kernels by family), `notices` (the reasons for this kind of execution; may be
    missing), `suggestions` (changes that make the step faster, each by itself, the best first: `lever`
    ("replicas", "precision", "batch", "shape", "execution", "micro_batches" or "input"), `change`, predicted
    `samples_per_s`, `times` as fast as now, `option` and `value` that make the change, null for one of the
    program, and `how` to make it, by front end).

    Keys of a pipelined step: `kernels` (figures plus name, family, generated, origin ("matched" or
    "generated"), loops (of a generated kernel, one line a nest), ops, rectangle, memory_per_pe_bytes (of the
    fullest PE), memory_bytes (of all its PEs, by use), source;
    start_cycles (when it starts on the first sample); in data-flow order), `bottleneck` (kernel, limit,
    reason, deltat_cycles, remedies: sentences on the limit, levers: estimated changes of that kernel),
    `replicas` (only if the model may have several copies on the wafer: the copies, their exchange, the counts
    that were compared; `kernels` are then those of one copy, and `overall` has the rates and PEs of all
    copies with the cycles of one).

    Keys of a step with streamed weights: `processing_elements` (of the whole wafer), `io_bytes_per_s`,
    `execution`, `layers` (in the order of the forward pass; layers of one `kind` share a floorplan), `kinds`
    (kernels with their rectangles in one copy), `verdict`, `remedies` (sentences on what bounds the rate),
    `kernel` (the slowest one of the slowest layer, with its `levers`: its estimated changes), `changes` (the
    suggestions as in earlier versions).
    """
    fabric, pipelined, streamed = report.fabric, report.pipelined, report.streamed
    data: dict[str, Any] = {"fabric": fabric.name, "clock_hz": fabric.clock_hz}
    if streamed is not None:
        data["processing_elements"] = fabric.processing_elements
        data["io_bytes_per_s"] = fabric.io_bytes_per_s
    data["estimate_of"] = "time on the wafer, not of the simulator"
    if streamed is not None:
        data["execution"] = "weight_streaming"
    data |= {"batch_size": report.batch_size, "precision": report.precision}
    data["suggestions"] = [_build_suggestion_json(one) for one in report.suggestions]
    if pipelined is not None:
        data |= _build_pipelined_json(report, pipelined)
    if streamed is not None:
        data |= _build_streamed_json(report, streamed)
    return data


def _build_suggestion_json(one: Suggestion) -> dict[str, Any]:
    name, value = (None, None) if one.option is None else one.option
    return {
        "lever": one.lever,
        "change": one.change,
        "samples_per_s": one.samples_per_s,
        "times": one.times,
        "option": name,
        "value": value,
        "how": {front_end: one.describe_how(front_end) for front_end in FRONT_ENDS},
    }


def _build_pipelined_json(report: CompileReport, part: PipelinedPart) -> dict[str, Any]:
    performance = part.performance
    return {
        "overall": _build_figures_json(performance.overall),
        "kernels": [
            {**_build_kernel_json(kernel), "start_cycles": part.start_cycles[kernel.kernel.name]}
            for kernel in part.kernels
        ],
        "families": [asdict(one) for one in sum_families(part.kernels)],
        "bottleneck": {
            "kernel": performance.bottleneck,
            "limit": part.limit.kind,
            "reason": part.limit.reason.value,
            "deltat_cycles": performance.overall.deltat_cycles,
            "remedies": list(report.explanations),
            "levers": [asdict(change) for change in report.changes],
        },
        **({"notices": list(report.notices)} if report.notices else {}),
        **({"replicas": _build_replicas_json(part.replicas)} if part.replicas is not None else {}),
    }


def _build_figures_json(figures: Figures) -> dict[str, int | float]:
    return {
        "samples_per_s": figures.samples_per_s,
        "compute_samples_per_s": figures.compute_samples_per_s,
        "transmission_samples_per_s": figures.transmission_samples_per_s,
        "active_pes": figures.active_pes,
        "active_pes_percent": figures.active_pes_percent,
        "compute_utilization_percent": figures.compute_utilization_percent,
        "deltat_cycles": figures.deltat_cycles,
    }


def _build_kernel_json(row: KernelReport) -> dict[str, Any]:
    return {
        "name": row.kernel.name,
        "family": row.kernel.family,
        "generated": row.kernel.generated,
        "origin": row.origin,
        "loops": list(row.kernel.loops.describe()) if row.kernel.loops else [],
        "ops": list(row.kernel.ops),
        "source": row.kernel.source,
        "rectangle": asdict(row.rectangle),
        "memory_per_pe_bytes": row.memory_per_pe_bytes,
        "memory_bytes": dict(row.memory_parts),
        **_build_figures_json(row.figures),
    }


def _build_replicas_json(replicas: ReplicaReport) -> dict[str, Any]:
    copies = replicas.copies
    return {
        **_build_copies_json(copies),
        "columns": copies.boxes.columns,
        "rows": copies.boxes.rows,
        "box": {"width": copies.boxes.width, "height": copies.boxes.height},
        "samples_per_step": copies.samples,
        "gradient_bytes": copies.exchange.gradient_bytes,
        "step_cycles": copies.step_cycles,
        "exchange_percent": replicas.exchange_percent,
        "tried": [_build_copies_json(other) for other in replicas.tried],
    }


def _build_copies_json(copies: Replicated) -> dict[str, int | float]:
    overall = copies.performance.overall
    return {
        "replicas": copies.count,
        "samples_per_s": overall.samples_per_s,
        "samples_per_s_of_one": copies.per_replica.samples_per_s,
        "active_pes": overall.active_pes,
        "active_pes_of_one": copies.per_replica.active_pes,
        "active_pes_percent": overall.active_pes_percent,
        "deltat_cycles": copies.per_replica.deltat_cycles,
        "emptying_cycles": copies.exchange.emptying_cycles,
        "exchange_cycles": copies.exchange.exchange_cycles,
    }


def _build_streamed_json(report: CompileReport, part: StreamedPart) -> dict[str, Any]:
    performance, slowest = part.performance, part.kernel
    return {
        "overall": {
            "samples_per_s": report.samples_per_s,
            "step_s": performance.step_s,
            "seconds": dict(performance.parts),
            "bound_by": performance.bound_by,
            "layers": len(part.layers),
            "recomputed_layers": len(part.recomputed),
            "micro_batches": performance.micro_batches,
            "micro_batch_size": performance.samples_per_micro_batch,
            "activation_bytes": performance.activation_bytes,
            "activation_room_bytes": performance.activation_room_bytes,
            "active_pes": report.active_pes,
        },
        "layers": [_build_layer_json(layer) for layer in part.layers],
        "kinds": _build_kinds_json(part),
        "families": [asdict(one) for one in sum_layer_families(part.layers)],
        "verdict": render_verdict(report),
        "remedies": list(report.explanations),
        "kernel": None
        if slowest is None
        else {
            "name": slowest.kernel.name,
            "layer": slowest.layer,
            "deltat_cycles": slowest.cycles,
            "levers": [asdict(change) for change in slowest.changes],
        },
        "changes": [
            {"change": one.change, "samples_per_s": one.samples_per_s, "helps": True}
            for one in report.suggestions
        ],
        "notices": list(report.notices),
    }


def _build_layer_json(layer: LayerReport) -> dict[str, Any]:
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


def _build_kinds_json(part: StreamedPart) -> list[dict[str, Any]]:
    plans = {layer.placed.plan.number: layer.placed.plan for layer in part.layers}
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


def render_plan(report: CompileReport) -> str:
    """Render the placement of a pipelined step as compact JSON.

    `total_utilization` is 0 to 1, and rectangles are `[x, y, width, height]`. If the model has several
    copies, the rectangles are those of the first one, and `copies` has the corners `[x, y]` of all boxes.
    """
    part = report.pipelined
    assert part is not None, "a step with streamed weights has a placement for each kind of layer"
    placement = part.placement
    plan: dict[str, Any] = {
        "fabric": placement.fabric,
        "width": report.fabric.width,
        "height": report.fabric.height,
        "total_utilization": report.active_pes / report.fabric.processing_elements,
        "wire_length": placement.wire_length,
        "kernels": {name: [r.x, r.y, r.width, r.height] for name, r in placement.rects.items()},
    }
    if part.replicas is not None and part.copies > 1:
        plan["copies"] = [list(corner) for corner in part.replicas.copies.boxes.corners]
    return json.dumps(plan, separators=(",", ":"))

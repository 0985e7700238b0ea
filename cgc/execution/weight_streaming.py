"""A step with one layer at a time on the wafer: an executable for each function, and who calls them when."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cgc.cirh.interface import step_interface
from cgc.cirh.text import print_module
from cgc.executable import export_step
from cgc.execution.activations import activation_notices, chosen_step, memory_limit
from cgc.execution.compiled import Compiled, Part
from cgc.layers.norms import split_norms
from cgc.layers.streamed import streamed_step
from cgc.manifest import CIRH_TEXT, REPORT_HTML, REPORT_JSON, REPORT_TEXT, SCHEDULE, StreamedEstimates
from cgc.performance.layer_costs import layer_costs, placed_layers
from cgc.performance.layers import activation_room
from cgc.report import (
    StreamedReport,
    render_streamed_html,
    render_streamed_text,
    streamed_report,
    streamed_report_json,
)

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cgc.execution.stages import Stages
    from cgc.layers.streamed import StreamedStep
    from cgc.provenance import Provenance
    from cs_toolkit.execution_options import Streaming
    from cs_toolkit.fabric import Fabric
    from cs_toolkit.step import Precision

STAGES = 5
"""Of `compile_streamed`."""

ESTIMATE_STAGES = 3
"""Of `estimated_streamed`."""


def compile_streamed(
    module: ModuleOp,
    fabric: Fabric,
    stages: Stages,
    streaming: Streaming,
    notices: tuple[str, ...] = (),
    precision: Precision = "float32",
) -> Compiled:
    """Compiles a rewritten step; function *i* of the schedule is executable *i*.

    Args:
        module: the step; its norms are split.
        fabric: the wafer that holds a layer at a time.
        stages: of the compilation.
        streaming: what the user has decided.
        notices: for the report, why the step is executed so.
        precision: for the report, what it is computed in.

    Raises:
        PlacementError: a layer does not fit on the wafer by itself.
        CompileError: the step cannot be executed.
    """
    step, report = estimated_streamed(module, fabric, stages, streaming, notices)
    report = replace(report, precision=precision)
    with stages.stage("Exporting the executables"):
        parts = tuple(_part(index, part) for index, part in enumerate(step.modules))
    with stages.stage("Writing the report"):
        texts = {
            CIRH_TEXT: print_module(step.module),
            SCHEDULE: step.schedule.to_json(),
            REPORT_JSON: json.dumps(streamed_report_json(report), indent=1) + "\n",
        }
    return Compiled(report.batch_size, parts, texts, _estimates(report), report, partial(_reports, report))


def estimated_streamed(
    module: ModuleOp,
    fabric: Fabric,
    stages: Stages,
    streaming: Streaming,
    notices: tuple[str, ...] = (),
) -> tuple[StreamedStep, StreamedReport]:
    """A rewritten step in layers, and what it is estimated at; three stages. See `compile_streamed`."""
    wafer = fabric.for_execution("weight_streaming")
    with stages.stage("Cutting the step into layers"):
        split_norms(module)
        step = streamed_step(module)
    with stages.stage("Placing layers"):
        layers = placed_layers(step, wafer)
        room = activation_room(layer_costs(layers, step, frozenset()), wafer)
        limit = memory_limit(room, streaming)
        choice = chosen_step(module, step, limit, streaming)
        step = choice.step
        if step.micro is not None:
            layers = placed_layers(step, wafer)
    with stages.stage("Estimating performance"):
        report = streamed_report(step, layers, choice.recomputed, wafer, limit.room_bytes)
        report = replace(report, notices=(*notices, *activation_notices(choice, limit, streaming)))
    return step, report


def _reports(report: StreamedReport, made: Provenance) -> dict[str, str]:
    return {REPORT_TEXT: render_streamed_text(report, made), REPORT_HTML: render_streamed_html(report, made)}


def _estimates(report: StreamedReport) -> StreamedEstimates:
    performance = report.performance
    return StreamedEstimates(
        samples_per_s=report.samples_per_s,
        active_pes=report.active_pes,
        total_utilization=report.active_pes / report.fabric.processing_elements,
        layers=len(report.layers),
        recomputed_layers=len(report.recomputed),
        micro_batches=performance.micro_batches,
        step_s=performance.step_s,
        bound_by=performance.bound_by,
    )


def _part(index: int, module: ModuleOp) -> Part:
    interface = step_interface(module)
    return Part(f"function_{index}", interface, export_step(module, interface))

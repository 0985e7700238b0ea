"""A step with one layer at a time on the wafer: an executable for each function, and who calls them when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cgc.cirh.interface import step_interface
from cgc.cirh.text import print_module
from cgc.executable import export_step
from cgc.execution.compiled import Compiled, Part
from cgc.kernels import match_kernels
from cgc.layers.streamed import streamed_step
from cgc.manifest import CIRH_TEXT, REPORT_JSON, REPORT_TEXT, SCHEDULE, StreamedEstimates
from cgc.performance import streaming_estimate
from cgc.report import StreamedReport, render_streamed_text, streamed_report_json

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cgc.execution.stages import Stages
    from cs_toolkit.fabric import Fabric

STAGES = 4
"""Of `compile_streamed`."""


def compile_streamed(module: ModuleOp, fabric: Fabric, stages: Stages) -> Compiled:
    """Compiles a rewritten step; function *i* of the schedule is executable *i*.

    Args:
        module: the step.
        fabric: the wafer that holds a layer at a time.
        stages: of the compilation.

    Raises:
        CompileError: the step cannot be executed.
    """
    with stages.stage("Cutting the step into layers"):
        step = streamed_step(module)
    with stages.stage("Estimating performance"):
        graph = match_kernels(step.module)
        rate = streaming_estimate(graph)
        report = StreamedReport(
            fabric,
            graph.batch_size,
            layers=len(step.schedule.layers),
            step_s=graph.batch_size / rate.samples_per_s,
            bound_by="compute" if rate.compute_s > rate.latency_s else "latency",
        )
    with stages.stage("Exporting the executables"):
        parts = tuple(_part(index, part) for index, part in enumerate(step.modules))
    with stages.stage("Writing the report"):
        texts = {
            CIRH_TEXT: print_module(step.module),
            SCHEDULE: step.schedule.to_json(),
            REPORT_TEXT: render_streamed_text(report),
            REPORT_JSON: json.dumps(streamed_report_json(report), indent=1) + "\n",
        }
    estimates = StreamedEstimates(
        samples_per_s=report.samples_per_s,
        active_pes=fabric.processing_elements,
        total_utilization=1.0,
        layers=report.layers,
        step_s=report.step_s,
        bound_by=report.bound_by,
    )
    return Compiled(graph.batch_size, parts, texts, estimates, report)


def _part(index: int, module: ModuleOp) -> Part:
    interface = step_interface(module)
    return Part(f"function_{index}", interface, export_step(module, interface))

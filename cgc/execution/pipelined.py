"""Pipelined execution: all layers on the wafer at once, one executable, kernels side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp, StringAttr

from cgc.cirh.interface import graph_function
from cgc.cirh.text import print_module
from cgc.execution.compilation import Compiled, Part
from cgc.kernels import KernelGraph, match_kernels
from cgc.kernels.families.grouping import lair_text
from cgc.lowering.interpret import export_step
from cgc.manifest import (
    CIRH_TEXT,
    DELTAT_ESTIMATE,
    KERNELS_TEXT,
    LAIR_TEXT,
    PLAN,
    PipelinedEstimates,
)
from cgc.performance.replicas import select_replicas
from cgc.report import build_replicas_report, render_plan

if TYPE_CHECKING:
    from cgc.execution.compilation import Stages
    from cgc.performance.replicas import Replicated
    from cs_toolkit.execution_options import ReplicaChoice
    from cs_toolkit.fabric import Fabric
    from cs_toolkit.step import Precision, StepInterface

# Stages of this mode: `match_step`, `place_replicas`, `compile_pipelined`.
STAGES = 4

# Attribute of the ops in `kernels.mlir`: the name of the op's kernel.
KERNEL = "cs.kernel"

# Name of the only executable.
_WHOLE_STEP = "step"


def match_step(module: ModuleOp, stages: Stages) -> KernelGraph:
    """Match the kernels of a rewritten step; one stage."""
    with stages.stage("Matching kernels"):
        return match_kernels(module)


def place_replicas(
    graph: KernelGraph, fabric: Fabric, stages: Stages, replicas: ReplicaChoice = 1
) -> tuple[Replicated, tuple[Replicated, ...]]:
    """Place the kernels of all copies; one stage.

    Returns:
        The best placed number of copies, and all that were tried.
    """
    with stages.stage("Placing kernels"):
        return select_replicas(graph, fabric, replicas)


def compile_pipelined(
    module: ModuleOp,
    interface: StepInterface,
    copies: Replicated,
    tried: tuple[Replicated, ...],
    fabric: Fabric,
    stages: Stages,
    notices: tuple[str, ...] = (),
    precision: Precision = "float32",
) -> Compiled:
    """Compile a rewritten step whose kernels are placed; two stages.

    Args:
        module: the step.
        interface: of the step.
        copies: the placed copies of the model, which share the samples of a step. Together they compute the
            step: one executable computes the whole batch.
        tried: other numbers of copies, if the compiler chose the number.
        fabric: the fabric they are placed on.
        stages: of the compile.
        notices: for the report, why this mode of execution was chosen.
        precision: of the step, for the report.

    Raises:
        CompileError: the step cannot be executed.
    """
    with stages.stage("Estimating performance"):
        report = replace(build_replicas_report(copies, tried, fabric, precision), notices=notices)
    with stages.stage("Exporting the executable"):
        executable = Part(_WHOLE_STEP, interface, export_step(module, interface))
        deltat = copies.performance.overall.deltat_cycles
        texts = {
            CIRH_TEXT: print_module(module),
            KERNELS_TEXT: kernels_text(module, copies.graph),
            LAIR_TEXT: lair_text(module, copies.graph),
            PLAN: render_plan(report),
            DELTAT_ESTIMATE: json.dumps({"estimated_deltat": deltat}, separators=(",", ":")),
        }
    estimates = PipelinedEstimates(
        deltat_cycles=deltat,
        samples_per_s=report.samples_per_s,
        active_pes=report.active_pes,
        total_utilization=report.active_pes / fabric.processing_elements,
        replicas=copies.count,
    )
    return Compiled(report.batch_size, (executable,), texts, estimates, report)


def kernels_text(module: ModuleOp, graph: KernelGraph) -> str:
    """Return module as text with the name of its kernel on every op (`cs.kernel`); it can be parsed again."""
    body = list(graph_function(module).body.block.ops)
    # The attributes are set on the module itself while it is printed: a copy takes as long as the text.
    for kernel in graph.kernels:
        name = StringAttr(kernel.name)
        for index in kernel.op_indices:
            body[index].attributes[KERNEL] = name
    try:
        return print_module(module)
    finally:
        for op in body:
            op.attributes.pop(KERNEL, None)

"""A step with one layer at a time on the wafer: an executable for each function, and who calls them when."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.cirh.text import print_module
from cgc.errors import CompileError
from cgc.executable import export_step
from cgc.execution.compilation import Compiled, Part
from cgc.layers.micro_batches import NotSplitError
from cgc.layers.streamed import StreamedStep, recomputing, split_norms, streamed_step
from cgc.layers.traffic import peak_bytes
from cgc.manifest import CIRH_TEXT, REPORT_HTML, REPORT_JSON, REPORT_TEXT, SCHEDULE, StreamedEstimates
from cgc.performance.layers import activation_room, layer_costs, placed_layers
from cgc.report import (
    StreamedReport,
    render_streamed_html,
    render_streamed_text,
    streamed_report,
    streamed_report_json,
)
from cs_toolkit.execution_options import Recompute, Streaming, micro_batch_fault
from cs_toolkit.layered_step import Schedule

if TYPE_CHECKING:
    from cgc.execution.compilation import Stages
    from cgc.manifest import Provenance
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


@dataclass(frozen=True)
class MemoryLimit:
    """Memory for the activations of a batch.

    Attributes:
        room_bytes: of all systems that share the batch.
        source: in words, what limits it.
    """

    room_bytes: int
    source: str


def memory_limit(wafer_bytes: int, streaming: Streaming) -> MemoryLimit:
    """What the activations of a batch may take: the samples, and with them the activations, are shared.

    Args:
        wafer_bytes: what one wafer has room for.
        streaming: what the user has decided.
    """
    count, given = streaming.num_csx, streaming.max_act_bytes
    if given is None or given > wafer_bytes:
        return MemoryLimit(count * wafer_bytes, f"the wafer{_each(count)} has room for {_size(wafer_bytes)}")
    return MemoryLimit(count * given, f"max_act_per_csx allows {_size(given)}{_each(count)}")


@dataclass(frozen=True)
class Choice:
    """A step whose activations fit, where that can be.

    Attributes:
        step: in layers.
        recomputed: layers whose backward part computes the forward part again.
        not_cut: why the batch is computed at once although its activations do not fit; empty otherwise.
    """

    step: StreamedStep
    recomputed: frozenset[int]
    not_cut: str = ""

    @property
    def peak_bytes(self) -> int:
        """The most bytes of activations that wait at once, of all systems."""
        return peak_bytes(self.step.schedule)


def chosen_step(module: ModuleOp, whole: StreamedStep, limit: MemoryLimit, streaming: Streaming) -> Choice:
    """Chooses what is computed again, and the micro-batches of a training.

    Layers are computed again before a batch is cut, since weights come again for each micro-batch.

    Args:
        module: the step.
        whole: the same in layers, nothing computed again.
        limit: of the memory.
        streaming: what the user has decided.

    Raises:
        CompileError: micro-batches were asked for that cannot be.
    """
    size, batch_size = streaming.micro_batch_size, whole.batch_size
    if whole.program.mode != "train":
        return _with_recomputed(whole, limit, streaming)
    if size == "auto":
        return _fitting(module, _with_recomputed(whole, limit, streaming), limit, streaming)
    fault = micro_batch_fault(batch_size, streaming)
    if fault is not None:
        raise CompileError(fault)
    count = batch_size // (size * streaming.num_csx)
    try:
        step = streamed_step(module, micro_batches=count) if count > 1 else whole
    except NotSplitError as error:
        raise CompileError(
            f"micro_batch_size is {size}, but the batch of {batch_size} samples cannot be cut: {error}; "
            "leave micro_batch_size out, or change the model"
        ) from None
    return _with_recomputed(step, limit, streaming)


def _fitting(module: ModuleOp, choice: Choice, limit: MemoryLimit, streaming: Streaming) -> Choice:
    """The fewest micro-batches whose activations fit; as many as there are samples where none do."""
    needed = -(-choice.peak_bytes // max(1, limit.room_bytes))
    samples = choice.step.batch_size // streaming.num_csx
    for count in range(2, samples + 1):
        if choice.peak_bytes <= limit.room_bytes:
            break
        if samples % count or (count < needed and count < samples):
            continue
        try:
            step = streamed_step(module, micro_batches=count)
        except NotSplitError as error:
            return replace(choice, not_cut=str(error))
        choice = _with_recomputed(step, limit, streaming)
    return choice


def _with_recomputed(step: StreamedStep, limit: MemoryLimit, streaming: Streaming) -> Choice:
    return Choice(*with_recomputed(step, limit.room_bytes, streaming.recompute))


def activation_notices(choice: Choice, limit: MemoryLimit, streaming: Streaming) -> tuple[str, ...]:
    """What the user is told: nothing where activations fit as they are and nobody has decided anything."""
    step, count = choice.step, streaming.num_csx
    peak, room = choice.peak_bytes, limit.room_bytes
    is_untouched = streaming == Streaming(num_csx=count) and step.micro is None and not choice.recomputed
    if is_untouched and peak <= room:
        return ()
    layers = len(step.schedule.layers)
    again = f"{len(choice.recomputed):,} of {layers:,} layers are computed again in the backward pass"
    per_system = f"{_size(peak // count)} of activations wait at once{_each(count)}, {limit.source}"
    start = f"activations (recompute {streaming.recompute}): {again}; {_parts(step, streaming)}{per_system}"
    if peak <= room:
        return (start,)
    first = "say recompute: auto, or " if streaming.recompute == "none" else ""
    cut = f"; the batch cannot be cut into micro-batches: {choice.not_cut}" if choice.not_cut else ""
    return (f"{start}, which is too little: {first}take a smaller batch{cut}",)


def _parts(step: StreamedStep, streaming: Streaming) -> str:
    if step.micro is None:
        return ""
    size = step.program.batch_size // streaming.num_csx
    given = "auto" if streaming.micro_batch_size == "auto" else "as asked for"
    return (
        f"the batch goes through the layers in {step.micro_batches:,} micro-batches of {size:,} samples"
        f"{_each(streaming.num_csx)} ({given}); "
    )


def _each(count: int) -> str:
    return "" if count == 1 else f" in each of {count} systems"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes:,} bytes"


def with_recomputed(
    step: StreamedStep, room_bytes: int, recompute: Recompute
) -> tuple[StreamedStep, frozenset[int]]:
    """A step with those layers computed again that were asked for, and these layers.

    Args:
        step: a step where no layer is computed again.
        room_bytes: what there is for activations.
        recompute: "auto" for as few as let the activations fit.
    """
    if recompute == "none":
        return step, frozenset()
    return fitting_step(step, room_bytes if recompute == "auto" else -1)


def fitting_step(step: StreamedStep, room_bytes: int) -> tuple[StreamedStep, frozenset[int]]:
    """A step with as few layers computed again as let its activations fit, and these layers.

    Args:
        step: a step where no layer is computed again.
        room_bytes: what there is for activations; where they never fit, all layers are computed again.
    """
    target = room_bytes
    while True:
        recomputed = layers_to_recompute(step.schedule, target)
        found = recomputing(step, recomputed) if recomputed else step
        excess = peak_bytes(found.schedule) - room_bytes
        if excess <= 0 or target < 0:
            return found, recomputed
        target -= excess  # what a layer saves is known when the others are chosen


def layers_to_recompute(schedule: Schedule, room_bytes: int) -> frozenset[int]:
    """The fewest layers that, computed again in the backward pass, let the activations of a step fit.

    Args:
        schedule: of the step where no layer is computed again.
        room_bytes: what there is for activations; with less than none all layers are chosen.

    Returns:
        Layers, those first that keep the most; all that keep anything where it never fits.
    """
    missing = peak_bytes(schedule) - room_bytes
    saved = _saved_bytes(schedule)
    chosen = set()
    for index in sorted(saved, key=lambda index: (-saved[index], index)):
        if missing <= 0:
            break
        chosen.add(index)
        missing -= saved[index]
    return frozenset(chosen)


def _saved_bytes(schedule: Schedule) -> dict[int, int]:
    """By layer what recomputing it saves: all that its forward part keeps but the input of the next layer."""
    size = schedule.sizes
    backward = {value for layer in schedule.layers if layer.backward for value in layer.backward.arguments}
    forward = {value for layer in schedule.layers if layer.forward for value in layer.forward.arguments}
    saved = {}
    for index, layer in enumerate(schedule.layers):
        if layer.forward and layer.backward:
            kept = set(layer.forward.results) & backward - forward
            saved[index] = sum(size[value] for value in kept)
    return {index: count for index, count in saved.items() if count}

"""Weight streaming: one layer at a time on the wafer, an executable for each function of the schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cgc.cirh.text import print_module
from cgc.errors import CompileError
from cgc.execution.compilation import Compiled, Part
from cgc.layers.micro_batches import NotSplitError
from cgc.layers.streamed import StreamedStep, reschedule, split_norms, streamed_step
from cgc.layers.traffic import peak_bytes
from cgc.lowering.interpret import export_step
from cgc.manifest import CIRH_TEXT, SCHEDULE, StreamedEstimates
from cgc.performance.layers import activation_room, layer_costs, place_layers
from cgc.report import CompileReport, build_streamed_report
from cs_toolkit.execution_options import Recompute, Streaming, micro_batch_error
from cs_toolkit.layered_step import Schedule

if TYPE_CHECKING:
    from cgc.execution.compilation import Stages
    from cs_toolkit.fabric import Fabric
    from cs_toolkit.step import Precision

# Stages of `compile_streamed`.
STAGES = 4

# Stages of `estimate_streamed`.
ESTIMATE_STAGES = 3


def compile_streamed(
    module: ModuleOp,
    fabric: Fabric,
    stages: Stages,
    streaming: Streaming,
    notices: tuple[str, ...] = (),
    precision: Precision = "float32",
    pipelined_rate: float | None = None,
) -> Compiled:
    """Compile a rewritten step; function *i* of the schedule is executable *i*.

    Args:
        module: the step; its norms are split.
        fabric: the wafer that holds a layer at a time.
        stages: of the compile.
        streaming: the user's options.
        notices: for the report, why this mode of execution was chosen.
        precision: of the step, for the report.
        pipelined_rate: predicted rate with all layers on the wafer at once; None if they do not fit, or if
            the program did not choose the mode.

    Raises:
        PlacementError: a layer does not fit on the wafer by itself.
        CompileError: the step cannot be executed.
    """
    step, report = estimate_streamed(module, fabric, stages, streaming, notices, precision, pipelined_rate)
    with stages.stage("Exporting the executables"):
        parts = tuple(_part(index, part) for index, part in enumerate(step.modules))
        texts = {
            CIRH_TEXT: print_module(step.module),
            SCHEDULE: step.schedule.to_json(),
        }
    return Compiled(report.batch_size, parts, texts, _estimates(report), report)


def estimate_streamed(
    module: ModuleOp,
    fabric: Fabric,
    stages: Stages,
    streaming: Streaming,
    notices: tuple[str, ...] = (),
    precision: Precision = "float32",
    pipelined_rate: float | None = None,
) -> tuple[StreamedStep, CompileReport]:
    """Cut a rewritten step into layers and estimate its performance; three stages.

    Raises:
        PlacementError: a layer does not fit on the wafer by itself.
        CompileError: the step cannot be executed.
    """
    # Weight streaming may use more PEs of the same wafer.
    wafer = fabric.for_execution("weight_streaming")
    with stages.stage("Cutting the step into layers"):
        split_norms(module)
        step = streamed_step(module)
    with stages.stage("Placing layers"):
        layers = place_layers(step, wafer)
        room = activation_room(layer_costs(layers, step, frozenset()), wafer)
        limit = memory_limit(room, streaming)
        choice = choose_step(module, step, limit, streaming)
        step = choice.step
        # Micro-batches change the batch size that kernels are placed for.
        if step.micro is not None:
            layers = place_layers(step, wafer)
    with stages.stage("Estimating performance"):
        report = build_streamed_report(
            step, layers, choice.recomputed, wafer, limit.room_bytes, precision, pipelined_rate
        )
        report = replace(report, notices=(*notices, *activation_notices(choice, limit, streaming)))
    return step, report


def _estimates(report: CompileReport) -> StreamedEstimates:
    """Return the figures of the report for the manifest."""
    part = report.streamed
    assert part is not None
    performance = part.performance
    return StreamedEstimates(
        samples_per_s=report.samples_per_s,
        active_pes=report.active_pes,
        total_utilization=report.active_pes / report.fabric.processing_elements,
        layers=len(part.layers),
        recomputed_layers=len(part.recomputed),
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
        source: text about the origin of the limit.
    """

    room_bytes: int
    source: str


def memory_limit(wafer_bytes: int, streaming: Streaming) -> MemoryLimit:
    """Return the memory for the activations of a batch; systems share the samples, and with them the
    activations.

    Args:
        wafer_bytes: room on one wafer.
        streaming: the user's options.
    """
    count, given = streaming.num_csx, streaming.max_act_bytes
    if given is None or given > wafer_bytes:
        return MemoryLimit(count * wafer_bytes, f"the wafer{_each(count)} has room for {_size(wafer_bytes)}")
    return MemoryLimit(count * given, f"max_act_per_csx allows {_size(given)}{_each(count)}")


@dataclass(frozen=True)
class Choice:
    """A step whose activations fit, if possible.

    Attributes:
        step: in layers.
        recomputed: layers whose backward part recomputes the forward part.
        not_cut: why the batch is computed at once although its activations do not fit; empty otherwise.
    """

    step: StreamedStep
    recomputed: frozenset[int]
    not_cut: str = ""

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of stored activations, of all systems."""
        return peak_bytes(self.step.schedule)


def choose_step(module: ModuleOp, whole: StreamedStep, limit: MemoryLimit, streaming: Streaming) -> Choice:
    """Choose the layers to recompute, and the micro-batches of a training step.

    Args:
        module: the step.
        whole: the same in layers, nothing recomputed.
        limit: of the memory.
        streaming: the user's options.

    Raises:
        CompileError: micro-batches were requested that are impossible.
    """
    # Layers are recomputed before a batch is cut, since weights are sent again for each micro-batch.
    size, batch_size = streaming.micro_batch_size, whole.batch_size
    if whole.program.mode != "train":
        return _recompute(whole, limit, streaming)
    if size == "auto":
        return _fit_micro_batches(module, _recompute(whole, limit, streaming), limit, streaming)
    problem = micro_batch_error(batch_size, streaming)
    if problem is not None:
        raise CompileError(problem)
    count = batch_size // (size * streaming.num_csx)
    try:
        step = streamed_step(module, micro_batches=count) if count > 1 else whole
    except NotSplitError as error:
        raise CompileError(
            f"micro_batch_size is {size}, but the batch of {batch_size} samples cannot be cut: {error}; "
            "leave micro_batch_size out, or change the model"
        ) from None
    return _recompute(step, limit, streaming)


def _fit_micro_batches(module: ModuleOp, choice: Choice, limit: MemoryLimit, streaming: Streaming) -> Choice:
    """Return the fewest micro-batches whose activations fit; one per sample if none do."""
    needed = -(-choice.peak_bytes // max(1, limit.room_bytes))
    samples = choice.step.batch_size // streaming.num_csx
    for count in range(2, samples + 1):
        if choice.peak_bytes <= limit.room_bytes:
            break
        # The peak shrinks at most in proportion to the number: smaller numbers cannot fit.
        if samples % count or (count < needed and count < samples):
            continue
        try:
            step = streamed_step(module, micro_batches=count)
        except NotSplitError as error:
            return replace(choice, not_cut=str(error))
        choice = _recompute(step, limit, streaming)
    return choice


def _recompute(step: StreamedStep, limit: MemoryLimit, streaming: Streaming) -> Choice:
    return Choice(*recompute_layers(step, limit.room_bytes, streaming.recompute))


def activation_notices(choice: Choice, limit: MemoryLimit, streaming: Streaming) -> tuple[str, ...]:
    """Return notices about the choice: none if activations fit as they are and the user has set no option."""
    step, count = choice.step, streaming.num_csx
    peak, room = choice.peak_bytes, limit.room_bytes
    is_untouched = streaming == Streaming(num_csx=count) and step.micro is None and not choice.recomputed
    if is_untouched and peak <= room:
        return ()
    layers = len(step.schedule.layers)
    again = f"{len(choice.recomputed):,} of {layers:,} layers are recomputed in the backward pass"
    per_system = f"{_size(peak // count)} of activations are stored at the peak{_each(count)}, {limit.source}"
    start = f"activations (recompute {streaming.recompute}): {again}; {_parts(step, streaming)}{per_system}"
    if peak <= room:
        return (start,)
    first = "set recompute: auto, or " if streaming.recompute == "none" else ""
    cut = f"; the batch cannot be cut into micro-batches: {choice.not_cut}" if choice.not_cut else ""
    return (f"{start}, which is not enough: {first}use a smaller batch{cut}",)


def _parts(step: StreamedStep, streaming: Streaming) -> str:
    if step.micro is None:
        return ""
    size = step.program.batch_size // streaming.num_csx
    given = "auto" if streaming.micro_batch_size == "auto" else "as requested"
    return (
        f"the batch goes through the layers in {step.micro_batches:,} micro-batches of {size:,} samples"
        f"{_each(streaming.num_csx)} ({given}); "
    )


def _each(count: int) -> str:
    return "" if count == 1 else f" in each of {count} systems"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes >= 1e6 else f"{size_bytes:,} bytes"


def recompute_layers(
    step: StreamedStep, room_bytes: int, recompute: Recompute
) -> tuple[StreamedStep, frozenset[int]]:
    """Recompute the requested layers of a step.

    Args:
        step: a step where no layer is recomputed.
        room_bytes: memory for activations.
        recompute: "auto" for as few as let the activations fit.

    Returns:
        The step, and the layers that are recomputed.
    """
    if recompute == "none":
        return step, frozenset()
    return fitting_step(step, room_bytes if recompute == "auto" else -1)


def fitting_step(step: StreamedStep, room_bytes: int) -> tuple[StreamedStep, frozenset[int]]:
    """Recompute as few layers of a step as let its activations fit.

    Args:
        step: a step where no layer is recomputed.
        room_bytes: memory for activations; if they never fit, all layers are recomputed.

    Returns:
        The step, and the layers that are recomputed.
    """
    target = room_bytes
    while True:
        recomputed = layers_to_recompute(step.schedule, target)
        found = reschedule(step, recomputed) if recomputed else step
        excess = peak_bytes(found.schedule) - room_bytes
        if excess <= 0 or target < 0:
            return found, recomputed
        target -= excess  # the bytes that a layer saves are known only when the others are chosen


def layers_to_recompute(schedule: Schedule, room_bytes: int) -> frozenset[int]:
    """Return the fewest layers whose recomputation lets the activations of a step fit.

    Args:
        schedule: of the step where no layer is recomputed.
        room_bytes: memory for activations; below 0 all layers are chosen.

    Returns:
        Layers, those that store the most first; all that store anything if the step never fits.
    """
    missing = peak_bytes(schedule) - room_bytes
    saved = _bytes_saved(schedule)
    chosen = set()
    for index in sorted(saved, key=lambda index: (-saved[index], index)):
        if missing <= 0:
            break
        chosen.add(index)
        missing -= saved[index]
    return frozenset(chosen)


def _bytes_saved(schedule: Schedule) -> dict[int, int]:
    """Return the bytes that recomputing saves by layer: stored values except the next layer's input."""
    size = schedule.sizes
    backward = {value for layer in schedule.layers if layer.backward for value in layer.backward.arguments}
    forward = {value for layer in schedule.layers if layer.forward for value in layer.forward.arguments}
    saved = {}
    for index, layer in enumerate(schedule.layers):
        if layer.forward and layer.backward:
            kept = set(layer.forward.results) & backward - forward
            saved[index] = sum(size[value] for value in kept)
    return {index: count for index, count in saved.items() if count}

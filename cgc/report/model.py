"""The figures of a compile report, which all its forms render."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cgc.kernels.configurations import MemoryUse
from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.layers.streamed import StreamedStep
from cgc.layers.traffic import LayerTraffic, peak_bytes
from cgc.performance.layers import (
    LayerCost,
    LayerTime,
    PlacedLayer,
    StreamedPerformance,
    estimate_streamed_step,
    layer_costs,
)
from cgc.performance.model import MEMORY, Figures, Performance
from cgc.performance.pipeline import start_cycles
from cgc.performance.replicas import Replicated, estimate_grid
from cgc.placement.model import Boxes, Placement, Rect
from cgc.placement.shapes import GraphShapes
from cgc.report.limit import Limit, Reason, explain_layers, explain_limit, find_limit
from cgc.report.suggestions import Suggestion, suggest_for_layers, suggest_for_pipeline
from cgc.report.what_if import (
    KernelChange,
    SlowestKernel,
    estimate_kernel_changes,
    find_slowest_kernel,
)
from cs_toolkit.fabric import Fabric
from cs_toolkit.figures import format_percent
from cs_toolkit.step import Precision


@dataclass(frozen=True)
class KernelReport:
    """A kernel with its rectangle and its estimated figures."""

    kernel: Kernel
    rectangle: Rect
    memory_per_pe_bytes: int
    figures: Figures
    memory: MemoryUse | None = None

    @property
    def memory_parts(self) -> Mapping[str, int]:
        """Bytes that all PEs of the rectangle hold together, by use; empty if they are unknown."""
        if self.memory is None:
            return {}
        optimizer = round(self.memory.resident * self.kernel.optimizer_share)
        return {
            "weights": self.memory.resident - optimizer,
            "optimizer_state": optimizer,
            "activations": self.memory.buffers,
            "stash": self.memory.stash,
            "code": self.memory.code,
        }

    @property
    def origin(self) -> str:
        """Origin of the kernel: "matched" with the kernel library, or "generated" from loop nests."""
        return "generated" if self.kernel.generated else "matched"


@dataclass(frozen=True)
class ReplicaReport:
    """The copies of the model on the wafer.

    Attributes:
        copies: the placed copies.
        tried: all counts that the compiler compared, if it chose the count; otherwise only `copies`.
    """

    copies: Replicated
    tried: tuple[Replicated, ...]

    @property
    def exchange_percent(self) -> float:
        """Share of a step in which a copy takes no samples, 0 to 100."""
        return 100 * self.copies.exchange.cycles / self.copies.step_cycles


@dataclass(frozen=True)
class PipelinedPart:
    """Figures of a report that only a pipelined step has.

    Attributes:
        input_bytes_per_sample: bytes that the hosts send.
        kernels: in data-flow order.
        edges: streams between the kernels.
        placement: of all kernels.
        performance: estimates of time on the wafer.
        limit: the limit of the pipeline's speed.
        replicas: set if the model may have several copies on the wafer; then kernels, edges and placement
            are those of one copy, at the origin, and the overall performance is that of all.
    """

    input_bytes_per_sample: int
    kernels: tuple[KernelReport, ...]
    edges: tuple[Edge, ...]
    placement: Placement
    performance: Performance
    limit: Limit
    replicas: ReplicaReport | None = None

    @cached_property
    def bottleneck(self) -> KernelReport | None:
        """The kernel that bounds the speed; None if the host input does."""
        name = self.performance.bottleneck
        return next((row for row in self.kernels if row.kernel.name == name), None)

    @cached_property
    def as_slow(self) -> tuple[KernelReport, ...]:
        """The other kernels with as many cycles as the one that bounds the speed."""
        if self.bottleneck is None or self.limit.kind == MEMORY:
            return ()
        cycles = self.bottleneck.figures.deltat_cycles
        return tuple(
            row for row in self.kernels if row.figures.deltat_cycles == cycles and row is not self.bottleneck
        )

    @cached_property
    def start_cycles(self) -> Mapping[str, int]:
        """The cycle at which each kernel starts on the first sample, by name."""
        cycles = {row.kernel.name: row.figures.deltat_cycles for row in self.kernels}
        return start_cycles((row.kernel for row in self.kernels), self.edges, cycles)

    @property
    def interval_cycles(self) -> int:
        """Cycles between two samples of one copy."""
        return self.performance.overall.deltat_cycles

    @property
    def copies(self) -> int:
        """Number of copies of the model on the wafer."""
        return 1 if self.replicas is None else self.replicas.copies.count


@dataclass(frozen=True)
class LayerReport:
    """A layer of a streamed step.

    Attributes:
        placed: name and placement of the layer.
        traffic: bytes to and from the wafer in a pass.
        time: seconds in a step.
        recomputed: whether the backward part recomputes the forward part.
    """

    placed: PlacedLayer
    traffic: LayerTraffic
    time: LayerTime
    recomputed: bool


@dataclass(frozen=True)
class StreamedPart:
    """Figures of a report that only a step with streamed weights has.

    Attributes:
        layers: in the order of the forward pass.
        performance: estimates of time on the wafer.
        kernel: the slowest kernel of the layer that computes the longest.
    """

    layers: tuple[LayerReport, ...]
    performance: StreamedPerformance
    kernel: SlowestKernel | None = None

    @property
    def most_exposed(self) -> LayerReport:
        """The layer with the most transfer that compute does not hide."""
        return max(self.layers, key=lambda layer: layer.time.exposed_s)

    @property
    def slowest(self) -> LayerReport:
        """The layer that computes the longest."""
        return max(self.layers, key=lambda layer: layer.time.compute_s)

    @property
    def recomputed(self) -> list[LayerReport]:
        """Layers whose backward part recomputes the forward part."""
        return [layer for layer in self.layers if layer.recomputed]


@dataclass(frozen=True)
class CompileReport:
    """The figures of a compiled step, unrounded.

    The mode of execution decides which one of the two parts is set.

    Attributes:
        fabric: the whole wafer.
        batch_size: samples of a step.
        samples_per_s: predicted rate on the wafer.
        active_pes: PEs of all kernels; with streamed weights those of the largest layer.
        suggestions: changes that make the step faster, each by itself, the best first.
        explanations: sentences on the limit of the speed.
        changes: estimated changes, each by itself, of the kernel that bounds the speed of a pipeline if its
            layouts are the limit.
        notices: sentences with the reasons for this kind of execution.
        precision: of activations and their gradients.
        pipelined: set if all kernels are on the wafer at the same time.
        streamed: set if one layer at a time is on the wafer.
    """

    fabric: Fabric
    batch_size: int
    samples_per_s: float
    active_pes: int
    suggestions: tuple[Suggestion, ...] = ()
    explanations: tuple[str, ...] = ()
    changes: tuple[KernelChange, ...] = ()
    notices: tuple[str, ...] = ()
    precision: Precision = "float32"
    pipelined: PipelinedPart | None = None
    streamed: StreamedPart | None = None


def build_report(graph: KernelGraph, placement: Placement, fabric: Fabric) -> CompileReport:
    """Build the report of a placed graph."""
    whole = Boxes(placement, 1, 1, fabric.width, fabric.height)
    return build_replicas_report(estimate_grid(graph, whole, fabric), (), fabric)


def build_replicas_report(
    copies: Replicated, tried: tuple[Replicated, ...], fabric: Fabric, precision: Precision = "float32"
) -> CompileReport:
    """Build the report of a model that may have several copies on the wafer.

    Args:
        copies: the placed copies.
        tried: the counts that the compiler compared; empty if the user gave the count.
        fabric: the fabric of all copies.
        precision: of activations and their gradients.
    """
    boxes = copies.boxes
    own = {"width": fabric.width // boxes.columns, "height": fabric.height // boxes.rows}
    room = fabric.model_copy(update=own)
    report = _build_report(copies, fabric, room, precision)
    assert report.pipelined is not None
    if copies.count == 1 and not tried:
        return report
    replicas = ReplicaReport(copies, tried or (copies,))
    return replace(
        report,
        batch_size=copies.count * copies.samples,
        explanations=_explain_replicas(report.explanations, report.pipelined.limit, replicas, room),
        pipelined=replace(report.pipelined, replicas=replicas),
    )


def _build_report(copies: Replicated, fabric: Fabric, room: Fabric, precision: Precision) -> CompileReport:
    """Build the report of a graph that was placed in `room`, a part of the fabric."""
    graph, placement, performance = copies.graph, copies.placement, copies.performance
    shapes = GraphShapes(graph.kernels, room).shapes_at(placement.fill)
    assert shapes is not None, "the kernels are placed"
    limit = find_limit(graph, placement, performance, shapes)
    changes: tuple[KernelChange, ...] = ()
    # A changed kernel is faster only if its layouts are the limit.
    if limit.reason in (Reason.FASTEST_LAYOUT, Reason.AREA_TOO_DEAR):
        kernel, cycles = graph.by_name[performance.bottleneck], performance.overall.deltat_cycles
        own = shapes[graph.kernels.index(kernel)]
        changes = tuple(estimate_kernel_changes(kernel, cycles, own, room, placement.fill))
    return CompileReport(
        fabric=fabric,
        batch_size=graph.batch_size,
        samples_per_s=performance.overall.samples_per_s,
        active_pes=performance.overall.active_pes,
        suggestions=suggest_for_pipeline(copies, limit, shapes, room, fabric, precision),
        explanations=explain_limit(graph, placement, performance, limit, shapes, room),
        changes=changes,
        precision=precision,
        pipelined=PipelinedPart(
            input_bytes_per_sample=graph.input_bytes_per_sample,
            kernels=report_kernels(graph, placement, performance),
            edges=graph.edges,
            placement=placement,
            performance=performance,
            limit=limit,
        ),
    )


def report_kernels(
    graph: KernelGraph, placement: Placement, performance: Performance
) -> tuple[KernelReport, ...]:
    """Return all kernels of a placed graph in data-flow order."""
    return tuple(
        KernelReport(
            kernel,
            placement.rects[kernel.name],
            placement.layouts[kernel.name].memory_per_pe_bytes,
            performance.kernels[kernel.name],
            placement.layouts[kernel.name].memory,
        )
        for kernel in graph.kernels
    )


def _explain_replicas(
    explanations: tuple[str, ...], limit: Limit, replicas: ReplicaReport, room: Fabric
) -> tuple[str, ...]:
    """Write sentences on the limit of several copies, then on that of one copy.

    Args:
        explanations: sentences on the limit of one copy.
        limit: of the speed of one copy.
        replicas: the copies.
        room: the box of one copy.
    """
    copies = replicas.copies
    if copies.count > 1 and limit.reason is Reason.WAFER_FULL:
        explanations = (
            f"Each of the {copies.count:,} copies has a box of {room.width:,} x {room.height:,} PEs, in "
            "which faster layouts of all kernels do not fit together; a copy is faster if there are fewer "
            "of them, or if the model is smaller.",
        )
    if copies.exchange.cycles:
        share = format_percent(replicas.exchange_percent)
        explanations = (
            f"Emptying and exchange take the same time for every batch size, now {share} of a step.",
            *explanations,
        )
    return explanations


def build_streamed_report(
    step: StreamedStep,
    placed: Sequence[PlacedLayer],
    recomputed: frozenset[int],
    fabric: Fabric,
    room_bytes: int,
    precision: Precision = "float32",
    pipelined_rate: float | None = None,
) -> CompileReport:
    """Build the report of a step that is executed by weight streaming.

    Args:
        step: the step.
        placed: its placed layers.
        recomputed: indices of the layers whose backward part recomputes the forward part.
        fabric: the whole wafer.
        room_bytes: memory for the activations of a batch.
        precision: of activations and their gradients.
        pipelined_rate: predicted rate with all layers on the wafer at once; None if unknown.
    """
    costs, is_split = layer_costs(placed, step, recomputed), step.micro_batches > 1

    def estimate(times: int, share: float, costs: Sequence[LayerCost]) -> StreamedPerformance:
        # The peak of a step in micro-batches is that of one of them, otherwise that of all samples.
        parts = math.ceil(step.micro_batches * times * share) if is_split else 1
        return estimate_streamed_step(
            costs,
            times * step.batch_size,
            round(peak_bytes(step.schedule) * (1 if is_split else times * share)),
            room_bytes,
            joined_update=any(one.joined for one in step.schedule.rounds),
            fabric=fabric,
            micro_batches=parts,
        )

    performance = estimate(1, 1.0, costs)
    layers = tuple(
        LayerReport(layer, cost.traffic, time, index in recomputed)
        for index, (layer, cost, time) in enumerate(zip(placed, costs, performance.layers, strict=True))
    )
    part = StreamedPart(layers, performance)
    part = replace(part, kernel=find_slowest_kernel(part.slowest.placed, fabric))
    return CompileReport(
        fabric=fabric,
        batch_size=step.batch_size,
        samples_per_s=step.batch_size / performance.step_s,
        active_pes=max(layer.plan.active_pes for layer in placed),
        suggestions=suggest_for_layers(
            placed, costs, part.kernel, estimate, step.batch_size, precision, fabric, pipelined_rate
        ),
        explanations=explain_layers(part.kernel, performance),
        precision=precision,
        streamed=part,
    )

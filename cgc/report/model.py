"""The figures of a compile report, which all its forms render."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.layers.streamed import StreamedStep
from cgc.layers.traffic import LayerTraffic, peak_bytes
from cgc.performance.layers import (
    LayerTime,
    PlacedLayer,
    StreamedPerformance,
    estimate_streamed_step,
    layer_costs,
)
from cgc.performance.model import MEMORY, Figures, Performance, estimate
from cgc.performance.replicas import Replicated
from cgc.placement.model import Placement, Rect
from cgc.placement.shapes import GraphShapes, KernelShapes
from cgc.report.suggestions import Limit, Reason, find_limit, suggest_improvements
from cgc.report.what_if import (
    KernelChange,
    SlowestKernel,
    StepChange,
    estimate_kernel_changes,
    estimate_step_changes,
    find_slowest_kernel,
)
from cs_toolkit.fabric import Fabric
from cs_toolkit.step import Precision


@dataclass(frozen=True)
class KernelReport:
    """A kernel with its rectangle and its estimated figures."""

    kernel: Kernel
    rectangle: Rect
    memory_per_pe_bytes: int
    figures: Figures


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
class CompileReport:
    """The figures of a pipelined step, unrounded.

    Attributes:
        fabric: the fabric of all copies.
        batch_size: samples of a step.
        input_bytes_per_sample: bytes that the hosts send.
        kernels: in data-flow order.
        edges: streams between the kernels.
        placement: of all kernels.
        performance: estimates of time on the wafer.
        limit: the limit of the pipeline's speed.
        suggestions: sentences on what would lift it.
        changes: estimated changes of the kernel that bounds the speed, each by itself; empty unless the
            kernel's layouts are the limit.
        notices: sentences with the reasons for this kind of execution.
        precision: of activations and their gradients.
        replicas: set if the model may have several copies on the wafer; then kernels, edges and placement
            are those of one copy, at the origin, and the overall performance is that of all.
    """

    fabric: Fabric
    batch_size: int
    input_bytes_per_sample: int
    kernels: tuple[KernelReport, ...]
    edges: tuple[Edge, ...]
    placement: Placement
    performance: Performance
    limit: Limit
    suggestions: tuple[str, ...]
    changes: tuple[KernelChange, ...] = ()
    notices: tuple[str, ...] = ()
    precision: Precision = "float32"
    replicas: ReplicaReport | None = None

    @cached_property
    def bottleneck(self) -> KernelReport | None:
        """The kernel that bounds the speed; None if the host input does."""
        name = self.performance.bottleneck
        return next((row for row in self.kernels if row.kernel.name == name), None)

    @cached_property
    def as_slow(self) -> int:
        """Number of other kernels with as many cycles as the one that bounds the speed."""
        if self.bottleneck is None or self.limit.kind == MEMORY:
            return 0
        cycles = self.bottleneck.figures.deltat_cycles
        return sum(row.figures.deltat_cycles == cycles for row in self.kernels) - 1


def build_report(graph: KernelGraph, placement: Placement, fabric: Fabric) -> CompileReport:
    """Build the report of a placed graph."""
    return _build_report(graph, placement, estimate(graph, placement, fabric), fabric, fabric)


def build_replicas_report(copies: Replicated, tried: tuple[Replicated, ...], fabric: Fabric) -> CompileReport:
    """Build the report of a model that may have several copies on the wafer.

    Args:
        copies: the placed copies.
        tried: the counts that the compiler compared; empty if the user gave the count.
        fabric: the fabric of all copies.
    """
    boxes = copies.boxes
    own = {"width": fabric.width // boxes.columns, "height": fabric.height // boxes.rows}
    room = fabric.model_copy(update=own)
    report = _build_report(copies.graph, copies.placement, copies.performance, fabric, room)
    if copies.count == 1 and not tried:
        return report
    replicas = ReplicaReport(copies, tried or (copies,))
    suggestions = _suggest_for_replicas(report, replicas, room)
    batch_size = copies.count * copies.samples
    return replace(report, batch_size=batch_size, suggestions=suggestions, replicas=replicas)


def _build_report(
    graph: KernelGraph, placement: Placement, performance: Performance, fabric: Fabric, room: Fabric
) -> CompileReport:
    """Build the report of a graph that was placed in `room`, a part of the fabric."""
    shapes = GraphShapes(graph.kernels, room).at(placement.fill)
    assert shapes is not None, "the kernels are placed"
    limit = find_limit(graph, placement, performance, shapes)
    changes = _estimate_bottleneck(graph, placement, performance, limit, shapes, room)
    kernels = tuple(
        KernelReport(
            kernel,
            placement.rects[kernel.name],
            placement.layouts[kernel.name].memory_per_pe_bytes,
            performance.kernels[kernel.name],
        )
        for kernel in graph.kernels
    )
    return CompileReport(
        fabric=fabric,
        batch_size=graph.batch_size,
        input_bytes_per_sample=graph.input_bytes_per_sample,
        kernels=kernels,
        edges=graph.edges,
        placement=placement,
        performance=performance,
        limit=limit,
        suggestions=suggest_improvements(graph, placement, performance, limit, shapes, room, changes),
        changes=changes,
    )


def _estimate_bottleneck(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    limit: Limit,
    shapes: Sequence[KernelShapes],
    room: Fabric,
) -> tuple[KernelChange, ...]:
    """Estimate changes of the kernel that bounds the speed; none unless its layouts are the limit."""
    if limit.reason not in (Reason.FASTEST_LAYOUT, Reason.AREA_TOO_DEAR):
        return ()
    kernel = graph.by_name[performance.bottleneck]
    own = shapes[graph.kernels.index(kernel)]
    return tuple(
        estimate_kernel_changes(kernel, performance.overall.deltat_cycles, own, room, placement.fill)
    )


def _suggest_for_replicas(report: CompileReport, replicas: ReplicaReport, room: Fabric) -> tuple[str, ...]:
    """Write sentences on what would make several copies faster: a larger batch, then a faster copy."""
    copies = replicas.copies
    suggestions = report.suggestions
    if copies.count > 1 and report.limit.reason is Reason.WAFER_FULL:
        suggestions = (
            f"Each of the {copies.count:,} copies has a box of {room.width:,} x {room.height:,} PEs, in "
            "which faster layouts of all kernels do not fit together; a copy is faster if there are fewer "
            "of them, or if the model is smaller.",
        )
    if copies.exchange.cycles:
        cycles = 2 * copies.samples * copies.one.deltat_cycles + copies.exchange.cycles
        doubled = 2 * report.fabric.clock_hz * copies.count * copies.samples / cycles
        suggestions = (
            "Emptying and exchange take the same time for every batch size, now "
            f"{replicas.exchange_percent:.1f}% of a step: with twice as many samples a step the rate would "
            f"be about {doubled:,.0f} samples/s.",
            *suggestions,
        )
    return suggestions


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
class StreamedReport:
    """The figures of a streamed step, unrounded.

    Attributes:
        fabric: the whole wafer.
        batch_size: samples of a step.
        layers: in the order of the forward pass.
        performance: estimates of time on the wafer.
        notices: sentences with the reasons for this kind of execution.
        precision: of activations and their gradients.
        changes: estimated changes of the step, each by itself.
        kernel: the slowest kernel of the layer that computes the longest.
    """

    fabric: Fabric
    batch_size: int
    layers: tuple[LayerReport, ...]
    performance: StreamedPerformance
    notices: tuple[str, ...] = ()
    precision: Precision = "float32"
    changes: tuple[StepChange, ...] = ()
    kernel: SlowestKernel | None = None

    @property
    def samples_per_s(self) -> float:
        """Rate on the wafer."""
        return self.batch_size / self.performance.step_s

    @property
    def most_exposed(self) -> LayerReport:
        """The layer with the most transfer that compute does not hide."""
        return max(self.layers, key=lambda layer: layer.time.exposed_s)

    @property
    def slowest(self) -> LayerReport:
        """The layer that computes the longest."""
        return max(self.layers, key=lambda layer: layer.time.compute_s)

    @property
    def active_pes(self) -> int:
        """PEs of the largest layer."""
        return max(layer.placed.plan.active_pes for layer in self.layers)

    @property
    def recomputed(self) -> list[LayerReport]:
        """Layers whose backward part recomputes the forward part."""
        return [layer for layer in self.layers if layer.recomputed]


def build_streamed_report(
    step: StreamedStep,
    placed: Sequence[PlacedLayer],
    recomputed: frozenset[int],
    fabric: Fabric,
    room_bytes: int,
) -> StreamedReport:
    """Build the report of a step that is executed by weight streaming.

    Args:
        step: the step.
        placed: its placed layers.
        recomputed: indices of the layers whose backward part recomputes the forward part.
        fabric: the whole wafer.
        room_bytes: memory for the activations of a batch.
    """
    costs, is_split = layer_costs(placed, step, recomputed), step.micro_batches > 1

    def estimate(times: int, share: float) -> StreamedPerformance:
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

    performance = estimate(1, 1.0)
    layers = tuple(
        LayerReport(layer, cost.traffic, time, index in recomputed)
        for index, (layer, cost, time) in enumerate(zip(placed, costs, performance.layers, strict=True))
    )
    report = StreamedReport(fabric, step.batch_size, layers, performance)
    return replace(
        report,
        changes=estimate_step_changes(performance, estimate, step.batch_size),
        kernel=find_slowest_kernel(report.slowest.placed, fabric),
    )

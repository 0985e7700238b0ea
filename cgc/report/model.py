"""The result object that all forms of the compile report are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.layers.streamed import StreamedStep
from cgc.layers.traffic import LayerTraffic, peak_bytes
from cgc.manifest import Provenance
from cgc.performance.layers import (
    LayerTime,
    PlacedLayer,
    StreamedPerformance,
    layer_costs,
    streamed_performance,
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
    """One kernel: what it is, where it lies, what it is expected to do."""

    kernel: Kernel
    rectangle: Rect
    memory_per_pe_bytes: int
    figures: Figures


@dataclass(frozen=True)
class ReplicaReport:
    """The copies of the model on the wafer.

    Attributes:
        copies: those that are there.
        tried: where the number was left to the compiler, all numbers that it has compared; else `copies`.
    """

    copies: Replicated
    tried: tuple[Replicated, ...]

    @property
    def exchange_percent(self) -> float:
        """Share of a step in which a copy takes no samples, 0 to 100."""
        return 100 * self.copies.exchange.cycles / self.copies.step_cycles


@dataclass(frozen=True)
class CompileReport:
    """Everything a compile report shows, unrounded.

    Attributes:
        fabric: what was compiled for.
        batch_size: samples of a step.
        input_bytes_per_sample: what the hosts send.
        kernels: in data-flow order.
        edges: what streams between them.
        placement: of all kernels.
        performance: estimates of time on the wafer.
        limit: what keeps the pipeline from being faster.
        suggestions: sentences on what would lift it.
        changes: what changes of the kernel that bounds the speed would do, each alone; none where it is not
            the kernel itself that limits it.
        notices: sentences on why the step is executed so.
        precision: what activations and their gradients are computed in.
        replicas: where the model may stand on the wafer several times; then kernels, edges and placement are
            those of one copy, at the origin, and the overall performance is that of all.
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
        """The kernel that bounds the speed; None where the host input does."""
        name = self.performance.bottleneck
        return next((row for row in self.kernels if row.kernel.name == name), None)

    @cached_property
    def as_slow(self) -> int:
        """How many other kernels need as many cycles as the one that bounds the speed."""
        if self.bottleneck is None or self.limit.kind == MEMORY:
            return 0
        cycles = self.bottleneck.figures.deltat_cycles
        return sum(row.figures.deltat_cycles == cycles for row in self.kernels) - 1


def build_report(graph: KernelGraph, placement: Placement, fabric: Fabric) -> CompileReport:
    """Collects a placed graph and its estimates."""
    return _report(graph, placement, estimate(graph, placement, fabric), fabric, fabric)


def build_replicas_report(copies: Replicated, tried: tuple[Replicated, ...], fabric: Fabric) -> CompileReport:
    """Collects the placed copies of a model and their estimates.

    Args:
        copies: the copies.
        tried: the numbers that the compiler has compared, none where the user has given one.
        fabric: for all copies.
    """
    boxes = copies.boxes
    own = {"width": fabric.width // boxes.columns, "height": fabric.height // boxes.rows}
    room = fabric.model_copy(update=own)
    report = _report(copies.graph, copies.placement, copies.performance, fabric, room)
    if copies.count == 1 and not tried:
        return report
    replicas = ReplicaReport(copies, tried or (copies,))
    suggestions = _suggestions(report, replicas, room)
    batch_size = copies.count * copies.samples
    return replace(report, batch_size=batch_size, suggestions=suggestions, replicas=replicas)


def _report(
    graph: KernelGraph, placement: Placement, performance: Performance, fabric: Fabric, room: Fabric
) -> CompileReport:
    """The report of a graph that was placed in a part of the fabric."""
    shapes = GraphShapes(graph.kernels, room).at(placement.fill)
    assert shapes is not None, "the kernels are placed"
    limit = find_limit(graph, placement, performance, shapes)
    changes = _bottleneck_changes(graph, placement, performance, limit, shapes, room)
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


def _bottleneck_changes(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    limit: Limit,
    shapes: Sequence[KernelShapes],
    room: Fabric,
) -> tuple[KernelChange, ...]:
    """What would make the kernel faster that bounds the speed, where its layouts do."""
    if limit.reason not in (Reason.FASTEST_LAYOUT, Reason.AREA_TOO_DEAR):
        return ()
    kernel = graph.by_name[performance.bottleneck]
    own = shapes[graph.kernels.index(kernel)]
    return tuple(
        estimate_kernel_changes(kernel, performance.overall.deltat_cycles, own, room, placement.fill)
    )


def _suggestions(report: CompileReport, replicas: ReplicaReport, room: Fabric) -> tuple[str, ...]:
    """What would make several copies faster: a larger batch, then what would make each of them faster."""
    copies = replicas.copies
    found = report.suggestions
    if copies.count > 1 and report.limit.reason is Reason.WAFER_FULL:
        found = (
            f"Each of the {copies.count:,} copies has a box of {room.width:,} x {room.height:,} PEs, in "
            "which faster layouts of all kernels do not fit together; a copy is faster where there are fewer "
            "of them, or where the model is smaller.",
        )
    if copies.exchange.cycles:
        cycles = 2 * copies.samples * copies.one.deltat_cycles + copies.exchange.cycles
        doubled = 2 * report.fabric.clock_hz * copies.count * copies.samples / cycles
        found = (
            "Emptying and exchange take as long however large the batch is, now "
            f"{replicas.exchange_percent:.1f}% of a step: with twice as many samples a step it would be "
            f"about {doubled:,.0f} samples/s.",
            *found,
        )
    return found


@dataclass(frozen=True)
class LayerReport:
    """One layer.

    Attributes:
        placed: its name, and how it lies on the wafer.
        traffic: bytes that come and go in a pass.
        time: seconds in a step.
        recomputed: its backward part computes the forward part again.
    """

    placed: PlacedLayer
    traffic: LayerTraffic
    time: LayerTime
    recomputed: bool


@dataclass(frozen=True)
class StreamedReport:
    """What the report shows, unrounded.

    Attributes:
        fabric: the whole wafer.
        batch_size: samples of a step.
        layers: in the order of the forward pass.
        performance: estimates of time on the wafer.
        notices: sentences on why the step is executed so.
        precision: what activations and their gradients are computed in.
        changes: what changes of the step would do, each alone.
        kernel: the one that sets the pace of the layer that computes the longest.
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
        """The rate on the wafer."""
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
        """PEs of the layer that takes the most."""
        return max(layer.placed.plan.active_pes for layer in self.layers)

    @property
    def recomputed(self) -> list[LayerReport]:
        """Layers whose backward part computes the forward part again."""
        return [layer for layer in self.layers if layer.recomputed]


def build_streamed_report(
    step: StreamedStep,
    placed: Sequence[PlacedLayer],
    recomputed: frozenset[int],
    fabric: Fabric,
    room_bytes: int,
) -> StreamedReport:
    """Collects a step in layers and its estimates.

    Args:
        step: the step.
        placed: its layers.
        recomputed: those of them whose backward part computes the forward part again.
        fabric: the whole wafer.
        room_bytes: what there is for the activations of a batch.
    """
    costs, is_cut = layer_costs(placed, step, recomputed), step.micro_batches > 1

    def estimate(times: int, share: float) -> StreamedPerformance:
        """A step that is cut has the activations of a part; one that is not has those of all samples."""
        parts = math.ceil(step.micro_batches * times * share) if is_cut else 1
        return streamed_performance(
            costs,
            times * step.batch_size,
            round(peak_bytes(step.schedule) * (1 if is_cut else times * share)),
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


_LABEL_WIDTH = 47


def describe_compilation(
    precision: Precision, batch_size: int, fabric: Fabric, made: Provenance | None
) -> list[tuple[str, str]]:
    """Lines of (label, text): the program as far as it is known, then what holds for every step."""
    known = dict((made or Provenance()).lines())
    size = f"{fabric.name}, {fabric.width:,} x {fabric.height:,} PEs at {fabric.clock_hz / 1e6:,.0f} MHz"
    lines = {
        "Model": known.pop("Model", ""),
        "Program": known.pop("Program", ""),
        "Command": known.pop("Command", ""),
        "Precision": str(precision),
        "Batch": f"{batch_size:,} samples a step",
        "Fabric": size,
        **known,
    }
    return [(label, text) for label, text in lines.items() if text]


def render_compiled(lines: Sequence[tuple[str, str]]) -> str:
    """The same as text, in the layout of the head."""
    return "\n".join(f"{label + ':':<{_LABEL_WIDTH}}{text}" for label, text in lines)

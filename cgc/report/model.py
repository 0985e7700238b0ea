"""The result object that all forms of the compile report are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.performance.model import MEMORY, Figures, Performance, estimate
from cgc.performance.replicas import Replicated
from cgc.placement.model import Placement, Rect
from cgc.placement.shapes import GraphShapes, KernelShapes
from cgc.report.levers import Lever, find_levers
from cgc.report.limit import Limit, Reason, find_limit
from cgc.report.remedy import find_remedies
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
        remedies: sentences on what would lift it.
        levers: what changes of the kernel that bounds the speed would do, each alone; none where it is not
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
    remedies: tuple[str, ...]
    levers: tuple[Lever, ...] = ()
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


def compile_report(graph: KernelGraph, placement: Placement, fabric: Fabric) -> CompileReport:
    """Collects a placed graph and its estimates."""
    return _report(graph, placement, estimate(graph, placement, fabric), fabric, fabric)


def replicas_report(copies: Replicated, tried: tuple[Replicated, ...], fabric: Fabric) -> CompileReport:
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
    remedies = _remedies(report, replicas, room)
    batch_size = copies.count * copies.samples
    return replace(report, batch_size=batch_size, remedies=remedies, replicas=replicas)


def _report(
    graph: KernelGraph, placement: Placement, performance: Performance, fabric: Fabric, room: Fabric
) -> CompileReport:
    """The report of a graph that was placed in a part of the fabric."""
    shapes = GraphShapes(graph.kernels, room).at(placement.fill)
    assert shapes is not None, "the kernels are placed"
    limit = find_limit(graph, placement, performance, shapes)
    levers = _levers(graph, placement, performance, limit, shapes, room)
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
        remedies=find_remedies(graph, placement, performance, limit, shapes, room, levers),
        levers=levers,
    )


def _levers(
    graph: KernelGraph,
    placement: Placement,
    performance: Performance,
    limit: Limit,
    shapes: Sequence[KernelShapes],
    room: Fabric,
) -> tuple[Lever, ...]:
    """What would make the kernel faster that bounds the speed, where its layouts do."""
    if limit.reason not in (Reason.FASTEST_LAYOUT, Reason.AREA_TOO_DEAR):
        return ()
    kernel = graph.by_name[performance.bottleneck]
    own = shapes[graph.kernels.index(kernel)]
    return tuple(find_levers(kernel, performance.overall.deltat_cycles, own, room, placement.fill))


def _remedies(report: CompileReport, replicas: ReplicaReport, room: Fabric) -> tuple[str, ...]:
    """What would make several copies faster: a larger batch, then what would make each of them faster."""
    copies = replicas.copies
    found = report.remedies
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

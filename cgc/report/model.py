"""The result object that all forms of the compile report are made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from cgc.kernels.graph import Edge, Kernel, KernelGraph
from cgc.performance.model import MEMORY, Figures, Performance, estimate
from cgc.placement.model import Placement, Rect
from cgc.placement.shapes import GraphShapes
from cgc.report.limit import Limit, find_limit
from cgc.report.remedy import find_remedies
from cs_toolkit.fabric import Fabric


@dataclass(frozen=True)
class KernelReport:
    """One kernel: what it is, where it lies, what it is expected to do."""

    kernel: Kernel
    rectangle: Rect
    memory_per_pe_bytes: int
    figures: Figures


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
        notices: sentences on why the step is executed so.
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
    notices: tuple[str, ...] = ()

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
    performance = estimate(graph, placement, fabric)
    shapes = GraphShapes(graph.kernels, fabric).at(placement.fill)
    assert shapes is not None, "the kernels are placed"
    limit = find_limit(graph, placement, performance, shapes)
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
        remedies=find_remedies(graph, placement, performance, limit, shapes, fabric),
    )

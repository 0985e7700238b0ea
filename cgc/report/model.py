"""The result object that all forms of the compile report are made of."""

from __future__ import annotations

from dataclasses import dataclass

from cgc.fabric import Fabric
from cgc.kernels.graph import Kernel, KernelGraph
from cgc.performance.model import Figures, Performance, estimate
from cgc.placement.model import Placement, Rect


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
        kernels: in data-flow order.
        placement: of all kernels.
        performance: estimates of time on the wafer.
    """

    fabric: Fabric
    batch_size: int
    kernels: tuple[KernelReport, ...]
    placement: Placement
    performance: Performance


def compile_report(graph: KernelGraph, placement: Placement, fabric: Fabric) -> CompileReport:
    """Collects a placed graph and its estimates."""
    performance = estimate(graph, placement, fabric)
    kernels = tuple(
        KernelReport(
            kernel,
            placement.rects[kernel.name],
            placement.layouts[kernel.name].memory_per_pe_bytes,
            performance.kernels[kernel.name],
        )
        for kernel in graph.kernels
    )
    return CompileReport(fabric, graph.batch_size, kernels, placement, performance)

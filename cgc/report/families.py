"""The kernels of a report by family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cgc.kernels.graph import Kernel
from cgc.report.model import KernelReport, LayerReport


@dataclass(frozen=True)
class FamilySum:
    """All kernels of a family.

    Attributes:
        family: its name.
        kernels: how many there are.
        generated: how many of them are generated.
        active_pes: PEs of their rectangles.
        active_pes_percent: share of the fabric.
        samples_per_s: rate of the slowest of them.
        compute_utilization_percent: share of the time in which those PEs run kernel code.
    """

    family: str
    kernels: int
    generated: int
    active_pes: int
    active_pes_percent: float
    samples_per_s: float
    compute_utilization_percent: float


def sum_families(kernels: Sequence[KernelReport]) -> list[FamilySum]:
    """The families of some kernels, those with the most PEs first."""
    by_family: dict[str, list[KernelReport]] = {}
    for row in kernels:
        by_family.setdefault(row.kernel.family, []).append(row)
    sums = [_sum(family, rows) for family, rows in by_family.items()]
    return sorted(sums, key=lambda one: (-one.active_pes, one.family))


def _sum(family: str, rows: Sequence[KernelReport]) -> FamilySum:
    pes = sum(row.figures.active_pes for row in rows)
    busy = sum(row.figures.active_pes * row.figures.compute_utilization_percent for row in rows)
    return FamilySum(
        family=family,
        kernels=len(rows),
        generated=sum(row.kernel.generated for row in rows),
        active_pes=pes,
        active_pes_percent=sum(row.figures.active_pes_percent for row in rows),
        samples_per_s=min(row.figures.samples_per_s for row in rows),
        compute_utilization_percent=busy / pes,
    )


@dataclass(frozen=True)
class LayeredFamilySum:
    """All kernels of a family, whatever layer they are in; copies of a layer are not counted again.

    Attributes:
        family: its name.
        kernels: how many there are.
        generated: how many of them are generated.
        layers: that have some of them.
        pace_s: compute time of a step in which a kernel of this family is the slowest of its layer.
        pe_time_percent: share of the PEs of all kernels, each for the compute time of its layer, 0 to 100.
        compute_utilization_percent: share of that time in which those PEs run kernel code, 0 to 100.
    """

    family: str
    kernels: int
    generated: int
    layers: int
    pace_s: float
    pe_time_percent: float
    compute_utilization_percent: float


@dataclass(frozen=True)
class _Use:
    """A kernel of a layer: PEs times seconds of all copies in a step, and how many of them are busy."""

    kernel: Kernel
    layer: str
    pace_s: float
    pe_s: float
    busy_pe_s: float


def sum_layer_families(layers: Sequence[LayerReport]) -> list[LayeredFamilySum]:
    """The families of the kernels of all layers, those that set the pace the longest first."""
    by_family: dict[str, list[_Use]] = {}
    for layer in layers:
        for use in _uses(layer):
            by_family.setdefault(use.kernel.family, []).append(use)
    pe_s = sum(use.pe_s for uses in by_family.values() for use in uses)
    sums = [_layered_sum(family, uses, pe_s) for family, uses in by_family.items()]
    return sorted(sums, key=lambda one: (-one.pace_s, -one.pe_time_percent, one.family))


def _uses(layer: LayerReport) -> Iterator[_Use]:
    plan, compute_s = layer.placed.plan, layer.time.compute_s
    if plan.copies is None or plan.graph is None:
        return
    slowest, placement = plan.slowest_kernel, plan.copies.placement
    for kernel in plan.graph.kernels:
        rect, busy = placement.rects[kernel.name], placement.layouts[kernel.name].busy_pe_cycles
        copies_s = plan.copies.count * compute_s
        yield _Use(
            kernel,
            layer.placed.name,
            pace_s=compute_s if kernel is slowest else 0.0,
            pe_s=rect.area * copies_s,
            busy_pe_s=busy / plan.copies.cycles * copies_s,
        )


def _layered_sum(family: str, uses: Sequence[_Use], all_pe_s: float) -> LayeredFamilySum:
    pe_s = sum(use.pe_s for use in uses)
    return LayeredFamilySum(
        family=family,
        kernels=len(uses),
        generated=sum(use.kernel.generated for use in uses),
        layers=len({use.layer for use in uses}),
        pace_s=sum(use.pace_s for use in uses),
        pe_time_percent=100 * pe_s / all_pe_s if all_pe_s else 0.0,
        compute_utilization_percent=100 * sum(use.busy_pe_s for use in uses) / pe_s if pe_s else 0.0,
    )

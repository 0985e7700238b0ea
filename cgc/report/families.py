"""Sums of a report's kernels by family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cgc.kernels.graph import Kernel
from cgc.report.model import KernelReport, LayerReport


@dataclass(frozen=True)
class FamilySum:
    """Sums of the kernels of a family.

    Attributes:
        family: name of the family.
        kernels: number of kernels.
        generated: number of generated kernels.
        active_pes: PEs of their rectangles.
        active_pes_percent: those PEs as a share of the fabric.
        samples_per_s: rate of the slowest kernel.
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
    """Sum kernels by family, the families with the most PEs first."""
    by_family: dict[str, list[KernelReport]] = {}
    for row in kernels:
        by_family.setdefault(row.kernel.family, []).append(row)
    sums = []
    for family, rows in by_family.items():
        pes = sum(row.figures.active_pes for row in rows)
        busy = sum(row.figures.active_pes * row.figures.compute_utilization_percent for row in rows)
        one = FamilySum(
            family=family,
            kernels=len(rows),
            generated=sum(row.kernel.generated for row in rows),
            active_pes=pes,
            active_pes_percent=sum(row.figures.active_pes_percent for row in rows),
            samples_per_s=min(row.figures.samples_per_s for row in rows),
            compute_utilization_percent=busy / pes,
        )
        sums.append(one)
    return sorted(sums, key=lambda one: (-one.active_pes, one.family))


@dataclass(frozen=True)
class LayeredFamilySum:
    """Sums of the kernels of a family in all layers; a layer counts once, however many copies it has.

    Attributes:
        family: name of the family.
        kernels: number of kernels.
        generated: number of generated kernels.
        layers: number of layers with kernels of this family.
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
    """A kernel of a layer, with the PE seconds of all copies in a step and the busy ones of them."""

    kernel: Kernel
    layer: str
    pace_s: float
    pe_s: float
    busy_pe_s: float


def sum_layer_families(layers: Sequence[LayerReport]) -> list[LayeredFamilySum]:
    """Sum the kernels of all layers by family, the families that are the slowest for the longest first."""
    by_family: dict[str, list[_Use]] = {}
    for layer in layers:
        for use in _list_uses(layer):
            by_family.setdefault(use.kernel.family, []).append(use)
    pe_s = sum(use.pe_s for uses in by_family.values() for use in uses)
    sums = [_sum_uses(family, uses, pe_s) for family, uses in by_family.items()]
    return sorted(sums, key=lambda one: (-one.pace_s, -one.pe_time_percent, one.family))


def _list_uses(layer: LayerReport) -> Iterator[_Use]:
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


def _sum_uses(family: str, uses: Sequence[_Use], all_pe_s: float) -> LayeredFamilySum:
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

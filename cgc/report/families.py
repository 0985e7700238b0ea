"""The kernels of a report by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cgc.report.model import KernelReport


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


def family_sums(kernels: Sequence[KernelReport]) -> list[FamilySum]:
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

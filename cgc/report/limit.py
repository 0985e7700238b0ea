"""What limits the speed of a placed pipeline, and why it cannot be faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cgc.kernels.graph import KernelGraph
from cgc.performance.model import INPUT, MEMORY, Performance
from cgc.placement.model import Placement
from cgc.placement.shapes import KernelShapes
from cgc.placement.targets import AREA_PER_SPEED, paying_target


class Reason(Enum):
    """Why the pipeline is not faster."""

    HOST_INPUT = "host_input"
    """The Ethernet links bring samples more slowly than every kernel takes them."""
    ACTIVATIONS = "activations"
    """Samples wait until the wafer's memory has room for their activations."""
    WAFER_FULL = "wafer_full"
    """Faster layouts of all kernels would pay, but together they do not fit on the fabric."""
    FASTEST_LAYOUT = "fastest_layout"
    """The slowest kernel has no faster layout that fits the fabric and the memory of its PEs."""
    AREA_TOO_DEAR = "area_too_dear"
    """Faster layouts exist and would fit, but cost more area than they are worth to the placer."""


@dataclass(frozen=True)
class Limit:
    """What limits the speed.

    Attributes:
        kind: "compute", "transmission", "area" or "memory".
        reason: why.
    """

    kind: str
    reason: Reason


def find_limit(
    graph: KernelGraph, placement: Placement, performance: Performance, shapes: Sequence[KernelShapes]
) -> Limit:
    """Tells the limits apart.

    The placer takes the lowest target of cycles that pays and packs. So area limits the speed where the
    target is above both the one that pays and the fastest layout of every kernel.
    """
    if performance.bottleneck == INPUT:
        return Limit(performance.limit, Reason.HOST_INPUT)
    if performance.limit == MEMORY:
        return Limit(MEMORY, Reason.ACTIVATIONS)
    fastest = {kernel.name: int(own.cycles[0]) for kernel, own in zip(graph.kernels, shapes, strict=True)}
    if placement.target_cycles > max(*fastest.values(), paying_target(graph, AREA_PER_SPEED)):
        return Limit("area", Reason.WAFER_FULL)
    slowest_is_fixed = (
        fastest[performance.bottleneck] >= performance.kernels[performance.bottleneck].deltat_cycles
    )
    return Limit(performance.limit, Reason.FASTEST_LAYOUT if slowest_is_fixed else Reason.AREA_TOO_DEAR)

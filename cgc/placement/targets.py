"""Targets of cycles per sample, and what they cost in area.

Speed must pay: area A and target T are traded at the minimum of A * T ** AREA_PER_SPEED, so that one percent
of speed never costs more than about AREA_PER_SPEED percent of area. Without that rule a single small layer
would fill the wafer for the last few cycles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cgc.kernels.configurations import Floats, Ints
from cgc.kernels.families import configurations
from cgc.kernels.graph import KernelGraph
from cgc.placement.shapes import KernelShapes

AREA_PER_SPEED = 4.0
"""Percent of area that one percent of speed may cost at most, where no kernel and no area pins the speed. Of
the published rows that is nearly so for the Transformer of width 16: from 2.5 on the model is within 1 % of
it, with 2 it is 9 % slower."""

MOST_OF_FABRIC = 0.9
"""Share of the fabric that kernels at their smallest take at most where they fit there at a lower speed. With
what packing adds that is what published reports of full wafers stop at, 90 to 92 %; the rest is left to wires
and I/O."""

_UNBOUNDED = 1 << 30


def paying_target(graph: KernelGraph, area_per_speed: float) -> int:
    """The target in cycles below which speed costs too much area, whatever the size of the fabric."""
    shared = {id(layouts := configurations(kernel)): layouts for kernel in graph.kernels}
    unbounded = {key: KernelShapes(layouts, layouts.by_pace, _UNBOUNDED) for key, layouts in shared.items()}
    kernels = [unbounded[id(configurations(kernel))] for kernel in graph.kernels]
    targets = targets_from(kernels, max(int(kernel.cycles[0]) for kernel in kernels))
    cost = np.log(areas(kernels, targets)) + area_per_speed * np.log(targets)
    return int(targets[np.argmin(cost)])


def targets_from(shapes: Sequence[KernelShapes], start: int) -> Ints:
    """`start` and all higher targets at which some kernel becomes smaller, ascending."""
    distinct = list({id(kernel): kernel for kernel in shapes}.values())
    steps: Ints = np.concatenate([kernel.steps() for kernel in distinct])
    return np.unique(np.append(steps[steps > start], start))


def areas(shapes: Sequence[KernelShapes], targets: Ints) -> Floats:
    """Area of all kernels together at each target."""
    counts: dict[int, int] = {}
    for kernel in shapes:
        counts[id(kernel)] = counts.get(id(kernel), 0) + 1
    distinct = {id(kernel): kernel for kernel in shapes}
    total = np.zeros(len(targets))
    for key, count in counts.items():
        total += count * distinct[key].least_areas(targets)
    return total

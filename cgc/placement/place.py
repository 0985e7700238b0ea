"""Chooses the size and the place of every kernel.

The pipeline is as fast as its slowest kernel. So all kernels get one target of cycles per sample, each takes
the smallest rectangle that keeps it, and the target is the lowest one at which all rectangles pack into the
fabric.

Two things end the search before the fabric is full. No target is below the cycles of a kernel that cannot be
split further: the others would only wait for it. And speed must pay: area A and target T are traded at the
minimum of A * T ** AREA_PER_SPEED, so that one percent of speed never costs more than about AREA_PER_SPEED
percent of area. Without that rule a single small layer would fill the wafer for the last few cycles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cgc.errors import PlacementError
from cgc.fabric import Fabric
from cgc.kernels.configurations import Floats, Ints
from cgc.kernels.families import configurations
from cgc.kernels.graph import KernelGraph
from cgc.placement.model import Placement, Rect
from cgc.placement.packing import Packing, packings
from cgc.placement.shapes import KernelShapes, kernel_shapes
from cgc.placement.wires import neighbours, shorten_wires, wire_length

AREA_PER_SPEED = 4.0
"""Percent of area that one percent of speed may cost at most."""

_UNBOUNDED = 1 << 30
_BOXES_PER_HALVING = 4


def place(graph: KernelGraph, fabric: Fabric, area_per_speed: float = AREA_PER_SPEED) -> Placement:
    """Places all kernels of a graph; the result depends on nothing but the arguments.

    Args:
        graph: kernels in data-flow order.
        fabric: where to place them.
        area_per_speed: percent of area that one percent of speed may cost; larger values use more of the
            fabric.

    Raises:
        PlacementError: a kernel does not fit, or all of them together do not: which, what is needed and
            available.
        KernelGraphError: parameters of a kernel that its cost function cannot use.
    """
    if not graph.kernels:
        raise PlacementError(
            "the graph has no kernels, expected at least one; compile a step that computes something"
        )
    shapes = kernel_shapes(graph.kernels, fabric)
    floor = max(int(kernel.cycles[0]) for kernel in shapes)
    start = max(floor, paying_target(graph, area_per_speed))
    target = _lowest_target(graph, shapes, fabric, start)
    packing = _shortest(graph, shapes, fabric, target)
    return _placement(graph, shapes, fabric, target, packing)


def paying_target(graph: KernelGraph, area_per_speed: float) -> int:
    """The target in cycles below which speed costs too much area, whatever the size of the fabric."""
    shared = {id(layouts := configurations(kernel)): layouts for kernel in graph.kernels}
    unbounded = {key: KernelShapes(layouts, _UNBOUNDED, _UNBOUNDED) for key, layouts in shared.items()}
    kernels = [unbounded[id(configurations(kernel))] for kernel in graph.kernels]
    targets = _targets(kernels, max(int(kernel.cycles[0]) for kernel in kernels))
    cost = np.log(_areas(kernels, targets)) + area_per_speed * np.log(targets)
    return int(targets[np.argmin(cost)])


def _targets(shapes: Sequence[KernelShapes], start: int) -> Ints:
    """`start` and all higher targets at which some kernel becomes smaller, ascending."""
    distinct = list({id(kernel): kernel for kernel in shapes}.values())
    steps: Ints = np.concatenate([kernel.steps() for kernel in distinct])
    return np.unique(np.append(steps[steps > start], start))


def _areas(shapes: Sequence[KernelShapes], targets: Ints) -> Floats:
    """Area of all kernels together at each target."""
    counts: dict[int, int] = {}
    for kernel in shapes:
        counts[id(kernel)] = counts.get(id(kernel), 0) + 1
    distinct = {id(kernel): kernel for kernel in shapes}
    total = np.zeros(len(targets))
    for key, count in counts.items():
        total += count * distinct[key].least_areas(targets)
    return total


def _lowest_target(graph: KernelGraph, shapes: Sequence[KernelShapes], fabric: Fabric, start: int) -> int:
    targets = _targets(shapes, start)
    areas = _areas(shapes, targets)
    possible = int(np.argmax(areas <= fabric.processing_elements))
    if areas[possible] > fabric.processing_elements:
        raise PlacementError(_too_large(graph, shapes, fabric, int(areas[-1])))
    packed = _first_packed(shapes, fabric, targets, possible)
    if packed is None:
        raise PlacementError(_too_large(graph, shapes, fabric, int(areas[-1])))
    return int(targets[packed])


def _first_packed(shapes: Sequence[KernelShapes], fabric: Fabric, targets: Ints, first: int) -> int | None:
    """Index of the lowest target from `first` on that packs: growing strides up, then halving back."""
    failed, stride = first - 1, 1
    packed = first
    while not _packs(shapes, fabric, int(targets[packed])):
        if packed == len(targets) - 1:
            return None
        failed, packed = packed, min(len(targets) - 1, packed + stride)
        stride *= 2
    while packed - failed > 1:
        middle = (packed + failed) // 2
        if _packs(shapes, fabric, int(targets[middle])):
            packed = middle
        else:
            failed = middle
    return packed


def _packs(shapes: Sequence[KernelShapes], fabric: Fabric, target: int) -> bool:
    lists = [kernel.at(target) for kernel in shapes]
    return any(True for _ in packings(lists, fabric.width, fabric.height))


def _shortest(graph: KernelGraph, shapes: Sequence[KernelShapes], fabric: Fabric, target: int) -> Packing:
    """The packing of the shortest wires in the smallest box, of the fabric's proportions, that works."""
    lists = [kernel.at(target) for kernel in shapes]
    edges = neighbours(graph)
    area = sum(kernel.smallest.area for kernel in lists)
    for width, height in _boxes(fabric, area):
        found = list(packings(lists, width, height))
        if found:
            best = min(found, key=lambda packing: wire_length(packing, edges))
            return shorten_wires(best, edges)
    raise AssertionError("the target was chosen because the kernels pack")


def _boxes(fabric: Fabric, area: int) -> Iterator[tuple[int, int]]:
    """Boxes in the fabric's proportions, from the first one that has `area` PEs up to the fabric."""
    for step in range(40 * _BOXES_PER_HALVING, -1, -1):
        scale = 2.0 ** (-step / _BOXES_PER_HALVING)
        width, height = round(fabric.width * scale), round(fabric.height * scale)
        if width * height >= area:
            yield width, height


def _placement(
    graph: KernelGraph, shapes: Sequence[KernelShapes], fabric: Fabric, target: int, packing: Packing
) -> Placement:
    names = [kernel.name for kernel in graph.kernels]
    rects = [Rect(spot.x, spot.y, spot.shape.width, spot.shape.height) for spot in packing]
    layouts = [kernel.layouts[spot.shape.layout] for kernel, spot in zip(shapes, packing, strict=True)]
    active = sum(rect.area for rect in rects)
    return Placement(
        fabric=fabric.name,
        rects=dict(zip(names, rects, strict=True)),
        layouts=dict(zip(names, layouts, strict=True)),
        target_cycles=target,
        active_pes=active,
        total_utilization=active / fabric.processing_elements,
        wire_length=wire_length(packing, neighbours(graph)),
    )


def _too_large(graph: KernelGraph, shapes: Sequence[KernelShapes], fabric: Fabric, area: int) -> str:
    smallest = [kernel.least_area(int(kernel.cycles[-1])) for kernel in shapes]
    largest = int(np.argmax(smallest))
    return (
        f"the {len(graph.kernels)} kernels do not fit together: at their smallest they take {area:,} PEs, "
        f"available are {fabric.processing_elements:,} ({fabric.width} x {fabric.height}) on {fabric.name}; "
        f"the largest is {graph.kernels[largest].name} with {smallest[largest]:,} PEs; "
        "make the model smaller, or run it with weight streaming"
    )

"""The rectangles that a kernel may take on a fabric at a target of cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cgc.errors import PlacementError, Shortage
from cgc.kernels.configurations import Configurations, Floats, Ints
from cgc.kernels.families import configurations
from cgc.kernels.graph import Kernel, KernelGraph
from cgc.placement.engine.tree import NO_EXTENT
from cs_toolkit.fabric import Fabric

# Percent of area that one percent of speed may cost, where neither a kernel nor the area limits the speed. Of
# the published results, only the Transformer of width 16 comes close to that case: with 2.5 or more, the
# model is within 1 % of it; with 2, it is 9 % slower.
AREA_PER_SPEED = 4.0

# Maximum share of the fabric for the smallest areas of the kernels, unless a lower speed does not help. With
# the overhead of packing, kernels take the 90 to 92 % of published reports of full wafers; wires and I/O need
# the rest.
MAX_FABRIC_SHARE = 0.9

AREA_SLACK = 1.3  # maximum area of a rectangle relative to the smallest: other proportions pack better

_UNBOUNDED = 1 << 30


def economical_target(graph: KernelGraph, area_per_speed: float) -> int:
    """Return the target in cycles below which speed costs too much area, regardless of the fabric's size."""
    shared = {id(layouts := configurations(kernel)): layouts for kernel in graph.kernels}
    unbounded = {key: KernelShapes(layouts, layouts.by_cycles, _UNBOUNDED) for key, layouts in shared.items()}
    kernels = [unbounded[id(configurations(kernel))] for kernel in graph.kernels]
    targets = targets_from(kernels, max(int(kernel.cycles[0]) for kernel in kernels))
    cost = np.log(areas(kernels, targets)) + area_per_speed * np.log(targets)
    return int(targets[np.argmin(cost)])


def targets_from(shapes: Sequence[KernelShapes], start: int) -> Ints:
    """Return `start` and all higher targets at which some kernel becomes smaller, ascending."""
    distinct = list({id(kernel): kernel for kernel in shapes}.values())
    steps: Ints = np.concatenate([kernel.steps for kernel in distinct])
    return np.unique(np.append(steps[steps > start], start))


def areas(shapes: Sequence[KernelShapes], targets: Ints) -> Floats:
    """Return the least total area of all kernels at each target."""
    counts: dict[int, int] = {}
    for kernel in shapes:
        counts[id(kernel)] = counts.get(id(kernel), 0) + 1
    distinct = {id(kernel): kernel for kernel in shapes}
    total = np.zeros(len(targets))
    for key, count in counts.items():
        total += count * distinct[key].min_areas(targets)
    return total


@dataclass(frozen=True)
class Shape:
    """A rectangle that a kernel may take: a layout, turned by 90 degrees or not."""

    width: int
    height: int
    layout: int

    @property
    def area(self) -> int:
        """PEs of the rectangle."""
        return self.width * self.height


@dataclass(frozen=True)
class ShapeList:
    """The Pareto front of a kernel's rectangles: height ascends, width descends.

    Attributes:
        shapes: the rectangles.
        heights: minimum height by width, for widths from 0 to the longer side of the fabric.
    """

    shapes: tuple[Shape, ...]
    heights: Ints

    def smallest_within(self, width: int, height: int) -> Shape:
        """Return the rectangle with the smallest area within the limits; on ties, the flattest."""
        fitting = (shape for shape in self.shapes if shape.width <= width and shape.height <= height)
        return min(fitting, key=lambda shape: shape.area)


class KernelShapes:
    """The usable layouts of a kernel, ordered by cycles.

    Args:
        layouts: all layouts of the kernel.
        chosen: indices of the usable ones in `layouts`, by ascending cycles.
        limit: longest side of a rectangle.
    """

    def __init__(self, layouts: Configurations, chosen: Ints, limit: int) -> None:
        self.layouts = layouts
        self._chosen = chosen
        self._limit = limit
        self.cycles: Ints = layouts.cycles[chosen]
        self._least_area: Ints = np.minimum.accumulate(layouts.area[chosen])
        self._lists: dict[int, ShapeList] = {}

    @property
    def fastest(self) -> int:
        """Index in `layouts` of the layout with the fewest cycles; on ties, the smallest."""
        return int(self._chosen[0])

    def min_area(self, target: int) -> int:
        """Return the smallest area that meets `target` cycles; requires target >= cycles[0]."""
        return int(self._least_area[np.searchsorted(self.cycles, target, side="right") - 1])

    def min_areas(self, targets: Ints) -> Floats:
        """Return the smallest area at each target, infinite where no layout is fast enough."""
        index = np.searchsorted(self.cycles, targets, side="right") - 1
        return np.where(index < 0, np.inf, self._least_area[np.maximum(index, 0)].astype(np.float64))

    @cached_property
    def steps(self) -> Ints:
        """The targets at which the smallest area changes, ascending."""
        return np.unique(self.cycles[np.concatenate([[True], np.diff(self._least_area) < 0])])

    def heights(self, target: float) -> Ints:
        """Return the least height by width at a target, over both orientations (`engine.problem.Curves`)."""
        return self.shapes_at(target).heights

    def shapes_at(self, target: float) -> ShapeList:
        """Return the rectangles to try at a target, in both orientations."""
        count = int(np.searchsorted(self.cycles, target, side="right"))
        if count not in self._lists:
            self._lists[count] = self._pareto(self._chosen[:count], int(self._least_area[count - 1]))
        return self._lists[count]

    def _pareto(self, chosen: Ints, smallest: int) -> ShapeList:
        chosen = chosen[self.layouts.area[chosen] <= AREA_SLACK * smallest]
        widths, heights = self.layouts.width[chosen], self.layouts.height[chosen]
        both_w, both_h = np.concatenate([widths, heights]), np.concatenate([heights, widths])
        layout = np.concatenate([chosen, chosen])
        inside = (both_w <= self._limit) & (both_h <= self._limit)
        both_w, both_h, layout = both_w[inside], both_h[inside], layout[inside]
        shapes: list[Shape] = []
        for index in np.lexsort((layout, both_w, both_h)):
            if not shapes or both_w[index] < shapes[-1].width:
                shapes.append(Shape(int(both_w[index]), int(both_h[index]), int(layout[index])))
        heights = np.full(self._limit + 1, NO_EXTENT, dtype=np.int64)
        for shape in shapes:
            heights[shape.width] = shape.height
        return ShapeList(tuple(shapes), np.minimum.accumulate(heights))


class GraphShapes:
    """The layouts of a graph's kernels that fit on a fabric.

    Args:
        kernels: kernels in the order of the graph.
        fabric: the fabric to place them on.

    Raises:
        PlacementError: no layout of a kernel fits the fabric and the memory of a PE.
    """

    def __init__(self, kernels: Sequence[Kernel], fabric: Fabric) -> None:
        self._limit = max(fabric.width, fabric.height)
        # Of the layouts by ascending cycles, the bytes that each leaves for activations.
        self._room: dict[int, tuple[Configurations, Ints]] = {}
        self._shapes: dict[tuple[int, int], KernelShapes] = {}
        self._kernels = [(kernel, configurations(kernel)) for kernel in kernels]
        for kernel, layouts in self._kernels:
            if id(layouts) not in self._room:
                fitting = layouts.where(fits_on(layouts, fabric))
                self._room[id(layouts)] = fitting, room_for_activations(fitting, fabric)[fitting.by_cycles]
            if kernel.stash_bytes(0) > self._room[id(layouts)][1].max(initial=-1):
                raise kernel_too_large(kernel, kernels, fabric)

    def shapes_at(self, fill: float) -> list[KernelShapes] | None:
        """Return the layouts of each kernel with room for its activations; None if a kernel has none.

        Kernels with equal layouts share one object.

        Args:
            fill: samples in flight relative to a full pipeline, as for `Kernel.stash_bytes`.
        """
        by_stash: dict[tuple[int, int], KernelShapes] = {}  # repeated layers have equal kernels
        found = []
        for kernel, layouts in self._kernels:
            stash_bytes = kernel.stash_bytes(fill)
            key = id(layouts), stash_bytes
            if key not in by_stash:
                by_stash[key] = self._with_room(layouts, stash_bytes)
            found.append(by_stash[key])
        return None if any(len(shapes.cycles) == 0 for shapes in found) else found

    def _with_room(self, layouts: Configurations, stash_bytes: int) -> KernelShapes:
        fitting, room = self._room[id(layouts)]
        has_room = room >= stash_bytes
        key = id(layouts), int(np.count_nonzero(has_room))
        if key not in self._shapes:
            self._shapes[key] = KernelShapes(fitting, fitting.by_cycles[has_room], self._limit)
        return self._shapes[key]


def kernel_shapes(kernels: Sequence[Kernel], fabric: Fabric) -> list[KernelShapes]:
    """Return the layouts of each kernel that fit on a fabric with the activations of one sample.

    Raises:
        PlacementError: no layout of a kernel fits.
    """
    shapes = GraphShapes(kernels, fabric).shapes_at(0)
    assert shapes is not None
    return shapes


Mask = NDArray[np.bool_]


def fits_on(layouts: Configurations, fabric: Fabric) -> Mask:
    """Return a mask of the layouts that fit on the fabric in either orientation."""
    upright: Mask = (layouts.width <= fabric.width) & (layouts.height <= fabric.height)
    rotated: Mask = (layouts.width <= fabric.height) & (layouts.height <= fabric.width)
    return upright | rotated


def room_for_activations(layouts: Configurations, fabric: Fabric) -> Ints:
    """Return the bytes that each layout leaves for activations; negative if a PE's memory is exceeded."""
    free: Ints = layouts.area * fabric.memory_per_pe_bytes - layouts.held
    room: Ints = np.where(layouts.memory_per_pe_bytes <= fabric.memory_per_pe_bytes, free, -1)
    return room


def _bytes_per_pe(kernel: Kernel) -> Ints:
    """Return the bytes of the fullest PE of each layout, with the activations of one sample."""
    layouts = configurations(kernel)
    spread = -(-(layouts.held + kernel.stash_bytes(0)) // layouts.area)
    needed: Ints = np.maximum(layouts.memory_per_pe_bytes, spread)
    return needed


def shortage(kernels: Sequence[Kernel], fabric: Fabric) -> Shortage:
    """Compute which resources a graph lacks on a fabric, even with one sample at a time."""
    needs: dict[tuple[int, int], tuple[int, int]] = {}
    keys = [(id(configurations(kernel)), kernel.stash_bytes(0)) for kernel in kernels]
    for key, kernel in zip(keys, kernels, strict=True):
        if key not in needs:
            needs[key] = _least_resources(kernel, fabric)
    largest = max(range(len(kernels)), key=lambda index: needs[keys[index]][0])
    fullest = max(range(len(kernels)), key=lambda index: needs[keys[index]][1])
    return Shortage(
        needed_pes=sum(needs[key][0] for key in keys),
        available_pes=fabric.processing_elements,
        largest_kernel=kernels[largest].name,
        largest_kernel_pes=needs[keys[largest]][0],
        fullest_kernel=kernels[fullest].name,
        needed_bytes_per_pe=needs[keys[fullest]][1],
        available_bytes_per_pe=fabric.memory_per_pe_bytes,
    )


def _least_resources(kernel: Kernel, fabric: Fabric) -> tuple[int, int]:
    """Return the least PEs of a kernel and the least bytes of its fullest PE."""
    layouts, needed = configurations(kernel), _bytes_per_pe(kernel)
    overfull = np.maximum(1.0, needed / fabric.memory_per_pe_bytes)
    fitting = overfull == 1.0
    # If every layout exceeds the memory of a PE, count the PEs whose memory would be enough.
    area = np.where(fitting, layouts.area, np.inf) if fitting.any() else np.ceil(layouts.area * overfull)
    usable = fits_on(layouts, fabric)
    return int(area.min()), int(needed[usable].min() if usable.any() else needed.min())


def kernel_too_large(kernel: Kernel, kernels: Sequence[Kernel], fabric: Fabric) -> PlacementError:
    """Return the error for a kernel none of whose layouts fits."""
    layouts = configurations(kernel)
    usable = layouts.where(fits_on(layouts, fabric))
    figures = shortage(kernels, fabric)
    if len(usable) == 0:
        smallest = layouts[int(np.argmin(layouts.area))]
        problem = f"its smallest rectangle is {smallest.width} x {smallest.height} PEs, available are "
        advice = "split the layer"
    else:
        needed = _bytes_per_pe(kernel)[fits_on(layouts, fabric)]
        best = usable[int(np.argmin(needed))]
        problem = (
            f"spread over {best.width} x {best.height} PEs it needs {needed.min():,} bytes per "
            f"PE, available are {fabric.memory_per_pe_bytes:,} on "
        )
        advice = "make the layer smaller, or use 16-bit parameters"
    size = f"{fabric.width} x {fabric.height} PEs of {fabric.name}"
    return PlacementError(
        f"kernel {kernel.name}{_line_of(kernel)} does not fit: {problem}{size}{_together(kernels, figures)}; "
        f"{advice}",
        figures,
        kernel.name,
        kernel.source,
    )


def _together(kernels: Sequence[Kernel], figures: Shortage) -> str:
    if figures.needed_pes <= figures.available_pes or len(kernels) == 1:
        return ""
    times = figures.needed_pes / figures.available_pes
    return (
        f"; all {len(kernels):,} kernels together take at least {figures.needed_pes:,} PEs, {times:.1f} "
        f"times the {figures.available_pes:,} of the fabric"
    )


def graph_too_large(kernels: Sequence[Kernel], fabric: Fabric) -> PlacementError:
    """Return the error for kernels that fit individually but not together."""
    figures = shortage(kernels, fabric)
    largest = next(kernel for kernel in kernels if kernel.name == figures.largest_kernel)
    times = figures.needed_pes / figures.available_pes
    room = f"; {times:.1f} times as many are needed" if times > 1 else "; no way to place all was found"
    return PlacementError(
        f"the {len(kernels):,} kernels do not fit together: at their smallest they take "
        f"{figures.needed_pes:,} PEs, available are {figures.available_pes:,} ({fabric.width} x "
        f"{fabric.height}) on {fabric.name}{room}; the largest is {largest.name}{_line_of(largest)} with "
        f"{figures.largest_kernel_pes:,} PEs; make the model smaller: fewer or narrower layers, shorter "
        "sequences",
        figures,
        largest.name,
        largest.source,
    )


def _line_of(kernel: Kernel) -> str:
    return f" ({kernel.source})" if kernel.source else ""

"""The rectangles that a kernel may take on a fabric at a target of cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cgc.kernels.configurations import Configurations, Floats, Ints
from cgc.kernels.families import configurations
from cgc.kernels.graph import Kernel
from cgc.placement.engine.tree import NEVER
from cgc.placement.shortage import fits_on, kernel_too_large, room_for_activations
from cs_toolkit.fabric import Fabric

AREA_SLACK = 1.3
"""A rectangle may take this much more than the smallest one where its proportions suit the packing."""


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
    """Rectangles of one kernel, none inside another: height ascends, width descends.

    Attributes:
        shapes: the rectangles.
        heights: least height by width, 0 .. the longer side of the fabric.
    """

    shapes: tuple[Shape, ...]
    heights: Ints

    def inside(self, width: int, height: int) -> Shape:
        """The rectangle of the smallest area within the limits; of equal ones the flattest."""
        fitting = (shape for shape in self.shapes if shape.width <= width and shape.height <= height)
        return min(fitting, key=lambda shape: shape.area)


class KernelShapes:
    """Layouts of a kernel, ordered by cycles.

    Args:
        layouts: all layouts.
        chosen: positions of those that may be used, by ascending cycles.
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
        """The layout of the fewest cycles, of equal ones the smallest: a position in `layouts`."""
        return int(self._chosen[0])

    def least_area(self, target: int) -> int:
        """Smallest area that keeps `target` cycles; requires target >= cycles[0]."""
        return int(self._least_area[np.searchsorted(self.cycles, target, side="right") - 1])

    def least_areas(self, targets: Ints) -> Floats:
        """`least_area` of many targets, infinite where no layout is fast enough."""
        index = np.searchsorted(self.cycles, targets, side="right") - 1
        return np.where(index < 0, np.inf, self._least_area[np.maximum(index, 0)].astype(np.float64))

    def steps(self) -> Ints:
        """The targets at which the smallest area changes, ascending."""
        return np.unique(self.cycles[np.concatenate([[True], np.diff(self._least_area) < 0])])

    def heights(self, target: float) -> Ints:
        """Least height by width at a target, both orientations; see `cgc.placement.engine.problem.Curves`."""
        return self.at(target).heights

    def at(self, target: float) -> ShapeList:
        """The rectangles worth trying at a target, both orientations, on a square of the longer side."""
        count = int(np.searchsorted(self.cycles, target, side="right"))
        if count not in self._lists:
            self._lists[count] = self._pareto(self._chosen[:count], int(self._least_area[count - 1]))
        return self._lists[count]

    def _pareto(self, chosen: Ints, least: int) -> ShapeList:
        chosen = chosen[self.layouts.area[chosen] <= AREA_SLACK * least]
        widths, heights = self.layouts.width[chosen], self.layouts.height[chosen]
        both_w, both_h = np.concatenate([widths, heights]), np.concatenate([heights, widths])
        layout = np.concatenate([chosen, chosen])
        inside = (both_w <= self._limit) & (both_h <= self._limit)
        both_w, both_h, layout = both_w[inside], both_h[inside], layout[inside]
        shapes: list[Shape] = []
        for index in np.lexsort((layout, both_w, both_h)):
            if not shapes or both_w[index] < shapes[-1].width:
                shapes.append(Shape(int(both_w[index]), int(both_h[index]), int(layout[index])))
        heights = np.full(self._limit + 1, NEVER, dtype=np.int64)
        for shape in shapes:
            heights[shape.width] = shape.height
        return ShapeList(tuple(shapes), np.minimum.accumulate(heights))


class GraphShapes:
    """The layouts of all kernels of a graph that a fabric can hold.

    Args:
        kernels: in the order of the graph.
        fabric: to place them on.

    Raises:
        PlacementError: no layout of a kernel fits: it is too large for the fabric, or for the memory of a PE.
    """

    def __init__(self, kernels: Sequence[Kernel], fabric: Fabric) -> None:
        self._limit = max(fabric.width, fabric.height)
        self._room: dict[int, tuple[Configurations, Ints]] = {}
        self._shapes: dict[tuple[int, int], KernelShapes] = {}
        self._kernels = [(kernel, configurations(kernel)) for kernel in kernels]
        for kernel, layouts in self._kernels:
            if id(layouts) not in self._room:
                fitting = layouts.where(fits_on(layouts, fabric))
                self._room[id(layouts)] = fitting, room_for_activations(fitting, fabric)
            if kernel.stash_bytes(0) > self._room[id(layouts)][1].max(initial=-1):
                raise kernel_too_large(kernel, kernels, fabric)

    def at(self, fill: float) -> list[KernelShapes] | None:
        """The layouts of each kernel with room for its activations, None where some kernel has none.

        Kernels of equal layouts share one object.

        Args:
            fill: samples in flight, see `Kernel.stash_bytes`.
        """
        rooms: dict[tuple[int, int], KernelShapes] = {}  # layers that repeat have equal kernels
        found = []
        for kernel, layouts in self._kernels:
            stash_bytes = kernel.stash_bytes(fill)
            room = id(layouts), stash_bytes
            if room not in rooms:
                rooms[room] = self._with_room(layouts, stash_bytes)
            found.append(rooms[room])
        return None if any(len(shapes.cycles) == 0 for shapes in found) else found

    def _with_room(self, layouts: Configurations, stash_bytes: int) -> KernelShapes:
        fitting, room = self._room[id(layouts)]
        enough = fitting.by_pace[room[fitting.by_pace] >= stash_bytes]
        key = id(layouts), len(enough)
        if key not in self._shapes:
            self._shapes[key] = KernelShapes(fitting, enough, self._limit)
        return self._shapes[key]


def kernel_shapes(kernels: Sequence[Kernel], fabric: Fabric) -> list[KernelShapes]:
    """The layouts of each kernel on a fabric with room for the activations of a sample.

    Raises:
        PlacementError: no layout of a kernel fits.
    """
    shapes = GraphShapes(kernels, fabric).at(0)
    assert shapes is not None
    return shapes

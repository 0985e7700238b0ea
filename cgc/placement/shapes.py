"""The rectangles that a kernel may take on a fabric at a target of cycles."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cgc.errors import PlacementError
from cgc.fabric import Fabric
from cgc.kernels.configurations import Configurations, Floats, Ints
from cgc.kernels.families import configurations
from cgc.kernels.graph import Kernel

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
    """Rectangles of one kernel, none inside another: height ascends, width descends."""

    shapes: tuple[Shape, ...]

    @cached_property
    def heights(self) -> list[int]:
        """Heights, ascending."""
        return [shape.height for shape in self.shapes]

    @cached_property
    def _negative_widths(self) -> list[int]:
        return [-shape.width for shape in self.shapes]

    @cached_property
    def smallest(self) -> Shape:
        """The rectangle of the smallest area; of equal ones the most square."""
        return min(self.shapes, key=lambda shape: (shape.area, abs(shape.width - shape.height)))

    def flattest(self, max_width: int, max_height: int) -> Shape | None:
        """The rectangle of least height within the limits."""
        index = bisect_left(self._negative_widths, -max_width)
        if index == len(self.shapes) or self.shapes[index].height > max_height:
            return None
        return self.shapes[index]

    def column(self, max_height: int) -> Shape | None:
        """The rectangle that opens a column of a shelf best: little area, little of the column left open."""
        count = bisect_right(self.heights, max_height)
        if count == 0:
            return None
        return min(self.shapes[:count], key=lambda shape: shape.width * (shape.height + max_height))

    def spread(self, count: int) -> Sequence[Shape]:
        """At most `count` of the rectangles, evenly over all proportions, the smallest one first."""
        if len(self.shapes) <= count:
            return self.shapes
        picks = np.linspace(0, len(self.shapes) - 1, count - 1).round().astype(int)
        return list(dict.fromkeys([self.smallest, *(self.shapes[index] for index in picks)]))


class KernelShapes:
    """All layouts of a kernel that a fabric can hold, ordered by cycles."""

    def __init__(self, layouts: Configurations, width: int, height: int) -> None:
        order = np.lexsort((layouts.area, layouts.cycles))
        self.layouts = layouts
        self._order = order
        self._width, self._height = width, height
        self.cycles: Ints = layouts.cycles[order]
        self._least_area: Ints = np.minimum.accumulate(layouts.area[order])
        self._lists: dict[int, ShapeList] = {}

    def least_area(self, target: int) -> int:
        """Smallest area that keeps `target` cycles; requires target >= cycles[0]."""
        return int(self._least_area[np.searchsorted(self.cycles, target, side="right") - 1])

    def least_areas(self, targets: Ints) -> Floats:
        """`least_area` of many targets, infinite where no layout is fast enough."""
        index = np.searchsorted(self.cycles, targets, side="right") - 1
        return np.where(index < 0, np.inf, self._least_area[np.maximum(index, 0)].astype(np.float64))

    def steps(self) -> Ints:
        """The targets at which the smallest area changes, ascending."""
        steps: Ints = self.cycles[np.concatenate([[True], np.diff(self._least_area) < 0])]
        return steps

    def at(self, target: int) -> ShapeList:
        """The rectangles worth trying at a target, both orientations, for the whole fabric."""
        count = int(np.searchsorted(self.cycles, target, side="right"))
        if count not in self._lists:
            self._lists[count] = self._pareto(self._order[:count], int(self._least_area[count - 1]))
        return self._lists[count]

    def _pareto(self, chosen: Ints, least: int) -> ShapeList:
        chosen = chosen[self.layouts.area[chosen] <= AREA_SLACK * least]
        widths, heights = self.layouts.width[chosen], self.layouts.height[chosen]
        both_w, both_h = np.concatenate([widths, heights]), np.concatenate([heights, widths])
        layout = np.concatenate([chosen, chosen])
        inside = (both_w <= self._width) & (both_h <= self._height)
        both_w, both_h, layout = both_w[inside], both_h[inside], layout[inside]
        shapes: list[Shape] = []
        for index in np.lexsort((layout, both_w, both_h)):
            if not shapes or both_w[index] < shapes[-1].width:
                shapes.append(Shape(int(both_w[index]), int(both_h[index]), int(layout[index])))
        return ShapeList(tuple(shapes))


def kernel_shapes(kernels: Iterable[Kernel], fabric: Fabric) -> list[KernelShapes]:
    """The layouts of each kernel that fit on the fabric; equal kernels share one object.

    Raises:
        PlacementError: no layout of a kernel fits: it is too large for the fabric, or for the memory of a PE.
    """
    shared: dict[int, KernelShapes] = {}
    found = []
    for kernel in kernels:
        layouts = configurations(kernel)
        if id(layouts) not in shared:
            usable = layouts.where(_inside(layouts, fabric))
            fitting = usable.where(usable.memory_per_pe_bytes <= fabric.memory_per_pe_bytes)
            if len(fitting) == 0:
                raise PlacementError(_refusal(kernel, layouts, usable, fabric))
            shared[id(layouts)] = KernelShapes(fitting, fabric.width, fabric.height)
        found.append(shared[id(layouts)])
    return found


def _inside(layouts: Configurations, fabric: Fabric) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    upright = (layouts.width <= fabric.width) & (layouts.height <= fabric.height)
    turned = (layouts.width <= fabric.height) & (layouts.height <= fabric.width)
    inside: np.ndarray[tuple[int], np.dtype[np.bool_]] = upright | turned
    return inside


def _refusal(kernel: Kernel, layouts: Configurations, usable: Configurations, fabric: Fabric) -> str:
    where = f" ({kernel.source})" if kernel.source else ""
    size = f"{fabric.width} x {fabric.height} PEs of {fabric.name}"
    if len(usable) == 0:
        smallest = layouts[int(np.argmin(layouts.area))]
        return (
            f"kernel {kernel.name}{where} does not fit: its smallest rectangle is {smallest.width} x "
            f"{smallest.height} PEs, available are {size}; split the layer"
        )
    best = usable[int(np.argmin(usable.memory_per_pe_bytes))]
    return (
        f"kernel {kernel.name}{where} does not fit: spread over {best.width} x {best.height} PEs it needs "
        f"{best.memory_per_pe_bytes:,} bytes per PE, available are {fabric.memory_per_pe_bytes:,} on {size}; "
        "make the layer smaller, use 16-bit parameters, or run the model with weight streaming"
    )

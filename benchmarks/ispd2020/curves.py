"""The smallest rectangles of a kernel that keep a target time and the memory limit.

For one target all useful execution arguments are covered in closed form: h' and w' count only through their
product and through ceil(H/h') * ceil(W/w'); c' is as large as the height that is allowed has room for; k' is
then the least one that keeps time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ispd2020.model import COPIES, ContestGraph, Convolution, Kernel, Splits
from cgc.kernels.configurations import useful_splits
from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.problem import Floorplan, Problem, Weights
from cgc.placement.engine.tree import NO_EXTENT, Floats, Ints, Node

Pair = tuple[int, int]
"""Values of h' and w'."""

_SLACK = 1e-9
_KEPT_CURVES = 400


def split_pairs(convolutions: Sequence[Convolution], largest: int) -> list[Pair]:
    """Values of (h', w') to consider, by rising product up to `largest`.

    For each product only those stay whose busiest tile has the fewest points; the convolutions of a block may
    prefer different ones.
    """
    sizes = sorted({(conv.rows, conv.columns) for conv in convolutions})
    rows, columns = max(size[0] for size in sizes), max(size[1] for size in sizes)
    found: dict[int, dict[tuple[int, ...], tuple[int, int]]] = {}
    for h in range(1, min(rows, largest) + 1):
        for w in range(1, min(columns, largest // h) + 1):
            points = tuple(-(-r // h) * -(-c // w) for r, c in sizes)
            found.setdefault(h * w, {}).setdefault(points, (h, w))
    pairs = []
    for product in sorted(found):
        options = found[product]
        for points, pair in options.items():
            dominated = any(
                other != points and all(a <= b for a, b in zip(other, points, strict=True))
                for other in options
            )
            if not dominated:
                pairs.append(pair)
    return pairs


@dataclass(frozen=True)
class Fixed:
    """Execution arguments of a kernel that are given, None where they are free.

    Attributes:
        rows: h'.
        columns: w'.
        first: c' of the first convolution.
        last: k' of the convolution that makes the output.
        last_convolution: which one that is.
    """

    rows: int | None = None
    columns: int | None = None
    first: int | None = None
    last: int | None = None
    last_convolution: int = 0

    def pairs(self, convolutions: Sequence[Convolution], largest: int) -> list[Pair]:
        """Values of (h', w') to consider, as `split_pairs`."""
        if self.rows is None and self.columns is None:
            return split_pairs(convolutions, largest)
        rows, columns = (
            useful_splits(max(sizes)).tolist() if given is None else [given]
            for given, sizes in (
                (self.rows, [conv.rows for conv in convolutions]),
                (self.columns, [conv.columns for conv in convolutions]),
            )
        )
        return [(h, w) for h in rows for w in columns if h * w <= largest]


@dataclass(frozen=True)
class Curve:
    """Least rectangles of a kernel at one target.

    Attributes:
        upright: least width of the kernel, not rotated, by the height it may take, 0 .. limit.
        heights: least extent in y, in the better rotation, by the extent in x it may take, 0 .. limit.
    """

    upright: Ints
    heights: Ints


def _useful(tables: Sequence[Floats | Ints]) -> list[int]:
    """Rows that no row before them equals or beats in every column of every table."""
    kept: list[int] = []
    for row in range(len(tables[0])):
        beaten = np.ones(len(kept), dtype=np.bool_)
        for table in tables:
            beaten[beaten] = (table[np.array(kept, dtype=np.int64)[beaten]] <= table[row]).all(axis=1)
        if not beaten.any():
            kept.append(row)
    return kept


class KernelCurves:
    """All rectangles of kernels with the same convolutions.

    Args:
        convolutions: what the kernels consist of.
        width: tiles of the fabric in x.
        height: tiles in y.
        memlimit: words of memory of a tile.
        most_splits: values of h' and w' to use at most, or None for all useful ones.
        fixed: numbers that are given.
    """

    def __init__(
        self,
        convolutions: Sequence[Convolution],
        width: int,
        height: int,
        memlimit: float,
        most_splits: int | None = None,
        fixed: Fixed | None = None,
    ) -> None:
        self._convolutions = tuple(convolutions)
        self._fixed = fixed = fixed or Fixed()
        self._memlimit = memlimit
        self._width, self._height = width, height
        self._limit = max(width, height)
        pairs = np.array(fixed.pairs(convolutions, self._limit // 2) or [(1, 1)], dtype=np.int64)
        if most_splits is not None and len(pairs) > most_splits:
            # Few splits of an image matter most: the products grow faster and faster.
            pairs = pairs[np.unique(np.geomspace(1, len(pairs), most_splits).astype(np.int64) - 1)]
        self._rows, self._columns = pairs[:, 0], pairs[:, 1]
        allowed = np.arange(self._limit + 1) // (self._rows * self._columns)[:, None] - 1
        parts = [
            self._parts(conv, allowed, fixed.first if conv is convolutions[0] else None)
            for conv in self._convolutions
        ]
        useful = _useful([table for part in parts for table in part])
        self._rows, self._columns = self._rows[useful], self._columns[useful]
        self._tables = [(time[useful], needed[useful]) for time, needed in parts]
        self._curves: dict[float, Curve] = {}
        self._last_widths: tuple[float, Ints] | None = None

    def _parts(self, conv: Convolution, allowed: Ints, first: int | None) -> tuple[Floats, Ints]:
        """Time of a tile per output channel, and the k' that memory needs, by pair and allowed height."""
        inputs = np.minimum(allowed, conv.inputs)
        if first is not None:
            inputs = np.where(allowed >= first, first, 0)
        safe = np.maximum(inputs, 1)
        points = -(-conv.rows // self._rows) * -(-conv.columns // self._columns)
        time = points[:, None] * -(-conv.inputs // safe) * conv.passes
        product = (self._rows * self._columns)[:, None]
        words = conv.inputs / safe * conv.filter_rows * conv.filter_columns + conv.activations / product
        needed = np.maximum(1, np.ceil(words * conv.outputs / self._memlimit * (1 - _SLACK)))
        # Where rounding put it one too low, by the very formula of `Convolution.performance`.
        weights = conv.inputs / safe * conv.outputs / needed * conv.filter_rows * conv.filter_columns
        memory = weights + conv.activations / product * conv.outputs / needed
        needed = needed.astype(np.int64) + (memory > self._memlimit)
        needed[(inputs < 1) | (needed > conv.outputs)] = NO_EXTENT
        return time.astype(np.float64), needed

    def at(self, target: float) -> Curve:
        """The least rectangles of time <= target."""
        curve = self._curves.get(target)
        if curve is None:
            upright = np.minimum.accumulate(self._widths(target).min(axis=0))
            turned = np.searchsorted(-upright, -np.arange(self._limit + 1)).astype(np.int64)
            turned[turned > self._limit] = NO_EXTENT
            if len(self._curves) >= _KEPT_CURVES:
                del self._curves[next(iter(self._curves))]
            curve = self._curves[target] = Curve(upright, np.minimum(upright, turned))
        return curve

    def heights(self, target: float) -> Ints:
        """The least extent in one direction by that in the other, in the better rotation."""
        return self.at(target).heights

    def _widths(self, target: float) -> Ints:
        """Least width by pair and allowed height; the last ones are kept, as many kernels share them."""
        if self._last_widths is not None and self._last_widths[0] == target:
            return self._last_widths[1]
        total = np.zeros((len(self._rows), self._limit + 1), dtype=np.int64)
        for conv, (time, needed) in zip(self._convolutions, self._tables, strict=True):
            # More channels than there are help nobody, and the target of free time is infinite.
            channels = np.floor(np.minimum(target / time, conv.outputs) + _SLACK).astype(np.int64)
            outputs = -(-conv.outputs // np.maximum(channels, 1))
            outputs[channels < 1] = NO_EXTENT
            total += COPIES * self._given(conv, np.maximum(outputs, needed))
        self._last_widths = target, np.minimum(total, NO_EXTENT)
        return self._last_widths[1]

    def _given(self, conv: Convolution, outputs: Ints) -> Ints:
        """The k' of the last convolution where that is given, `NO_EXTENT` where it is too small."""
        last = self._fixed.last
        if last is None or conv is not self._convolutions[self._fixed.last_convolution]:
            return outputs
        return np.where(outputs <= last, last, NO_EXTENT)

    def min_area(self, target: float) -> int:
        """Tiles of the smallest rectangle of time <= target; at least `NO_EXTENT` where there is none."""
        heights = np.arange(self._limit + 1)
        return int((self.at(target).upright * np.maximum(heights, 1)).min())

    def fits(self, target: float) -> bool:
        """Return whether a rectangle of time <= target fits on the fabric."""
        heights = self.at(target).heights
        return int(heights[self._width]) <= self._height

    def least_side(self, target: float) -> int:
        """The shorter side of the flattest rectangle of time <= target."""
        return int(self.at(target).heights[self._limit])

    def options(self, target: float, width: int, height: int) -> list[tuple[Splits, bool]]:
        """Execution arguments that keep a target inside a box, each with whether it is turned by 90 degrees.

        For each useful h' and w' and each rotation that fits there is one: c' as large as useful, k' as small
        as that allows.
        """
        widths = self._widths(target)
        found = []
        for turned, across, up in ((False, width, height), (True, height, width)):
            up = min(up, self._limit)
            for pair in np.nonzero(widths[:, up] <= across)[0]:
                least = int(np.argmax(widths[pair] <= widths[pair, up]))
                found.append((self._splits(target, int(pair), least), turned))
        return found

    def _splits(self, target: float, pair: int, height: int) -> Splits:
        rows, columns = int(self._rows[pair]), int(self._columns[pair])
        inputs, outputs = [], []
        for conv, (time, needed) in zip(self._convolutions, self._tables, strict=True):
            channels = max(1, math.floor(target / time[pair, height] + _SLACK))
            least = max(-(-conv.outputs // channels), int(needed[pair, height]))
            outputs.append(int(self._given(conv, np.array(least))))
            inputs.append(min(conv.inputs, height // (rows * columns) - 1))
        if self._fixed.first is not None:
            inputs[0] = self._fixed.first
        return Splits(rows, columns, tuple(inputs), tuple(outputs))


def graph_curves(
    kernels: Sequence[Kernel],
    width: int,
    height: int,
    memlimit: float,
    most_splits: int | None = None,
    fixed: Sequence[Fixed] | None = None,
) -> list[KernelCurves]:
    """The curves of each kernel; kernels with the same convolutions share one object."""
    shared: dict[tuple[tuple[Convolution, ...], Fixed], KernelCurves] = {}
    found = []
    for kernel, given in zip(kernels, fixed or [Fixed()] * len(kernels), strict=True):
        key = kernel.convolutions, given
        if key not in shared:
            shared[key] = KernelCurves(kernel.convolutions, width, height, memlimit, most_splits, given)
        found.append(shared[key])
    return found


TARGET_STEP = 0.0005
"""Targets are tried in steps of this share; all are powers of it, so that many are tried again."""

_MOST_STEPS_UP = 80
_MOST_WORSE = 4


class ContestProblem(Problem):
    """A graph with its rectangles; adapters are left out.

    Args:
        graph: the graph.
        kernel_curves: rectangles of each kernel.
    """

    def __init__(self, graph: ContestGraph, kernel_curves: Sequence[KernelCurves]) -> None:
        edges = [(edge.source, edge.target) for edge in graph.edges]
        super().__init__(
            graph.width, graph.height, kernel_curves, edges, Weights(graph.wdeltat, graph.wlength)
        )
        self.graph = graph
        self.kernel_curves = list(kernel_curves)

    def least_objective(self, target: float) -> float:
        """A bound of the objective of all floorplans at a target."""
        sides = [curve.least_side(target) for curve in self.kernel_curves]
        wires = sum(sides[source] + sides[sink] for source, sink in self.edges) / 2
        return self.weights.time * target + self.weights.wires * wires

    def realized(
        self, tree: Node, target: float, limit: float = math.inf, stop: Stop = lambda: False
    ) -> Floorplan | None:
        """A tree at the best target near the given one.

        Args:
            tree: the cuts.
            target: where to start.
            limit: an objective that must be beaten.
            stop: whether time is up.

        Returns:
            None where nothing that fits can be better than the limit.
        """
        found = self.floorplan(tree, target)
        steps = 0
        while found is None:
            target = step(target, 1 + 2 * TARGET_STEP)
            steps += 1
            if steps > _MOST_STEPS_UP or self.weights.time * target >= limit or stop():
                return None
            found = self.floorplan(tree, target)
        best, failures = found, 0
        while failures < _MOST_WORSE and not stop():
            target = step(target, 1 - TARGET_STEP)
            found = self.floorplan(tree, target)
            if found is None:
                break
            better = found.objective < best.objective
            best, failures = (found, 0) if better else (best, failures + 1)
        return best if best.objective < limit else None


def step(target: float, factor: float = 1.0) -> float:
    """The target of the grid nearest to `factor` times a target."""
    return float((1 + TARGET_STEP) ** round(math.log(target * factor) / math.log1p(TARGET_STEP)))

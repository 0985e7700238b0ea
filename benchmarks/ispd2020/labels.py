"""The execution arguments that a kernel may take where adapters cost.

A label of a kernel are its execution arguments with the rectangle and the time that follow. Of the numbers
that an adapter joins, h' and w' are shared with every neighbor, the first c' with the sources, the last k'
with the targets. So the best label need not be the smallest one, other than for time and area alone; a menu
lists those of a kernel that may be useful at one target time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.ispd2020.curves import Fixed
from benchmarks.ispd2020.model import COPIES, ContestGraph, Convolution, Kernel, Splits
from benchmarks.ispd2020.score import LAST_CONVOLUTION
from cgc.kernels.configurations import useful_splits
from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.tree import NO_EXTENT, Floats, Ints

_AREA_SLACK, _SPARE_SHARE = 1.5, 0.2
"""Labels may take this much more than the smallest area at their target where they match others, or this
share of what the fabric has for each kernel."""

_OUTPUTS_SLACK, _SPARE_OUTPUTS = 1.5, 8
_MOST_LABELS = 4_000


class Label(NamedTuple):
    """Execution arguments of a kernel, with its rectangle (not rotated) and its time."""

    splits: Splits
    first: int
    last: int
    width: int
    height: int
    time: float


@dataclass(frozen=True)
class Menu:
    """Labels of kernels with the same convolutions; an element of each array is a label.

    Attributes:
        rows: h'.
        columns: w'.
        first: c' of the first convolution.
        last: k' of the convolution that makes the output.
        inputs: c', labels x convolutions.
        outputs: k' in the same form.
        width: tiles in x, not rotated.
        height: tiles in y, not rotated.
        time: cycles per sample.
    """

    rows: Ints
    columns: Ints
    first: Ints
    last: Ints
    inputs: Ints
    outputs: Ints
    width: Ints
    height: Ints
    time: Floats

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Label:
        splits = Splits(
            int(self.rows[index]),
            int(self.columns[index]),
            tuple(int(number) for number in self.inputs[index]),
            tuple(int(number) for number in self.outputs[index]),
        )
        return Label(
            splits,
            int(self.first[index]),
            int(self.last[index]),
            int(self.width[index]),
            int(self.height[index]),
            float(self.time[index]),
        )


class _Layouts:
    """Layouts of a kernel under construction: h', w' and by convolution c' and k'."""

    def __init__(self, rows: Ints, columns: Ints, inputs: Ints, outputs: Ints) -> None:
        self.rows, self.columns, self.inputs, self.outputs = rows, columns, inputs, outputs

    @property
    def height(self) -> Ints:
        height: Ints = self.rows * self.columns * (self.inputs.max(axis=1) + 1)
        return height

    @property
    def width(self) -> Ints:
        width: Ints = np.minimum(COPIES * self.outputs.sum(axis=1), NO_EXTENT)
        return width

    def where(self, mask: NDArray[np.bool_] | Ints) -> _Layouts:
        return _Layouts(self.rows[mask], self.columns[mask], self.inputs[mask], self.outputs[mask])

    def with_numbers(self, values: Ints, index: int, outputs: bool) -> _Layouts:
        """Every layout with every value of one c' or k'."""
        chosen = np.repeat(np.arange(len(self.rows)), len(values))
        found = self.where(chosen)
        (found.outputs if outputs else found.inputs)[:, index] = np.tile(values, len(self.rows))
        return found

    def sensible(self, graph: ContestGraph) -> _Layouts:
        """Keep layouts that fit on the fabric and are not much larger than the smallest one."""
        width, height = self.width, self.height
        short, long = np.minimum(width, height), np.maximum(width, height)
        fits = (short <= min(graph.width, graph.height)) & (long <= max(graph.width, graph.height))
        area = np.where(fits, width * height, NO_EXTENT * NO_EXTENT)
        least = int(area.min(initial=NO_EXTENT * NO_EXTENT))
        spare = _SPARE_SHARE * graph.width * graph.height / len(graph.kernels)
        return self.where(fits & (area <= max(_AREA_SLACK * least, spare)))


def label_of(kernel: Kernel, splits: Splits) -> Label:
    """The label of given execution arguments."""
    performance = kernel.performance(splits)
    last = splits.outputs[LAST_CONVOLUTION[kernel.kind]]
    return Label(splits, splits.inputs[0], last, performance.width, performance.height, performance.time)


def menu(kernel: Kernel, graph: ContestGraph, target: float) -> Menu:
    """The labels of a kernel that keep a target time and the memory limit; empty where there are none."""
    convolutions = kernel.convolutions
    last = LAST_CONVOLUTION[kernel.kind]
    found = _smallest(convolutions, graph, target)
    if len(convolutions) > 1:
        values = useful_splits(convolutions[0].inputs)
        found = found.with_numbers(values, 0, outputs=False)
        found = found.where(found.inputs[:, 0] <= found.inputs[:, 1:].max(axis=1))
        found.outputs[:, 0] = _least_outputs(
            convolutions[0], found.rows, found.columns, found.inputs[:, 0], graph, target
        )
        found = found.sensible(graph)
    least = found.outputs[:, last]
    values = useful_splits(convolutions[last].outputs)
    wider = [found]
    for value in values.tolist():
        more = (least < value) & (value <= np.maximum(_OUTPUTS_SLACK * least, least + _SPARE_OUTPUTS))
        copy = found.where(more)
        copy.outputs[:, last] = value
        wider.append(copy)
    found = _join(wider).sensible(graph)
    return _menu(kernel, found.where(_best(found)))


def _best(found: _Layouts) -> Ints:
    area = found.width * found.height
    return np.argsort(area, kind="stable")[:_MOST_LABELS]


def _join(parts: Sequence[_Layouts]) -> _Layouts:
    return _Layouts(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.outputs for part in parts]),
    )


def _smallest(convolutions: Sequence[Convolution], graph: ContestGraph, target: float) -> _Layouts:
    """Enumerate layouts by h', w' and height, with the largest c' that fits and the least possible k'."""
    limit = max(graph.width, graph.height)
    pairs = np.stack(
        np.meshgrid(
            useful_splits(max(conv.rows for conv in convolutions)),
            useful_splits(max(conv.columns for conv in convolutions)),
        ),
        axis=-1,
    ).reshape(-1, 2)
    pairs = pairs[pairs.prod(axis=1) <= limit // 2]
    channels = np.unique(np.concatenate([useful_splits(conv.inputs) for conv in convolutions]))
    which, tallest = (grid.ravel() for grid in np.meshgrid(np.arange(len(pairs)), channels, indexing="ij"))
    rows, columns = pairs[which].T
    fits = rows * columns * (tallest + 1) <= limit
    rows, columns, tallest = rows[fits], columns[fits], tallest[fits]
    inputs = np.stack([np.minimum(tallest, conv.inputs) for conv in convolutions], axis=1)
    outputs = np.stack(
        [
            _least_outputs(conv, rows, columns, inputs[:, number], graph, target)
            for number, conv in enumerate(convolutions)
        ],
        axis=1,
    )
    return _Layouts(rows, columns, inputs, outputs).sensible(graph)


def _least_outputs(
    conv: Convolution, rows: Ints, columns: Ints, inputs: Ints, graph: ContestGraph, target: float
) -> Ints:
    """The least k' that keeps target and memory, `NO_EXTENT` where none does."""
    points = -(-conv.rows // rows) * -(-conv.columns // columns) * -(-conv.inputs // inputs)
    channels = np.floor(np.minimum(target / (points * conv.passes), conv.outputs) + 1e-9).astype(np.int64)
    for_time = np.where(channels < 1, NO_EXTENT, -(-conv.outputs // np.maximum(channels, 1)))
    words = conv.inputs / inputs * conv.filter_rows * conv.filter_columns
    words = (words + conv.activations / (rows * columns)) * conv.outputs
    for_memory = np.ceil(words / graph.memlimit * (1 + 1e-9)).astype(np.int64)
    needed = np.maximum(for_time, for_memory)
    return np.where(needed > conv.outputs, NO_EXTENT, needed)


def _menu(kernel: Kernel, found: _Layouts) -> Menu:
    time = np.zeros(len(found.rows))
    for number, conv in enumerate(kernel.convolutions):
        points = -(-conv.rows // found.rows) * -(-conv.columns // found.columns)
        channels = -(-conv.inputs // found.inputs[:, number]) * -(-conv.outputs // found.outputs[:, number])
        time = np.maximum(time, points.astype(np.float64) * channels * conv.passes)
    return Menu(
        rows=found.rows,
        columns=found.columns,
        first=found.inputs[:, 0],
        last=found.outputs[:, LAST_CONVOLUTION[kernel.kind]],
        inputs=found.inputs,
        outputs=found.outputs,
        width=found.width,
        height=found.height,
        time=time,
    )


_SWEEPS = 60
_HOTTEST, _COLDEST = 1.0, 0.03
"""Heat of the sweeps, as multiples of the weight of an adapter."""

_WIRE_OVER_SIDES = 1.2
"""About how long wires are, over half of the shorter sides at their ends."""

_FULL = 0.92
"""Share of the fabric that rectangles fill without trouble, if some of them are free to change."""


class Link(NamedTuple):
    """An edge as one of its kernels sees it."""

    other: int
    is_source: bool
    """Whether this kernel is the source."""


def links(graph: ContestGraph) -> list[list[Link]]:
    """The edges of every kernel."""
    found: list[list[Link]] = [[] for _ in graph.kernels]
    for edge in graph.edges:
        found[edge.source].append(Link(edge.target, True))
        found[edge.target].append(Link(edge.source, False))
    return found


def mismatches(graph: ContestGraph, labels: Sequence[Label]) -> int:
    """Adapter cost of all edges together."""
    total = 0
    for edge in graph.edges:
        source, target = labels[edge.source], labels[edge.target]
        total += source.splits.rows != target.splits.rows
        total += source.splits.columns != target.splits.columns
        total += source.last != target.first
    return total


def fixed_by(graph: ContestGraph, labels: Sequence[Label]) -> list[Fixed]:
    """Return, by kernel, the numbers that match those of a neighbor; the others are free to change."""
    shared: list[set[str]] = [set() for _ in labels]
    for edge in graph.edges:
        source, target = labels[edge.source], labels[edge.target]
        if source.splits.rows == target.splits.rows:
            shared[edge.source].add("rows")
            shared[edge.target].add("rows")
        if source.splits.columns == target.splits.columns:
            shared[edge.source].add("columns")
            shared[edge.target].add("columns")
        if source.last == target.first:
            shared[edge.source].add("last")
            shared[edge.target].add("first")
    return [
        Fixed(
            rows=label.splits.rows if "rows" in names else None,
            columns=label.splits.columns if "columns" in names else None,
            first=label.first if "first" in names else None,
            last=label.last if "last" in names else None,
            last_convolution=LAST_CONVOLUTION[kernel.kind],
        )
        for kernel, label, names in zip(graph.kernels, labels, shared, strict=True)
    ]


def share_of_fabric(graph: ContestGraph, labels: Sequence[Label]) -> float:
    """Tiles of the labels' rectangles over those of the fabric."""
    return sum(label.width * label.height for label in labels) / (graph.width * graph.height)


def expected_cost(graph: ContestGraph, labels: Sequence[Label]) -> float:
    """About the objective of a good floorplan of the labels."""
    time = max(label.time for label in labels)
    sides = [min(label.width, label.height) for label in labels]
    wires = sum(sides[edge.source] + sides[edge.target] for edge in graph.edges) / 2
    return (
        graph.wdeltat * time * max(1.0, share_of_fabric(graph, labels) / _FULL) ** 2
        + graph.wlength * _WIRE_OVER_SIDES * wires
        + graph.wadapter * mismatches(graph, labels)
    )


def adapters(menu: Menu, ends: Sequence[Link], labels: Sequence[Label]) -> Floats:
    """Count, by label of a menu, the mismatches at edges to neighbors with the given labels."""
    total = np.zeros(len(menu))
    for end in ends:
        other = labels[end.other]
        total += menu.rows != other.splits.rows
        total += menu.columns != other.splits.columns
        total += (menu.last != other.first) if end.is_source else (menu.first != other.last)
    return total


def own_cost(graph: ContestGraph, menu: Menu, degree: int, target: float) -> Floats:
    """Estimate the cost of tiles and sides by label.

    Where the fabric is full, a share of it costs about that share of the time.
    """
    tile = graph.wdeltat * target / (graph.width * graph.height)
    sides = np.minimum(menu.width, menu.height) * (degree / 2)
    cost: Floats = tile * menu.width * menu.height + graph.wlength * _WIRE_OVER_SIDES * sides
    return cost


def agreed(
    graph: ContestGraph, menus: Sequence[Menu], target: float, rng: np.random.Generator, stop: Stop
) -> list[Label]:
    """Labels whose tiles, sides and adapters together cost little at a target.

    They are drawn kernel by kernel, given those of the neighbors, at falling heat.

    Args:
        graph: the graph.
        menus: by kernel, not empty.
        target: of the menus.
        rng: source of the draws.
        stop: whether time is up.
    """
    ends = links(graph)
    costs = [own_cost(graph, menu, len(near), target) for menu, near in zip(menus, ends, strict=True)]
    labels = [menu[int(np.argmin(cost))] for menu, cost in zip(menus, costs, strict=True)]
    for heat in np.geomspace(_HOTTEST, _COLDEST, _SWEEPS):
        for index in range(len(menus)):
            if stop():
                return labels
            total = costs[index] + graph.wadapter * adapters(menus[index], ends[index], labels)
            total += heat * graph.wadapter * rng.gumbel(size=len(total))
            labels[index] = menus[index][int(np.argmin(total))]
    return labels

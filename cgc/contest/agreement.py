"""Labels for all kernels together, so that few adapters are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cgc.contest.curves import Fixed
from cgc.contest.labels import Label, Menu
from cgc.contest.model import ContestGraph
from cgc.contest.score import LAST_CONVOLUTION
from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.tree import Floats

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
    """By kernel the numbers that match those of a neighbour; the others are free to change."""
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
    """By label of a menu: mismatches at the edges of a kernel whose neighbours have the given labels."""
    total = np.zeros(len(menu))
    for end in ends:
        other = labels[end.other]
        total += menu.rows != other.splits.rows
        total += menu.columns != other.splits.columns
        total += (menu.last != other.first) if end.is_source else (menu.first != other.last)
    return total


def own_cost(graph: ContestGraph, menu: Menu, degree: int, target: float) -> Floats:
    """By label: about what its tiles and its sides cost.

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

    They are drawn kernel by kernel, given those of the neighbours, at falling heat.

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

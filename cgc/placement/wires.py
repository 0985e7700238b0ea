"""Wire length of a packing, and swaps that shorten it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from cgc.kernels.graph import KernelGraph
from cgc.placement.packing import Packing, Spot

Neighbours = Sequence[Mapping[int, int]]
"""For each kernel the number of edges to each other kernel."""

_MAX_PASSES = 4
_MAX_SWAPS_PER_PASS = 20_000


def neighbours(graph: KernelGraph) -> list[dict[int, int]]:
    """Edges of a graph by the positions of its kernels, both directions counted at both ends."""
    position = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    found: list[dict[int, int]] = [{} for _ in graph.kernels]
    for edge in graph.edges:
        a, b = position[edge.src], position[edge.dst]
        if a != b:
            found[a][b] = found[a].get(b, 0) + 1
            found[b][a] = found[b].get(a, 0) + 1
    return found


def wire_length(packing: Packing, edges: Neighbours) -> float:
    """Sum over all edges of the L1 distance between the centres of the two rectangles, in PEs."""
    return sum(_length(index, packing, edges) for index in range(len(packing))) / 2


def shorten_wires(packing: Packing, edges: Neighbours) -> Packing:
    """Swaps kernels of equal rectangles while that shortens the wires; the occupied PEs stay the same."""
    packing = list(packing)
    groups: dict[tuple[int, int], list[int]] = {}
    for index, spot in enumerate(packing):
        groups.setdefault((spot.shape.width, spot.shape.height), []).append(index)
    pairs = [pair for group in groups.values() for pair in combinations(group, 2)][:_MAX_SWAPS_PER_PASS]
    for _ in range(_MAX_PASSES):
        if sum(_swap_if_shorter(packing, edges, a, b) for a, b in pairs) == 0:
            break
    return packing


def _swap_if_shorter(packing: Packing, edges: Neighbours, a: int, b: int) -> bool:
    before = _length(a, packing, edges) + _length(b, packing, edges)
    first, second = packing[a], packing[b]
    packing[a], packing[b] = _at(first, second), _at(second, first)
    if _length(a, packing, edges) + _length(b, packing, edges) < before - 1e-9:
        return True
    packing[a], packing[b] = first, second
    return False


def _at(spot: Spot, place: Spot) -> Spot:
    return Spot(place.x, place.y, spot.shape)


def _length(index: int, packing: Packing, edges: Neighbours) -> float:
    x, y = _center(packing[index])
    total = 0.0
    for other, count in edges[index].items():
        other_x, other_y = _center(packing[other])
        total += count * (abs(x - other_x) + abs(y - other_y))
    return total


def _center(spot: Spot) -> tuple[float, float]:
    return spot.x + spot.shape.width / 2, spot.y + spot.shape.height / 2

"""Legality and objective of a solution.

The adapter cost of the contest was never published in a form that can be retrieved. Here an adapter costs one
for each of three numbers in which the two ends of an edge differ: h', w', and the producer's k' of its last
convolution against the consumer's c' of its first. Scores of graphs with wadapter = 0 do not depend on that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.ispd2020.model import ContestGraph, Kernel, Placed, Solution, Splits
from cgc.placement.model import Rect

ADAPTER_NOTE = (
    "the adapter cost is an own definition: mismatches of h', w' and k'/c' at the ends of every edge"
)

LAST_CONVOLUTION = {"conv": 0, "dblock": 2, "cblock": 2}
"""Which convolution of a kernel makes its output."""

_MOST_FAULTS = 20


@dataclass(frozen=True)
class Score:
    """The score of a solution.

    Attributes:
        objective: the weighted sum; smaller is better.
        time: of the slowest kernel, cycles per sample.
        slowest: its name.
        wires: sum over the edges of the L1 distance of the centers, tiles.
        adapters: sum over the edges of the mismatches, own definition.
        used_tiles: tiles of all rectangles.
        largest_memory: words of the fullest tile.
        faults: what makes the solution illegal; the objective is that of the placed kernels then.
    """

    objective: float
    time: float
    slowest: str
    wires: float
    adapters: int
    used_tiles: int
    largest_memory: float
    faults: tuple[str, ...]

    @property
    def legal(self) -> bool:
        """Return whether the solution is legal."""
        return not self.faults


def rectangle(kernel: Kernel, placed: Placed) -> Rect:
    """The tiles of a placed kernel."""
    performance = kernel.performance(placed.splits)
    width, height = performance.width, performance.height
    return Rect(placed.x, placed.y, *((height, width) if placed.rotated else (width, height)))


def mismatches(source: Kernel, source_splits: Splits, target_splits: Splits) -> int:
    """Adapter cost of an edge, 0 to 3."""
    produced = source_splits.outputs[LAST_CONVOLUTION[source.kind]]
    return (
        (source_splits.rows != target_splits.rows)
        + (source_splits.columns != target_splits.columns)
        + (produced != target_splits.inputs[0])
    )


def score(graph: ContestGraph, solution: Solution) -> Score:
    """Checks and scores a solution; kernels that are not placed are an error and are not scored."""
    kernels = {kernel.name: kernel for kernel in graph.kernels}
    rects = {name: rectangle(kernels[name], placed) for name, placed in solution.items()}
    performances = {name: kernels[name].performance(placed.splits) for name, placed in solution.items()}
    slowest = max(performances, key=lambda name: performances[name].time, default="")
    time = performances[slowest].time if slowest else 0.0
    wires, adapters = 0.0, 0
    for edge in graph.edges:
        source, target = graph.kernels[edge.source], graph.kernels[edge.target]
        if source.name in rects and target.name in rects:
            (x, y), (other_x, other_y) = rects[source.name].center, rects[target.name].center
            wires += abs(x - other_x) + abs(y - other_y)
            adapters += mismatches(source, solution[source.name].splits, solution[target.name].splits)
    memory = {name: performance.memory for name, performance in performances.items()}
    return Score(
        objective=graph.wdeltat * time + graph.wlength * wires + graph.wadapter * adapters,
        time=time,
        slowest=slowest,
        wires=wires,
        adapters=adapters,
        used_tiles=sum(rect.area for rect in rects.values()),
        largest_memory=max(memory.values(), default=0.0),
        faults=tuple(_faults(graph, rects, memory)),
    )


def _faults(graph: ContestGraph, rects: Mapping[str, Rect], memory: Mapping[str, float]) -> list[str]:
    found = []
    for kernel in graph.kernels:
        name = kernel.name
        if name not in rects:
            found.append(f"{name} is not placed, expected a definition and a place of every kernel")
            continue
        rect = rects[name]
        if (
            rect.x < 0
            or rect.y < 0
            or rect.x + rect.width > graph.width
            or rect.y + rect.height > graph.height
        ):
            found.append(
                f"{name} lies on {_tiles(rect)}, expected to lie inside {graph.width} x {graph.height} tiles"
            )
        if memory[name] > graph.memlimit:
            found.append(f"{name} needs {memory[name]:.1f} words a tile, expected at most {graph.memlimit:g}")
    found += _overlaps(rects)
    if len(found) > _MOST_FAULTS:
        found[_MOST_FAULTS:] = [f"and {len(found) - _MOST_FAULTS} more"]
    return found


def _overlaps(rects: Mapping[str, Rect]) -> list[str]:
    found = []
    by_x = sorted(rects.items(), key=lambda item: item[1].x)
    for number, (name, rect) in enumerate(by_x):
        for other_name, other in by_x[number + 1 :]:
            if other.x >= rect.x + rect.width:
                break
            if rect.overlaps(other):
                found.append(f"{name} on {_tiles(rect)} overlaps {other_name} on {_tiles(other)}")
    return found


def _tiles(rect: Rect) -> str:
    return f"x {rect.x}..{rect.x + rect.width - 1}, y {rect.y}..{rect.y + rect.height - 1}"

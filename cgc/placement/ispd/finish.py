"""From a floorplan to a solution: execution arguments, adapters, and places that shorten the wires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cgc.placement.ispd.anneal import Stop
from cgc.placement.ispd.curves import Ints
from cgc.placement.ispd.model import ContestGraph, Kernel, Placed, Splits
from cgc.placement.ispd.score import LAST_CONVOLUTION, mismatches
from cgc.placement.ispd.search import Floorplan, Problem
from cgc.placement.ispd.tree import Box

_ADAPTER_PASSES = 4
_PUSH_PASSES = 30


class _Choice(NamedTuple):
    """Execution arguments of a kernel, turned or not, and the rectangle that they make."""

    splits: Splits
    rotated: bool
    width: int
    height: int


def solution_of(problem: Problem, plan: Floorplan, stop: Stop) -> dict[str, Placed]:
    """A solution in which every kernel lies in its piece, or near it where that is better for the wires."""
    graph = problem.graph
    pieces = problem.pieces(plan)
    options = [
        _options(kernel, curve.options(plan.target, piece.width, piece.height))
        for kernel, curve, piece in zip(graph.kernels, problem.curves, pieces, strict=True)
    ]
    chosen = [min(choices, key=lambda choice: choice.width * choice.height) for choices in options]
    if graph.wadapter > 0:
        _match_adapters(graph, chosen, options, pieces, plan.target)
    places = np.array(
        [
            (piece.x + (piece.width - choice.width) // 2, piece.y + (piece.height - choice.height) // 2)
            for piece, choice in zip(pieces, chosen, strict=True)
        ]
    )
    sizes = np.array([(choice.width, choice.height) for choice in chosen])
    places = push(problem, places, sizes, stop)
    return {
        kernel.name: Placed(choice.splits, int(x), int(y), choice.rotated)
        for kernel, choice, (x, y) in zip(graph.kernels, chosen, places, strict=True)
    }


def _choice(kernel: Kernel, splits: Splits, rotated: bool) -> _Choice:
    performance = kernel.performance(splits)
    width, height = performance.width, performance.height
    return _Choice(splits, rotated, height if rotated else width, width if rotated else height)


def _options(kernel: Kernel, found: Sequence[tuple[Splits, bool]]) -> list[_Choice]:
    return [_choice(kernel, splits, rotated) for splits, rotated in found]


def _match_adapters(
    graph: ContestGraph,
    chosen: list[_Choice],
    options: Sequence[Sequence[_Choice]],
    pieces: Sequence[Box],
    target: float,
) -> None:
    """Replaces execution arguments by others that fit the piece and differ less from those at the edges."""
    for _ in range(_ADAPTER_PASSES):
        before = list(chosen)
        for index, kernel in enumerate(graph.kernels):
            wanted = _wanted_channels(graph, chosen, index)
            variants = _retuned(kernel, options[index], wanted, pieces[index], target, graph.memlimit)
            candidates = [chosen[index], *options[index], *variants]
            chosen[index] = min(candidates, key=lambda choice: _adapters_at(graph, chosen, index, choice))
        if chosen == before:
            break


def _wanted_channels(graph: ContestGraph, chosen: Sequence[_Choice], index: int) -> tuple[set[int], set[int]]:
    """Values of the first c' and the last k' of a kernel that would match its neighbours."""
    inputs = {
        chosen[edge.source].splits.outputs[LAST_CONVOLUTION[graph.kernels[edge.source].kind]]
        for edge in graph.edges
        if edge.target == index
    }
    return inputs, {chosen[edge.target].splits.inputs[0] for edge in graph.edges if edge.source == index}


def _retuned(
    kernel: Kernel,
    options: Sequence[_Choice],
    wanted: tuple[set[int], set[int]],
    piece: Box,
    target: float,
    memlimit: float,
) -> list[_Choice]:
    """Variants of the options with the channels that neighbours want, as far as piece and target allow."""
    found = []
    last = LAST_CONVOLUTION[kernel.kind]
    first_limit, last_limit = kernel.convolutions[0].inputs, kernel.convolutions[last].outputs
    for choice in options:
        for first in wanted[0] | {choice.splits.inputs[0]}:
            for outputs in wanted[1] | {choice.splits.outputs[last]}:
                if first > first_limit or outputs > last_limit:
                    continue
                changed = list(choice.splits.outputs)
                changed[last] = outputs
                splits = replace(
                    choice.splits, inputs=(first, *choice.splits.inputs[1:]), outputs=tuple(changed)
                )
                variant = _choice(kernel, splits, choice.rotated)
                performance = kernel.performance(splits)
                fits = variant.width <= piece.width and variant.height <= piece.height
                if fits and performance.time <= target and performance.memory <= memlimit:
                    found.append(variant)
    return found


def _adapters_at(graph: ContestGraph, chosen: Sequence[_Choice], index: int, choice: _Choice) -> int:
    total = 0
    for edge in graph.edges:
        if index in (edge.source, edge.target):
            source = choice if edge.source == index else chosen[edge.source]
            target = choice if edge.target == index else chosen[edge.target]
            total += mismatches(graph.kernels[edge.source], source.splits, target.splits)
    return total


def push(problem: Problem, places: Ints, sizes: Ints, stop: Stop) -> Ints:
    """Moves kernels, and others that are in their way with them, while that shortens the wires.

    Args:
        problem: the graph.
        places: x and y of every kernel, kernels x 2; without overlap.
        sizes: extents in x and y, likewise.
        stop: whether time is up.

    Returns:
        Places without overlap, inside the fabric.
    """
    limits = (problem.graph.width, problem.graph.height)
    best = problem.wires(places + sizes / 2)
    for _ in range(_PUSH_PASSES):
        before = best
        for index, near in enumerate(problem.neighbours):
            if stop() or not near:
                continue
            for axis in (0, 1):
                centers = places[:, axis] + sizes[:, axis] / 2
                distance = int(np.median(centers[near]) - centers[index])
                for step in dict.fromkeys((distance, distance // 2, distance // 4, 1, -1)):
                    moved = _pushed(places, sizes, index, axis, step, limits[axis]) if step else None
                    if moved is not None and (length := problem.wires(moved + sizes / 2)) < best - 1e-9:
                        places, best = moved, length
                        break
        if best >= before - 1e-9:
            break
    return places


def _pushed(places: Ints, sizes: Ints, index: int, axis: int, step: int, limit: int) -> Ints | None:
    """Places after a kernel moved along an axis and pushed others, None where the fabric ends."""
    other = 1 - axis
    moved = places.copy()
    moved[index, axis] += step
    waiting = [index]
    while waiting:
        pusher = waiting.pop()
        low, high = moved[pusher, axis], moved[pusher, axis] + sizes[pusher, axis]
        if low < 0 or high > limit:
            return None
        beside = (places[:, other] < places[pusher, other] + sizes[pusher, other]) & (
            places[pusher, other] < places[:, other] + sizes[:, other]
        )
        if step > 0:
            hit = beside & (places[:, axis] > places[pusher, axis]) & (moved[:, axis] < high)
            moved[hit, axis] = high
        else:
            ends = moved[:, axis] + sizes[:, axis]
            hit = beside & (places[:, axis] < places[pusher, axis]) & (ends > low)
            moved[hit, axis] = low - sizes[hit, axis]
        waiting.extend(int(number) for number in np.nonzero(hit)[0])
    return moved

"""Turn a floorplan into a solution: execution arguments, adapters, and positions that shorten the wires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.ispd2020.curves import ContestProblem
from benchmarks.ispd2020.joint_search import FIXED_TARGET, Matched, joint_problem
from benchmarks.ispd2020.model import ContestGraph, Kernel, Placed, Splits
from benchmarks.ispd2020.score import LAST_CONVOLUTION, mismatches
from cgc.placement.engine.anneal import Stop, push
from cgc.placement.engine.problem import Floorplan, Problem
from cgc.placement.engine.tree import Box

_ADAPTER_PASSES = 4


class _Choice(NamedTuple):
    """Execution arguments of a kernel, turned or not, and the rectangle that they make."""

    splits: Splits
    rotated: bool
    width: int
    height: int


def solution_of(problem: ContestProblem, plan: Floorplan, stop: Stop) -> dict[str, Placed]:
    """Return a solution with every kernel in its piece, or near it where that is better for the wires."""
    graph = problem.graph
    pieces = problem.pieces(plan)
    options = [
        _options(kernel, curve.options(plan.target, piece.width, piece.height))
        for kernel, curve, piece in zip(graph.kernels, problem.kernel_curves, pieces, strict=True)
    ]
    chosen = [min(choices, key=lambda choice: choice.width * choice.height) for choices in options]
    if graph.wadapter > 0:
        _match_adapters(graph, chosen, options, pieces, plan.target, stop)
    return _place(graph, problem, pieces, chosen, stop)


def matched_solution(graph: ContestGraph, plan: Matched, stop: Stop) -> dict[str, Placed]:
    """A solution with the labels of a floorplan, every kernel in its piece or near it."""
    problem = joint_problem(graph, plan.labels)
    pieces = problem.pieces(Floorplan(plan.tree, FIXED_TARGET, plan.box, plan.objective))
    chosen = []
    for label, piece in zip(plan.labels, pieces, strict=True):
        upright = label.width <= piece.width and label.height <= piece.height
        sides = (label.width, label.height) if upright else (label.height, label.width)
        chosen.append(_Choice(label.splits, not upright, *sides))
    return _place(graph, problem, pieces, chosen, stop)


def _place(
    graph: ContestGraph, problem: Problem, pieces: Sequence[Box], chosen: Sequence[_Choice], stop: Stop
) -> dict[str, Placed]:
    """Rectangles in the middle of their pieces, then moved where that is better for the wires."""
    places = np.array(
        [
            (piece.x + (piece.width - choice.width) // 2, piece.y + (piece.height - choice.height) // 2)
            for piece, choice in zip(pieces, chosen, strict=True)
        ]
    )
    sizes = np.array([(choice.width, choice.height) for choice in chosen])
    places = push(problem, places, sizes, stop=stop)
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
    stop: Stop,
) -> None:
    """Replaces execution arguments by others that fit the piece and differ less from those at the edges."""
    for _ in range(_ADAPTER_PASSES):
        before = list(chosen)
        for index, kernel in enumerate(graph.kernels):
            if stop():
                return
            wanted = _wanted_channels(graph, chosen, index)
            variants = _retune(kernel, options[index], wanted, pieces[index], target, graph.memlimit)
            candidates = [chosen[index], *options[index], *variants]
            chosen[index] = min(candidates, key=lambda choice: _adapters_at(graph, chosen, index, choice))
        if chosen == before:
            break


def _wanted_channels(graph: ContestGraph, chosen: Sequence[_Choice], index: int) -> tuple[set[int], set[int]]:
    """Values of the first c' and the last k' of a kernel that would match its neighbors."""
    inputs = {
        chosen[edge.source].splits.outputs[LAST_CONVOLUTION[graph.kernels[edge.source].kind]]
        for edge in graph.edges
        if edge.target == index
    }
    return inputs, {chosen[edge.target].splits.inputs[0] for edge in graph.edges if edge.source == index}


def _retune(
    kernel: Kernel,
    options: Sequence[_Choice],
    wanted: tuple[set[int], set[int]],
    piece: Box,
    target: float,
    memlimit: float,
) -> list[_Choice]:
    """Variants of the options with the channels that neighbors want, as far as piece and target allow."""
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

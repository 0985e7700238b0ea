"""Execution arguments where adapters cost: menus, agreement, and the annealing of both with the floorplan."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.contest_graphs import contest_graphs
from benchmarks.ispd2020.bounds import bounds
from benchmarks.ispd2020.curves import KernelCurves, graph_curves
from benchmarks.ispd2020.finish import matched_solution
from benchmarks.ispd2020.format import parse_graph
from benchmarks.ispd2020.joint_search import Joint
from benchmarks.ispd2020.labels import (
    Label,
    Menu,
    adapters,
    agreed,
    fixed_by,
    label_of,
    links,
    menu,
    mismatches,
)
from benchmarks.ispd2020.model import ContestGraph, Placed
from benchmarks.ispd2020.score import score
from cgc.placement.engine.tree import Node, cut

LETTERS = "EQT"


@cache
def graphs() -> dict[str, ContestGraph]:
    texts = contest_graphs()
    return {letter: parse_graph(texts[letter], letter) for letter in LETTERS}


@cache
def curves_of(letter: str) -> list[KernelCurves]:
    graph = graphs()[letter]
    return graph_curves(graph.kernels, graph.width, graph.height, graph.memlimit)


@cache
def least_time(letter: str) -> float:
    """The bound that adapters and wires do not change."""
    return bounds(graphs()[letter], curves_of(letter), wires=False).time


def menus_of(graph: ContestGraph, target: float) -> list[Menu]:
    known = {kernel.convolutions: menu(kernel, graph, target) for kernel in graph.kernels}
    return [known[kernel.convolutions] for kernel in graph.kernels]


def labels_of(graph: ContestGraph, menus: list[Menu], target: float) -> list[Label]:
    return agreed(graph, menus, target, np.random.default_rng(0), lambda: False)


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize("factor", [1.1, 10.0])
def test_labels_of_a_menu_are_those_of_the_kernel(letter: str, factor: float) -> None:
    graph, target = graphs()[letter], factor * least_time(letter)
    for kernel, found, curve in zip(graph.kernels, menus_of(graph, target), curves_of(letter), strict=True):
        assert len(found)
        for index in range(0, len(found), max(1, len(found) // 20)):
            label = found[index]
            assert label == label_of(kernel, label.splits)
            performance = kernel.performance(label.splits)
            assert performance.time <= target * (1 + 1e-9)
            assert performance.memory <= graph.memlimit
        # The smallest rectangle of all is among them, but for values of c' that only memory tells apart.
        assert int((found.width * found.height).min()) <= 1.05 * curve.min_area(target)


def test_the_impossible_has_an_empty_menu() -> None:
    graph = graphs()["E"]
    assert len(menu(graph.kernels[0], graph, 1.0)) == 0


@pytest.mark.parametrize("letter", LETTERS)
def test_labels_agree(letter: str) -> None:
    """Adapters dominate the cost for far more tiles than the smallest rectangles have."""
    graph, target = replace(graphs()[letter], wadapter=1e6), 2.0 * least_time(letter)
    menus = menus_of(graph, target)
    labels = labels_of(graph, menus, target)
    cheapest = [one[int(np.argmin(one.width * one.height))] for one in menus]
    assert mismatches(graph, labels) < 0.5 * mismatches(graph, cheapest)
    at_kernels = [
        adapters(one, near, labels)[
            int(
                np.flatnonzero(
                    (one.inputs == label.splits.inputs).all(axis=1)
                    & (one.outputs == label.splits.outputs).all(axis=1)
                    & (one.rows == label.splits.rows)
                    & (one.columns == label.splits.columns)
                )[0]
            )
        ]
        for one, near, label in zip(menus, links(graph), labels, strict=True)
    ]
    assert sum(at_kernels) == 2 * mismatches(graph, labels)


@pytest.mark.parametrize("letter", ["E", "Q"])
def test_rectangles_of_given_numbers_keep_them(letter: str) -> None:
    graph, target = graphs()[letter], 1.3 * least_time(letter)
    fixed = fixed_by(graph, labels_of(graph, menus_of(graph, target), target))
    assert any(one.first for one in fixed)
    assert any(one.last for one in fixed)
    curves = graph_curves(graph.kernels, graph.width, graph.height, graph.memlimit, None, fixed)
    for kernel, curve, given in zip(graph.kernels, curves, fixed, strict=True):
        options = curve.options(target * 1.1, graph.width, graph.height)
        assert options
        for splits, _ in options:
            label = label_of(kernel, splits)
            assert label.time <= target * 1.1 * (1 + 1e-9)
            assert given.rows in (None, splits.rows)
            assert given.columns in (None, splits.columns)
            assert given.first in (None, label.first)
            assert given.last in (None, label.last)


def test_annealing_keeps_the_books() -> None:
    """The objective of the annealing equals the score of its solution."""
    graph, target = graphs()["Q"], 20.0 * least_time("Q")
    menus = menus_of(graph, target)
    labels = [one[0] for one in menus]
    tree = cut(True, [Node(index) for index in range(len(labels))])
    found = Joint(graph, labels, menus, random.Random(1)).anneal(tree, 400, 0.01, lambda: False)
    assert found is not None
    solution = matched_solution(graph, found, lambda: True)
    result = score(graph, solution)
    assert result.legal
    assert result.adapters == mismatches(graph, found.labels)
    # A rectangle is at most half a tile away from the middle of its piece, in both directions.
    half_tiles = graph.wlength * 2 * len(graph.edges)
    assert result.objective == pytest.approx(found.objective, abs=half_tiles)
    stacked = {
        kernel.name: Placed(label.splits, 0, 0, rotated=False)
        for kernel, label in zip(graph.kernels, labels, strict=True)
    }
    assert result.adapters < score(graph, stacked).adapters

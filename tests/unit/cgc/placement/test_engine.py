"""The search that placing a graph and solving a contest graph share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from cgc.placement.engine.anneal import Schedule, anneal, push
from cgc.placement.engine.problem import Curves, Edges, Floorplan, Problem, Weights
from cgc.placement.engine.starts import band_trees, fit_bands, fit_tight, flow_order, shorten_order, sort_runs
from cgc.placement.engine.tree import NO_EXTENT, Box, Ints, Node, cut
from cgc.placement.model import Rect

pytestmark = pytest.mark.usefixtures("full_placement")


class Choice:
    """A kernel of some rectangles, each in both orientations, whatever the target."""

    def __init__(self, *sizes: tuple[int, int]) -> None:
        self._heights = np.full(65, NO_EXTENT, dtype=np.int64)
        for width, height in [*sizes, *((height, width) for width, height in sizes)]:
            self._heights[width:] = np.minimum(self._heights[width:], height)

    def heights(self, _: float) -> Ints:
        return self._heights


def problem_of(
    kernels: Sequence[Curves], width: int, height: int, edges: Edges = (), wires: float = 1.0
) -> Problem:
    return Problem(width, height, kernels, edges, Weights(1.0, wires))


def chain(count: int) -> list[tuple[int, int]]:
    return list(pairwise(range(count)))


def pieces_of(problem: Problem, plan: Floorplan | None) -> list[Box]:
    assert plan is not None
    pieces = problem.pieces(plan)
    rects = [Rect(*piece) for piece in pieces]
    assert not any(one.overlaps(other) for one, other in combinations(rects, 2))
    for piece, kernel in zip(pieces, problem.curves, strict=True):
        assert 0 <= piece.x <= piece.x + piece.width <= problem.width
        assert 0 <= piece.y <= piece.y + piece.height <= problem.height
        assert kernel.heights(1)[piece.width] <= piece.height
    return pieces


def test_a_full_box_packs_without_a_gap() -> None:
    kernels = [Choice(size) for size in [(4, 6), (4, 6), (2, 8), (2, 8), (8, 2)]]
    problem = problem_of(kernels, 12, 8)
    pieces_of(problem, fit_tight(problem, 1, 2000, random.Random(0)))


def test_a_kernel_takes_the_proportions_that_fit() -> None:
    problem = problem_of([Choice((8, 3)), Choice((12, 1), (4, 3))], 12, 3)
    pieces = pieces_of(problem, fit_bands(problem, [0, 1], 1))
    assert (pieces[1].width, pieces[1].height) == (4, 3)


class Shrinking:
    """A square that is smaller at larger targets."""

    def __init__(self, side: int) -> None:
        self._side = side

    def heights(self, target: float) -> Ints:
        return Choice((round(self._side / target),) * 2).heights(target)


def test_trees_at_different_targets_may_share_pieces() -> None:
    """The shared piece follows the tree that is cut, whatever the other one made of it before."""
    problem = problem_of([Shrinking(16), Shrinking(16), Shrinking(24)], 64, 64)
    shared = cut(True, [Node(0), Node(1)])
    tree, other = cut(False, [shared, Node(2)]), cut(False, [Node(2), shared])
    plan = problem.floorplan(tree, 1)
    before = pieces_of(problem, plan)
    assert problem.floorplan(other, 2) is not None
    assert pieces_of(problem, plan) == before
    assert problem.floorplan(tree, 1) == plan


@pytest.mark.parametrize("sizes", [[(5, 5), (5, 5)], [(9, 1)], [(8, 8), (1, 1)]])
def test_graphs_that_do_not_fit_have_no_floorplan(sizes: list[tuple[int, int]]) -> None:
    problem = problem_of([Choice(size) for size in sizes], 8, 8)
    assert fit_bands(problem, range(len(sizes)), 1) is None
    assert fit_tight(problem, 1, 200, random.Random(0)) is None


def test_bands_follow_the_order_and_every_other_one_runs_back() -> None:
    problem = problem_of([Choice((5, 4))] * 4, 10, 8, chain(4))
    plans = [problem.floorplan(tree, 1) for tree in band_trees(problem, range(4), 1, 10, 8)]
    pieces = pieces_of(problem, min((plan for plan in plans if plan), key=lambda plan: plan.objective))
    distances = [abs(a.x - b.x) + abs(a.y - b.y) for a, b in pairwise(pieces)]
    assert max(distances) <= 5
    assert len({(piece.x, piece.y) for piece in pieces}) == 4


def fits_somehow(rectangles: Sequence[tuple[int, int]], width: int, height: int) -> bool:
    """Tries every place of every rectangle in both orientations; tiles are bits."""
    if not rectangles:
        return True

    def search(taken: int, rest: Sequence[tuple[int, int]]) -> bool:
        if not rest:
            return True
        for w, h in {rest[0], rest[0][::-1]}:
            for y in range(height - h + 1):
                for x in range(width - w + 1):
                    row = ((1 << w) - 1) << x
                    tiles = sum(row << width * (y + line) for line in range(h))
                    if not tiles & taken and search(taken | tiles, rest[1:]):
                        return True
        return False

    return search(0, sorted(rectangles, key=lambda size: -size[0] * size[1]))


def test_four_rectangles_fit_exactly_where_brute_force_finds_a_packing() -> None:
    """Any packing of up to four rectangles can be cut straight through, so none may be missed."""
    rng = random.Random(5)
    verdicts = []
    for _ in range(60):
        width, height = rng.randint(4, 7), rng.randint(4, 6)
        sizes = [(rng.randint(1, 5), rng.randint(1, 4)) for _ in range(4)]
        if sum(w * h for w, h in sizes) > width * height:
            continue
        problem = problem_of([Choice(size) for size in sizes], width, height)
        plan = fit_bands(problem, range(4), 1) or fit_tight(problem, 1, 1000, random.Random(0))
        verdict = fits_somehow(sizes, width, height)
        assert (plan is not None) == verdict, (sizes, width, height)
        if plan is not None:
            pieces_of(problem, plan)
        verdicts.append(verdict)
    assert True in verdicts
    assert False in verdicts


def test_annealing_shortens_the_wires_of_a_shuffled_chain() -> None:
    order = list(range(16))
    random.Random(1).shuffle(order)
    problem = problem_of([Choice((4, 4))] * 16, 16, 16, chain(16))
    tree = cut(
        True, [cut(False, [Node(kernel) for kernel in order[row : row + 4]]) for row in range(0, 16, 4)]
    )
    start = problem.floorplan(tree, 1)
    assert start is not None

    def realize(changed: Node, limit: float) -> Floorplan | None:
        found = problem.floorplan(changed, 1)
        return found if found is not None and found.objective < limit else None

    best = anneal(problem, tree, 1, Schedule(3000, 0.02, 5.0), random.Random(0), realize)
    pieces_of(problem, best)
    assert best is not None
    # A chain of 16 squares of side 4 has 15 wires of at least 4.
    assert 15 * 4 <= best.objective - 1 < 1.35 * 15 * 4 < start.objective


def test_the_box_of_few_kernels_is_the_one_of_the_shortest_wires() -> None:
    """Flat kernels on top of each other: 1 from center to center; tall ones side by side are 9."""
    problem = problem_of([Choice((9, 1), (3, 3))] * 4, 60, 60, chain(4))
    plan = problem.floorplan(cut(True, [Node(index) for index in range(4)]), 1)
    assert plan is not None
    assert plan.objective == 1 + 3 * 1


def test_push_moves_rectangles_together_without_overlap() -> None:
    problem = problem_of([Choice((2, 2))] * 4, 40, 10, [(0, 3), (1, 2)])
    sizes = np.full((4, 2), 2)
    places = push(problem, np.array([(0, 0), (10, 0), (20, 0), (30, 0)]), sizes)
    rects = [Rect(int(x), int(y), 2, 2) for x, y in places]
    assert not any(one.overlaps(other) for one, other in combinations(rects, 2))
    assert all(0 <= rect.x <= 38 and 0 <= rect.y <= 8 for rect in rects)
    # 30 + 10 before; the inner pair can touch, the outer pair too.
    assert problem.wires(places + sizes / 2) <= 8


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_push_takes_along_what_is_in_the_way(axis: int, turned: bool) -> None:
    """A kernel jumps to its partner's place, pushes that and two others on, and passes another one."""
    problem = problem_of([Choice((2, 2))] * 5, 40, 40, [(0, 4)] * 9)
    along = np.array([0, 2, 5, 5, 30])
    across = np.array([10, 11, 12, 20, 10])
    places = np.stack([38 - along if turned else along, across][:: 1 if axis == 0 else -1], axis=1)
    pushed = push(problem, places, np.full((5, 2), 2), max_passes=1)[:, axis]
    assert (38 - pushed if turned else pushed).tolist() == [30, 32, 34, 5, 34]


def test_centers_are_the_middles_of_the_pieces() -> None:
    problem = problem_of([Choice((3, 2), (2, 4)), Choice((1, 5)), Choice((4, 4)), Choice((2, 1))], 40, 40, [])
    leaves = [Node(index) for index in range(4)]
    tree = cut(True, [leaves[2], cut(False, [leaves[0], cut(True, [leaves[3], leaves[1]])])])
    for target in (2, 1, 2):  # nodes remember one target
        shapes = problem.shapes(target)
        box = Box(3, 4, 20, 30)
        pieces = sorted(tree.pieces(box, shapes))
        middles = [(x + width / 2, y + height / 2) for _, x, y, width, height in pieces]
        assert list(zip(*tree.centers(box, shapes), strict=True)) == middles
    alone = problem_of([Choice((3, 2))], 40, 40, [])
    assert Node(0).centers(Box(3, 4, 3, 2), alone.shapes(1)) == ([4.5], [5.0])


def test_flow_order_puts_sources_first_and_survives_cycles() -> None:
    assert flow_order(4, [(2, 0), (0, 3), (3, 1)]) == [2, 0, 3, 1]
    assert sorted(flow_order(4, [(0, 1), (1, 2), (2, 1), (2, 3)])) == [0, 1, 2, 3]


def test_shorten_order_untangles_a_chain() -> None:
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    found = shorten_order(order, chain(8), [1.0] * 8, 2000, random.Random(0))
    assert found in ([*range(8)], [*reversed(range(8))])


def test_sorted_runs_keep_the_order_of_the_runs() -> None:
    assert sort_runs([0, 1, 2, 3, 4], [1, 5, 2, 9, 3], 2) == [1, 0, 3, 2, 4]
    assert sort_runs([3, 1, 2], [0, 0, 0, 0], 1) == [3, 1, 2]

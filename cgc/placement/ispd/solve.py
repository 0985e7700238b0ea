"""The solver: a search with each promising set of rectangles, and places from the best floorplan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from cgc.placement.engine.anneal import Stop
from cgc.placement.ispd.bounds import Bounds
from cgc.placement.ispd.errors import ContestError
from cgc.placement.ispd.finish import solution_of
from cgc.placement.ispd.model import ContestGraph, Placed
from cgc.placement.ispd.score import Score, score
from cgc.placement.ispd.search import Search
from cgc.placement.ispd.variants import Variant, variants

MOVES_PER_ROUND = 8_000
"""Changes of an annealing round."""

_SEARCH_SHARE, _SEARCH_RESERVE_S, _END_RESERVE_S = 0.95, 0.5, 0.2
_VARIANTS_SHARE, _SCAN_SHARE = 0.05, 0.4


@dataclass(frozen=True)
class Result:
    """What the solver found.

    Attributes:
        solution: places of all kernels, legal.
        score: of the solution.
        bounds: what no solution can beat.
        seconds: that the search took.
        finished: whether the search came to its end, so that graph and seed alone determine the result.
    """

    solution: dict[str, Placed]
    score: Score
    bounds: Bounds
    seconds: float
    finished: bool


def solve(
    graph: ContestGraph,
    time_limit_s: float = 60.0,
    seed: int = 0,
    *,
    interrupted: Stop = lambda: False,
    moves_per_round: int = MOVES_PER_ROUND,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Solves a graph of the contest.

    Args:
        graph: the graph.
        time_limit_s: wall-clock seconds; the search ends earlier where it comes to its end. A first solution
            is looked for even when that takes longer.
        seed: of the random changes.
        interrupted: whether the caller wants the best solution so far.
        moves_per_round: changes of an annealing round; more take longer and find more.
        clock: seconds from any start.

    Raises:
        ContestError: the graph does not fit at any speed, or no way to pack it was found.
    """
    begin = clock()
    tried = variants(graph, lambda: clock() >= begin + time_limit_s * _VARIANTS_SHARE)
    results: list[Result] = []
    failure: ContestError | None = None
    for number, variant in enumerate(tried):
        end = begin + time_limit_s * (number + 1) / len(tried)
        if results and (interrupted() or clock() >= end):
            break
        try:
            results.append(_solved(graph, variant, seed, moves_per_round, end, interrupted, clock))
        except ContestError as error:
            failure = error
    if not results:
        assert failure is not None
        raise failure
    best = min(results, key=lambda result: result.score.objective)
    finished = len(results) == len(tried) and all(result.finished for result in results)
    return replace(best, bounds=tried[0].bounds, seconds=clock() - begin, finished=finished)


def _solved(
    graph: ContestGraph,
    variant: Variant,
    seed: int,
    moves: int,
    end: float,
    interrupted: Stop,
    clock: Callable[[], float],
) -> Result:
    """The best solution with the rectangles of one variant, until some second of the clock."""
    begin = clock()
    span = end - begin
    limit = begin + max(0.0, span * _SEARCH_SHARE - _SEARCH_RESERVE_S)
    scan_limit = begin + span * _SCAN_SHARE
    search = Search(
        graph, variant.curves, variant.bounds, seed, moves, lambda: interrupted() or clock() >= limit
    )
    plan = search.run(lambda: interrupted() or clock() >= scan_limit)
    late = max(limit, end - _END_RESERVE_S)
    solution = solution_of(search.problem, plan, lambda: clock() >= late)
    found = score(graph, solution)
    if not found.legal:
        raise AssertionError(f"the solver made an illegal solution: {'; '.join(found.faults)}")
    return Result(solution, found, variant.bounds, clock() - begin, search.finished)

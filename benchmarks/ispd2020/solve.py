"""The solver: a legal solution soon, then the search for the best one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.ispd2020.bounds import Bounds, bounds
from benchmarks.ispd2020.curves import ContestProblem, Fixed, KernelCurves, graph_curves
from benchmarks.ispd2020.finish import matched_solution, solution_of
from benchmarks.ispd2020.format import ContestError
from benchmarks.ispd2020.joint_search import ROOMY, JointSearch, Matched, Start
from benchmarks.ispd2020.labels import fixed_by, label_of, share_of_fabric
from benchmarks.ispd2020.model import ContestGraph, Placed
from benchmarks.ispd2020.score import Score, score
from benchmarks.ispd2020.search import Search, first_floorplan
from cgc.placement.engine.anneal import Stop
from cgc.placement.engine.problem import Floorplan

MOVES_PER_ROUND = 8_000
"""Changes of an annealing round."""

_SEARCH_SHARE, _SEARCH_RESERVE_S, _END_RESERVE_S = 0.95, 0.5, 0.2
_SCAN_SHARE = 0.4
_SHARE_BEFORE_ADAPTERS = 0.3
"""Share of the time for floorplans without regard to adapters, where they cost."""

_REPORT_EVERY_SHARE = 0.02
_AGREED_SHARE = 0.35
"""Share of the time that is left then for floorplans in which many of the numbers are given."""

_FIRST_STEP, _FIRST_TARGETS = 2.0, 14
_FEW_SPLITS = 12
"""Values of h' and w' for the first solution."""


@dataclass(frozen=True)
class Result:
    """The result of the solver.

    Attributes:
        solution: places of all kernels, legal.
        score: of the solution.
        bounds: what no solution can beat; None where time was up before they were known.
        seconds: that the search took.
        finished: whether the search came to its end, so that graph and seed alone determine the result.
    """

    solution: dict[str, Placed]
    score: Score
    bounds: Bounds | None
    seconds: float
    finished: bool

    @property
    def known_bounds(self) -> Bounds:
        """The bounds of a result that `solve` returned.

        Raises:
            ValueError: they are not known.
        """
        if self.bounds is None:
            raise ValueError("the bounds are not known: time was up before")
        return self.bounds


def solve(
    graph: ContestGraph,
    time_limit_s: float = 60.0,
    seed: int = 0,
    *,
    interrupted: Stop = lambda: False,
    moves_per_round: int = MOVES_PER_ROUND,
    clock: Callable[[], float] = time.monotonic,
    found: Callable[[Result], None] = lambda result: None,
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
        found: is told of better and better solutions on the way, for a caller that cannot wait for the end.

    Raises:
        ContestError: the graph does not fit at any speed, or no way to pack it was found.
    """
    return _Solver(graph, time_limit_s, seed, interrupted, moves_per_round, clock, found).run()


class _Searched(NamedTuple):
    """Floorplans that a search found, best first, and whether it came to its end."""

    starts: list[Start]
    finished: bool


class _Solver:
    """One run of the solver: the best solution so far, and how much of the time is left."""

    def __init__(
        self,
        graph: ContestGraph,
        time_limit_s: float,
        seed: int,
        interrupted: Stop,
        moves: int,
        clock: Callable[[], float],
        found: Callable[[Result], None],
    ) -> None:
        self._graph = graph
        self._limit_s = time_limit_s
        self._seed = seed
        self._interrupted = interrupted
        self._moves = moves
        self._clock = clock
        self._found = found
        self._begin = clock()
        self._reported = 0.0
        self._bounds: Bounds | None = None
        self._best: Result | None = None

    def run(self) -> Result:
        """All stages; the best solution."""
        end = max(0.0, _SEARCH_SHARE - _SEARCH_RESERVE_S / self._limit_s)
        pays = self._graph.wadapter > 0 and bool(self._graph.edges)
        self._soon()
        curves = self._curves()
        limits = bounds(self._graph, curves, wires=False)
        searched = self._search(curves, limits, 0.0, end * _SHARE_BEFORE_ADAPTERS if pays else end)
        self._bounds = bounds(self._graph, curves)
        finished = searched.finished
        if pays:
            finished = self._match(searched, end)
        assert self._best is not None
        seconds = self._clock() - self._begin
        return replace(self._best, bounds=self._bounds, seconds=seconds, finished=finished)

    def _curves(self, few: int | None = None, fixed: Sequence[Fixed] | None = None) -> list[KernelCurves]:
        graph = self._graph
        return graph_curves(graph.kernels, graph.width, graph.height, graph.memlimit, few, fixed)

    def _spent(self) -> float:
        """Time since the start as a share of the limit."""
        return (self._clock() - self._begin) / self._limit_s

    def _until(self, share: float) -> Stop:
        return lambda: self._interrupted() or self._spent() >= share

    def _soon(self) -> None:
        """First solutions with few of the splits; where these do not fit, the search says more.

        The first one is as fast as the area allows, the second one is at the target that suits the wires.
        """
        try:
            curves = self._curves(_FEW_SPLITS)
            problem = ContestProblem(self._graph, curves)
            lowest = bounds(self._graph, curves, wires=False).time
        except ContestError:
            return
        plan = first_floorplan(problem, lowest)
        if plan is None:
            return
        self._keep(solution_of(problem, plan, lambda: True))
        targets = [lowest * _FIRST_STEP**number for number in range(_FIRST_TARGETS)]
        best = min(targets, key=problem.least_objective)
        if best > lowest and (plan := first_floorplan(problem, best)) is not None:
            self._keep(solution_of(problem, plan, lambda: True))

    def _search(self, curves: list[KernelCurves], limits: Bounds, begin: float, end: float) -> _Searched:
        """Floorplans for time and wires with some rectangles, in some share of the time."""
        if self._best is not None and self._until(end)():
            return _Searched([], False)
        patient = self._best is None
        search = Search(self._graph, curves, limits, self._seed, self._moves, self._until(end), patient)

        def report(plan: Floorplan) -> None:
            if self._may_report():
                self._keep(solution_of(search.problem, plan, lambda: True))

        try:
            plans = search.run(self._until(begin + (end - begin) * _SCAN_SHARE), report)
        except ContestError:
            if patient:
                raise
            return _Searched([], False)
        self._keep(solution_of(search.problem, plans[0], self._until(self._last_call(end))))
        return _Searched([self._start(search.problem, plan) for plan in plans], search.finished)

    def _start(self, problem: ContestProblem, plan: Floorplan) -> Start:
        solution = solution_of(problem, plan, lambda: True)
        kernels = self._graph.kernels
        return Start(plan.tree, [label_of(kernel, solution[kernel.name].splits) for kernel in kernels])

    def _match(self, searched: _Searched, end: float) -> bool:
        """Floorplans and execution arguments together, for few adapters; whether that came to its end."""
        assert self._bounds is not None
        assert self._best is not None

        def report(plan: Matched) -> None:
            self._keep(matched_solution(self._graph, plan, self._until(self._last_call(end))))

        stop = self._until(end)
        joint = JointSearch(self._graph, self._bounds.time, self._seed, self._moves, stop, report)
        agreements = joint.agreements(self._best.score.objective)
        starts, finished = list(searched.starts[:1]), searched.finished
        for labels in agreements:
            if (start := joint.start(labels)) is not None:
                starts.append(start)
        full = [labels for labels in agreements if share_of_fabric(self._graph, labels) > ROOMY]
        if full:
            begin = self._spent()
            try:
                curves = self._curves(None, fixed_by(self._graph, full[0]))
                limits = bounds(self._graph, curves, wires=False)
                found = self._search(curves, limits, begin, begin + _AGREED_SHARE * (end - begin))
            except ContestError:
                found = _Searched([], True)
            starts += found.starts[:1]
            finished = finished and found.finished
        joint.run(starts)
        return finished and not stop()

    def _last_call(self, end: float) -> float:
        """Until when a floorplan is made a good solution, as a share of the time."""
        return max(end, min(1.0, end + 0.1) - _END_RESERVE_S / self._limit_s)

    def _may_report(self) -> bool:
        """The first floorplan is reported at once, others only now and then."""
        spent = self._spent()
        if self._best is not None and spent < self._reported + _REPORT_EVERY_SHARE:
            return False
        self._reported = spent
        return True

    def _keep(self, solution: dict[str, Placed]) -> None:
        found = score(self._graph, solution)
        if not found.legal:
            raise AssertionError(f"the solver made an illegal solution: {'; '.join(found.faults)}")
        if self._best is None or found.objective < self._best.score.objective:
            seconds = self._clock() - self._begin
            self._best = Result(solution, found, self._bounds, seconds, finished=False)
            self._found(self._best)


_POLL_S = 0.02


def solve_until(
    graph: ContestGraph, deadline: Callable[[], float], seed: int = 0, *, interrupted: Stop = lambda: False
) -> Result:
    """The best solution at the deadline; a first one is waited for even when that takes longer.

    Args:
        graph: the graph.
        deadline: by `time.monotonic()`; asked again and again, as what is left to do afterwards may take
            longer on a machine that becomes busier.
        seed: of the random changes.
        interrupted: whether the caller wants the best solution so far.

    Raises:
        ContestError: the graph does not fit at any speed, or no way to pack it was found.
    """
    begin = time.monotonic()
    run = _Run(graph, max(_POLL_S, deadline() - begin), seed)
    while not run.ended():
        if run.best is not None and (interrupted() or time.monotonic() >= deadline()):
            return replace(run.stopped(), seconds=time.monotonic() - begin)
        if interrupted():
            run.hurry()
        time.sleep(_POLL_S)
    return run.result()


class _Run:
    """A search in its thread."""

    def __init__(self, graph: ContestGraph, limit_s: float, seed: int) -> None:
        self.best: Result | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(graph, limit_s, seed), daemon=True)
        self._thread.start()

    def _work(self, graph: ContestGraph, limit_s: float, seed: int) -> None:
        try:
            self._result = solve(graph, limit_s, seed, interrupted=self._hurry.is_set, found=self._remember)
        except BaseException as error:  # handed to the caller, who raises it in his thread
            self._error = error

    def _remember(self, result: Result) -> None:
        self.best = result

    def ended(self) -> bool:
        return not self._thread.is_alive()

    def hurry(self) -> None:
        self._hurry.set()

    def stopped(self) -> Result:
        """The best solution; the search ends on its own soon."""
        self._hurry.set()
        assert self.best is not None
        return self.best

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

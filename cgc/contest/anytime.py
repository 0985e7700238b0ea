"""A solution when the time is up, whatever the search is busy with then.

The search runs in a thread of its own and tells of better solutions on the way; so the caller has the best
one in hand at any moment, also on a machine so busy that a single step of the search takes seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from cgc.contest.model import ContestGraph
from cgc.contest.solve import Result, solve
from cgc.placement.engine.anneal import Stop

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

"""A solution at the deadline, whatever the search is busy with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.ispd2020 import solve as solver
from benchmarks.ispd2020.format import ContestError, parse_graph
from benchmarks.ispd2020.model import ContestGraph
from benchmarks.ispd2020.solve import Result, solve, solve_until

BUSY_S = 200.0

Found = Callable[[Result], None]


@pytest.fixture
def graph() -> ContestGraph:
    header = "width=30\nheight=30\nwdeltat=1\nwlength=1\nwadapter=0\nmemlimit=2000"
    return parse_graph(f"(*\n{header}\n*)\nconv[1] W=7 H=7 R=1 S=1 C=16 K=16 T=1 U=1 name='k1'\n")


def busy_solver(monkeypatch: pytest.MonkeyPatch, first_after_s: float) -> threading.Event:
    """A search that finds a solution and then does not look at the clock; the event ends it."""
    end = threading.Event()

    def stuck(graph: ContestGraph, *_: Any, found: Found, **__: Any) -> Result:
        result = solve(graph, 0.2, moves_per_round=10)
        end.wait(first_after_s)
        found(result)
        end.wait(BUSY_S)
        return result

    monkeypatch.setattr(solver, "solve", stuck)
    return end


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_busy_search_is_not_waited_for(
    graph: ContestGraph, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    end, before = busy_solver(monkeypatch, 0), set(threading.enumerate())
    begin = time.monotonic()
    limit = BUSY_S if interrupted else 1.0
    result = solve_until(graph, lambda: begin + limit, interrupted=lambda: interrupted)
    assert set(threading.enumerate()) - before, "the search is still busy"
    end.set()
    assert result.score.legal
    assert not result.finished


def test_a_first_solution_is_waited_for(graph: ContestGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    end = busy_solver(monkeypatch, 1.0)
    begin = time.monotonic()
    result = solve_until(graph, lambda: begin + 0.1)
    end.set()
    assert time.monotonic() - begin >= 1.0
    assert result.score.legal


def test_a_search_that_ends_ends_the_waiting(graph: ContestGraph) -> None:
    begin = time.monotonic()
    assert solve_until(graph, lambda: begin + 60, seed=3).finished


def test_errors_come_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "conv[1] W=7 H=7 R=1 S=1 C=16 K=16 T=1 U=1 name='k1'"
    header = "width=2\nheight=2\nwdeltat=1\nwlength=1\nwadapter=0\nmemlimit=2000"
    graph = parse_graph(f"(*\n{header}\n*)\n{text}\n")
    begin = time.monotonic()
    with pytest.raises(ContestError, match="does not fit"):
        solve_until(graph, lambda: begin + 60)

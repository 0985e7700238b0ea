"""The contest solver and its command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.ispd2020.__main__ import main, solve_json, solve_text
from benchmarks.ispd2020.format import parse_graph, parse_solution
from benchmarks.ispd2020.model import ContestGraph
from benchmarks.ispd2020.score import score
from benchmarks.ispd2020.solve import solve
from cgc.placement.engine.packing import MAX_COLUMN_KERNELS

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "ispd2020"
SAMPLE_SCORES = {"A": 74_617.5, "C": 154_597.5, "D": 61_891.5}
"""Public sample solutions of the contest, scored by its rules."""


def chain(count: int, side: int = 80, wlength: float = 1, wadapter: float = 0) -> str:
    """A residual network in small: every third kernel also feeds the one after the next."""
    lines = [
        f"(*\ntest=chain\nwidth={side}\nheight={side}\nwdeltat=1\nwlength={wlength}\nwadapter={wadapter}",
        "memlimit=2000\n*)",
        "input[0] n=[14 14 32] name='k0'",
    ]
    for number in range(1, count + 1):
        size = 3 if number % 3 == 2 else 1
        channels = (32, 16, 16) if number % 3 == 1 else (16, 16, 32)
        lines.append(
            f"conv[{number}] W=14 H=14 R={size} S={size} C={channels[0]} K={channels[2]} T=1 U=1 "
            f"name='k{number}'"
        )
    for number in range(count):
        kind = "conv" if number else "input"
        lines.append(f"{kind}[{number}]:y -> conv[{number + 1}]:x, shape:[14][14][32]")
        if number % 3 == 1 and number + 2 <= count:
            lines.append(f"conv[{number}]:y -> conv[{number + 2}]:x, shape:[14][14][32]")
    return "\n".join(lines)


def graph_of(count: int, side: int = 80, wlength: float = 1, wadapter: float = 0) -> ContestGraph:
    return parse_graph(chain(count, side, wlength, wadapter))


def test_solution_is_legal_and_near_the_bounds() -> None:
    graph = graph_of(12)
    result = solve(graph, 60, moves_per_round=100)
    assert result.finished
    assert score(graph, result.solution) == result.score
    assert result.score.legal
    assert result.known_bounds.objective <= result.score.objective <= 1.25 * result.known_bounds.time


def test_same_seed_same_solution() -> None:
    graph = graph_of(6)
    results = [solve(graph, 100, seed=3, moves_per_round=50) for _ in range(2)]
    assert results[0].solution == results[1].solution


def test_heavy_wires_are_paid_for_with_time() -> None:
    light, heavy = (solve(graph_of(6, wlength=w), 60, moves_per_round=20).score for w in (0, 400))
    assert heavy.wires < light.wires
    assert light.time < heavy.time


def test_adapters_are_reduced_when_they_cost() -> None:
    free = solve(graph_of(9), 60, moves_per_round=30)
    paid = solve(graph_of(9, wadapter=100), 60, moves_per_round=30)
    assert paid.score.adapters < free.score.adapters


def test_kernels_agree_where_adapters_are_dear() -> None:
    """There are 33 numbers at edges; floorplans without regard to adapters mismatch in 15 and more."""
    paid = solve(graph_of(9, wadapter=3000), 60, moves_per_round=50)
    assert paid.score.adapters <= 4
    assert paid.score.legal


def test_a_result_without_bounds_is_reported() -> None:
    graph = graph_of(3)
    result = replace(solve(graph, 1, moves_per_round=10), bounds=None)
    assert "not known" in solve_text(graph, result)
    assert solve_json(graph, result)["objective_over_bound"] is None


def test_oblong_fabrics_are_filled() -> None:
    graph = replace(graph_of(9), width=200, height=30)
    result = solve(graph, 60, moves_per_round=100)
    assert result.score.legal
    assert result.score.used_tiles > 0.8 * 200 * 30


def test_a_single_kernel_reaches_the_bound() -> None:
    result = solve(graph_of(1, side=30), 20, moves_per_round=10)
    assert result.score.objective == pytest.approx(result.known_bounds.time, rel=2e-4)


class Questions:
    """A clock that counts work: the search asks it some 35,000 times in three seconds of a quiet CPU."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return 7e-5 * self.asked


def test_more_kernels_than_the_column_search_takes() -> None:
    kernels = 200
    assert kernels > MAX_COLUMN_KERNELS
    result = solve(graph_of(kernels, side=400), 3, clock=Questions())
    assert result.score.legal
    assert result.score.objective < 2 * result.known_bounds.objective


def test_time_limit_is_kept() -> None:
    clock = Questions()
    result = solve(graph_of(30, side=200), 0.8, clock=clock)
    assert clock() < 0.8 + 0.1
    assert result.score.legal
    assert not result.finished


def test_interrupted_search_returns_the_best_so_far() -> None:
    graph = graph_of(20)
    result = solve(graph, 1000, interrupted=lambda: True)
    assert result.score.legal
    assert not result.finished


@pytest.mark.soak
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published graphs are not next to this checkout")
@pytest.mark.parametrize("name", sorted(SAMPLE_SCORES))
def test_published_graphs_beat_the_sample_solutions_in_seconds(name: str) -> None:
    graph = parse_graph((PUBLISHED / f"{name}.kgraph").read_text(encoding="utf-8"), name)
    result = solve(graph, 2.5)
    assert result.score.legal
    assert result.score.objective < 0.7 * SAMPLE_SCORES[name]
    assert result.score.objective < 1.25 * result.known_bounds.time


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_solve_and_score_agree(tmp_path: Path) -> None:
    graph, solution = tmp_path / "g.kgraph", tmp_path / "g.paint"
    graph.write_text(chain(6, wadapter=100), encoding="utf-8")
    solved = run("solve", str(graph), "-o", str(solution), "--time-limit", "0.5", "--json")
    assert solved.exit_code == 0
    report = json.loads(solved.stdout)
    scored = run("score", str(graph), str(solution), "--json")
    assert scored.exit_code == 0
    found = json.loads(scored.stdout)
    assert found["legal"]
    assert found["objective"] == report["objective"]
    assert report["objective_over_time_bound"] >= 1
    assert "own definition" in found["adapter_note"]
    assert "own definition" in run("score", str(graph), str(solution)).stdout


def test_solution_on_standard_output_is_nothing_but_the_solution(tmp_path: Path) -> None:
    solved = CliRunner().invoke(main, ["solve", "-", "--time-limit", "1"], input=chain(4))
    assert solved.exit_code == 0
    graph = parse_graph(chain(4))
    assert score(graph, parse_solution(solved.stdout, graph)).legal
    assert "objective" in solved.stderr


def test_wire_penalty_replaces_the_weight_of_the_graph(tmp_path: Path) -> None:
    graph = tmp_path / "g.kgraph"
    graph.write_text(chain(3), encoding="utf-8")
    solved = run(
        "solve", str(graph), "-o", str(tmp_path / "o"), "--time-limit", "1", "--wire-penalty", "7", "--json"
    )
    assert json.loads(solved.stdout)["weights"]["wlength"] == 7


def test_illegal_solution_has_exit_code_1_and_names_the_fault(tmp_path: Path) -> None:
    graph, solution = tmp_path / "g.kgraph", tmp_path / "g.paint"
    graph.write_text(chain(2), encoding="utf-8")
    solution.write_text("k1 = conv( 14 14 32 16 1 1 1 1 1 1 1 1 )\nk1 : place(79 0 R0)\n", encoding="utf-8")
    scored = run("score", str(graph), str(solution))
    assert scored.exit_code == 1
    assert "ILLEGAL" in scored.stdout
    assert "k1 lies on x 79..81" in scored.stdout
    assert "k2 is not placed" in scored.stdout


def test_impossible_graph_has_exit_code_1(tmp_path: Path) -> None:
    graph = tmp_path / "g.kgraph"
    graph.write_text(chain(3, side=4), encoding="utf-8")
    solved = run("solve", str(graph), "-o", str(tmp_path / "o"))
    assert solved.exit_code == 1
    assert "does not fit on 4 x 4 tiles" in solved.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["solve", "{dir}/absent"], 2, "absent: cannot be read: No such file"),
        (["solve", "{dir}/g", "-o", "{dir}/none/o"], 1, "expected a file name in a folder that exists"),
        (["solve", "{dir}/g", "--time-limit", "0"], 2, "--time-limit"),
        (["solve", "{dir}/bad"], 2, "bad:1: got 'what'"),
        (["score", "{dir}/g", "{dir}/bad"], 2, "bad:1: got 'what'"),
        (["score", "{dir}/g"], 2, "SOLUTION"),
    ],
)
def test_bad_usage_is_explained(tmp_path: Path, arguments: list[str], exit_code: int, message: str) -> None:
    (tmp_path / "g").write_text(chain(2), encoding="utf-8")
    (tmp_path / "bad").write_text("what\n", encoding="utf-8")
    result = run(*(argument.format(dir=tmp_path) for argument in arguments))
    assert result.exit_code == exit_code
    assert message in result.stderr


def test_help_shows_examples() -> None:
    assert "python -m benchmarks.ispd2020 solve A.kgraph" in run("solve", "--help").stdout
    assert "python -m benchmarks.ispd2020 score A.kgraph" in run("score", "--help").stdout


def test_ctrl_c_writes_the_best_solution_so_far(tmp_path: Path) -> None:
    graph, solution = tmp_path / "g.kgraph", tmp_path / "g.paint"
    graph.write_text(chain(20), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.ispd2020", "solve", str(graph), "-o", str(solution)]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    checkout = Path(__file__).parents[4]  # benchmarks are not installed
    with subprocess.Popen([*command, "--time-limit", "1000"], cwd=checkout, **pipes) as process:
        try:
            assert process.stderr is not None
            assert "Ctrl-C writes the best solution so far" in process.stderr.readline()
            os.kill(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "stopped before the end" in output
    read = parse_graph(chain(20))
    assert score(read, parse_solution(solution.read_text(encoding="utf-8"), read)).legal

"""`python -m benchmarks.ispd2020`: solves and scores graphs of the ISPD 2020 contest."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from benchmarks.ispd2020.bounds import Bounds
from benchmarks.ispd2020.format import ContestFileError, format_solution, parse_graph, parse_solution
from benchmarks.ispd2020.model import ContestGraph
from benchmarks.ispd2020.score import ADAPTER_NOTE, Score, score
from benchmarks.ispd2020.solve import Result, solve_until
from cgc.errors import CompileError

_STANDARD = "-"
_RESERVE_CPU_S, _MOST_RESERVE = 0.2, 0.25
"""Processor time for writing the solution and ending the program, and its most as a share of the limit."""

_STARTED = 21
"""Where /proc/self/stat has the start of the process, counted from 0."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Solve and score graphs of the ISPD 2020 wafer-scale placement contest.

    \b
    Examples:
      python -m benchmarks.ispd2020 solve A.kgraph -o A.paint --time-limit 60
      python -m benchmarks.ispd2020 score A.kgraph A.paint --json

    Exit status: 0, 1 for a graph that has no legal placement, an illegal solution or a file that cannot be
    written, 2 for bad usage or input.
    """


@main.command("solve")
@click.argument("graph", metavar="GRAPH.kgraph|-")
@click.option("-o", "--output", metavar="OUT.paint", help="Write the solution here, not to standard output.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Wall-clock limit.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random changes.")
@click.option(
    "--wire-penalty",
    type=click.FloatRange(min=0, max=1e12),
    metavar="WEIGHT",
    help="Weight of the wires in place of the graph's wlength.",
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def solve_command(
    graph: str,
    output: str | None,
    time_limit: float,
    seed: int,
    wire_penalty: float | None,
    as_json: bool,
) -> None:
    """Place the kernels of GRAPH.kgraph and write the solution.

    The best legal solution so far is kept, and written when the time is up or on Ctrl-C. The report goes to
    standard output, or to standard error where the solution goes to standard output.

    \b
    Examples:
      python -m benchmarks.ispd2020 solve A.kgraph -o A.paint
      python -m benchmarks.ispd2020 solve - --time-limit 10 --seed 7 < A.kgraph > A.paint
    """

    def work() -> None:
        problem = _read_graph(graph)
        if wire_penalty is not None:
            problem = replace(problem, wlength=wire_penalty)
        _check_writable(output)
        with _interrupts() as interrupted:
            click.echo(
                f"placing {len(problem.kernels)} kernels on {problem.width} x {problem.height} tiles for at "
                f"most {time_limit:g} s; Ctrl-C writes the best solution so far",
                err=True,
            )
            began = time.monotonic() - (click.get_current_context().obj or 0.0)
            result = solve_until(
                problem, lambda: began + time_limit - _reserve_s(time_limit), seed, interrupted=interrupted
            )
        text = format_solution(problem, result.solution)
        report = solve_json(problem, result) if as_json else solve_text(problem, result)
        if output is None:
            click.echo(text, nl=False)
        else:
            Path(output).write_text(text, encoding="utf-8")
        click.echo(json.dumps(report, indent=2) if isinstance(report, dict) else report, err=output is None)

    _run(work)


@main.command("score")
@click.argument("graph", metavar="GRAPH.kgraph")
@click.argument("solution", metavar="SOLUTION.paint|-")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def score_command(graph: str, solution: str, as_json: bool) -> None:
    """Check SOLUTION.paint against GRAPH.kgraph and compute its objective.

    \b
    Example:
      python -m benchmarks.ispd2020 score A.kgraph A.paint
    """

    def work() -> None:
        problem = _read_graph(graph)
        found = score(problem, parse_solution(_read(solution), problem, solution))
        if as_json:
            click.echo(json.dumps(score_json(problem, found), indent=2))
        else:
            click.echo(score_text(problem, found))
        if not found.legal:
            sys.exit(1)

    _run(work)


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except CompileError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        _fail(f"cannot write {error.filename}: {error.strerror or error}", 1)


def _fail(message: str, exit_code: int) -> NoReturn:
    click.echo(f"benchmarks.ispd2020: error: {message}", err=True)
    sys.exit(exit_code)


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == _STANDARD else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ContestFileError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ContestFileError(f"{file}: is not UTF-8 text: {error}") from None


def _age_s() -> float:
    """Seconds since the process started; 0 where nothing tells."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    started_s = int(fields[_STARTED - 2]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def _reserve_s(time_limit: float) -> float:
    """Seconds to keep for the end: its processor time at the rate at which this process gets it."""
    slowness = max(1.0, _age_s() / max(1e-3, time.process_time()))
    return min(_RESERVE_CPU_S * slowness, _MOST_RESERVE * time_limit)


def _check_writable(output: str | None) -> None:
    """Finds out before the search, not after it, that a solution cannot be written."""
    if output is not None:
        folder = Path(output).parent
        if not folder.is_dir() or Path(output).is_dir() or not os.access(folder, os.W_OK):
            raise OSError(
                errno.EACCES, "expected a file name in a folder that exists and is writable", output
            )


def _read_graph(file: str) -> ContestGraph:
    return parse_graph(_read(file), file)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Record Ctrl-C or SIGTERM; the second one ends the program as usual."""
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def remember(number: int, _: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, remember)
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Report = dict[str, object]


def score_json(graph: ContestGraph, score: Score) -> Report:
    """A score with all its terms."""
    report: Report = {
        "test": graph.test,
        "legal": score.legal,
        "faults": list(score.faults),
        "objective": score.objective,
        "time_cycles": score.time,
        "slowest_kernel": score.slowest,
        "wire_length_tiles": score.wires,
        "adapter_cost": score.adapters,
        "weights": {"wdeltat": graph.wdeltat, "wlength": graph.wlength, "wadapter": graph.wadapter},
        "kernels": len(graph.kernels),
        "used_tiles": score.used_tiles,
        "used_share": score.used_tiles / (graph.width * graph.height),
        "largest_memory_words": score.largest_memory,
        "memory_limit_words": graph.memlimit,
    }
    if graph.wadapter:
        report["adapter_note"] = ADAPTER_NOTE
    return report


def score_text(graph: ContestGraph, score: Score) -> str:
    """A score in lines of text."""
    lines = [f"{graph.test or 'graph'}: {'legal' if score.legal else 'ILLEGAL'}"]
    lines += [f"  fault: {fault}" for fault in score.faults]
    used = score.used_tiles / (graph.width * graph.height)
    lines += [
        f"  objective      {score.objective:,.1f}",
        f"  time           {score.time:,.2f} cycles (kernel {score.slowest}), weight {graph.wdeltat:g}",
        f"  wires          {score.wires:,.1f} tiles, weight {graph.wlength:g}",
    ]
    if graph.wadapter:
        lines += [
            f"  adapters       {score.adapters}, weight {graph.wadapter:g}",
            f"  note: {ADAPTER_NOTE}",
        ]
    return "\n".join(
        [
            *lines,
            f"  tiles          {score.used_tiles:,} ({used:.1%})",
            f"  memory         {score.largest_memory:,.1f} of {graph.memlimit:g} words",
        ]
    )


def solve_json(graph: ContestGraph, result: Result) -> Report:
    """The score of the solver's solution, and how far it is from the bounds; these are None if not known."""
    bounds = result.bounds
    return {
        **score_json(graph, result.score),
        "area_bound_cycles": bounds and bounds.area_time,
        "kernel_bound_cycles": bounds and bounds.kernel_time,
        "objective_over_time_bound": bounds and _ratio(graph, result.score, bounds),
        "objective_bound": bounds and bounds.objective,
        "objective_over_bound": bounds and _over(result.score.objective, bounds.objective),
        "seconds": result.seconds,
        "finished": result.finished,
    }


def solve_text(graph: ContestGraph, result: Result) -> str:
    """The same in lines of text."""
    end = "search ended" if result.finished else "stopped before the end of the search"
    return "\n".join(
        [
            score_text(graph, result.score),
            *_bound_lines(graph, result.score, result.bounds),
            f"  seconds        {result.seconds:.1f}, {end}",
        ]
    )


def _bound_lines(graph: ContestGraph, score: Score, bounds: Bounds | None) -> list[str]:
    if bounds is None:
        return ["  bounds         not known, as time was up before"]
    return [
        f"  time bound     {bounds.time:,.1f} cycles by area, memory and splits; objective is "
        f"{_times(_ratio(graph, score, bounds))} of it",
        f"  full bound     {bounds.objective:,.1f} for time and wires; objective is "
        f"{_times(_over(score.objective, bounds.objective))} of it",
    ]


def _ratio(graph: ContestGraph, score: Score, bounds: Bounds) -> float | None:
    return _over(score.objective, graph.wdeltat * bounds.time)


def _over(objective: float, bound: float) -> float | None:
    return objective / bound if bound > 0 else None


def _times(ratio: float | None) -> str:
    return "no multiple" if ratio is None else f"{ratio:.4f} times"


def _main() -> NoReturn:
    """Runs the program and ends it at once: on a busy machine it takes long to take down a search."""
    try:
        # What starting took counts towards the time limit.
        main(prog_name="python -m benchmarks.ispd2020", obj=_age_s())
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    os._exit(0)


if __name__ == "__main__":
    _main()

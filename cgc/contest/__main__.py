"""`python -m cgc.contest`: solves and scores graphs of the ISPD 2020 contest."""

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

from cgc.contest.anytime import solve_until
from cgc.contest.errors import ContestFileError
from cgc.contest.format import format_solution, parse_graph, parse_solution
from cgc.contest.model import ContestGraph
from cgc.contest.report import score_json, score_text, solve_json, solve_text
from cgc.contest.score import score
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
      python -m cgc.contest solve A.kgraph -o A.paint --time-limit 60
      python -m cgc.contest score A.kgraph A.paint --json

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
      python -m cgc.contest solve A.kgraph -o A.paint
      python -m cgc.contest solve - --time-limit 10 --seed 7 < A.kgraph > A.paint
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
      python -m cgc.contest score A.kgraph A.paint
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
    click.echo(f"cgc.contest: error: {message}", err=True)
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
    """Whether Ctrl-C or SIGTERM came; the second one ends the program as usual."""
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


def _main() -> NoReturn:
    """Runs the program and ends it at once: on a busy machine it takes long to take down a search."""
    try:
        # What starting took counts towards the time limit.
        main(prog_name="python -m cgc.contest", obj=_age_s())
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    os._exit(0)


if __name__ == "__main__":
    _main()

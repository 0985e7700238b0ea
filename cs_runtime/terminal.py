"""Output of a run: log format, lines while it waits, and excerpts of reports that fit a screen."""

# Excerpts are made from the text of a report, so that a run that finds its artifact needs no part of the
# compiler.

from __future__ import annotations

import logging
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cs_toolkit.log_lines import FIRST_LINE_S, LOG_FORMAT_VARIABLE, JsonFormatter, WaitLines

# The toolkit's loggers report progress at INFO; those of other libraries stay at WARNING.
PACKAGES = ("cgc", "cs_system", "cs_runtime", "cs_stream")
FORMAT = "%(asctime)s %(levelname)s: %(message)s"


def configure_logging(front_end: str) -> None:
    """Write the toolkit's log to stderr until the program configures logging.

    Args:
        front_end: Package name of the front end, whose logger is included.
    """
    if logging.getLogger().handlers:
        return
    # Not a handler of the root logger: with one, a later `basicConfig` of the program would do nothing.
    handler = logging.StreamHandler()
    in_json = os.environ.get(LOG_FORMAT_VARIABLE) == "json"
    text = logging.Formatter(FORMAT, datefmt="%H:%M:%S")
    handler.setFormatter(JsonFormatter(_task_fields) if in_json else text)
    logging.lastResort = handler
    for name in (*PACKAGES, front_end):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)


# Global step of the run, for lines in JSON.
_step: int | None = None


def name_step(step: int) -> None:
    """Set the global step that lines in JSON have from now on."""
    global _step
    _step = step


def _task_fields() -> dict[str, object]:
    job, rank = os.environ.get("CSRUN_JOB_ID"), os.environ.get("CSRUN_RANK")
    fields: dict[str, object] = {"job": job, "task": rank and int(rank), "step": _step}
    return {name: value for name, value in fields.items() if value is not None}


log = logging.getLogger("cs_runtime")

_CHECK_EVERY_S = 10.0


class WaitLog:
    """Logs why a task is blocked: after 7 s, when the reason changes, and then ever more rarely.

    Args:
        log_first: Log the first message immediately.
    """

    # The CS system reports every 2 s why it waits, so that a stalled run is explained within 10 s.
    def __init__(self, *, log_first: bool = False) -> None:
        self._lines = WaitLines(time.monotonic(), 0.0 if log_first else FIRST_LINE_S)

    def __call__(self, text: str) -> bool:
        """Log `text` if a line is due, and return True if it was."""
        due = self._lines.is_due(text, time.monotonic())
        if due:
            log.info("%s", text)
        return due

    def reset(self) -> None:
        """Begin the next wait."""
        self._lines.restart(time.monotonic())


@contextmanager
def log_while_blocked(what: str, doing: str = "waiting for the CS system to") -> Iterator[None]:
    """While the body blocks, log `waiting for the CS system to {what}, for N s`, ever more rarely."""
    ended, start_s = threading.Event(), time.monotonic()
    wait_lines = WaitLines(start_s)

    def log_lines() -> None:
        while not ended.wait(_CHECK_EVERY_S):
            text = f"{doing} {what}, for {time.monotonic() - start_s:.0f} s"
            if wait_lines.is_due(text, time.monotonic()):
                log.info("%s", text)

    thread = threading.Thread(target=log_lines, name="wait-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


_WIDTH = 100
ROWS = 10  # maximum number of rows of a long table

_ADVICE = ("To go faster", "Why it is not faster:")
# Sections whose facts are in the command or in another log line, and sections for readers of the file.
_OMITTED = (
    *("Model:", "Program:", "Precision:", "execution "),
    *("Generated kernels, from loop nests", *_ADVICE),
)
_HEAD = "Estimated Overall Performance"
# The lines of the head to keep; the last row of the table of kernels has all of them.
_OVERALL = ("Samples/s", "Active PEs", "Compute Utilization")
_TIMES = "Time of a step"
_FAMILY = "Family"
# The column with the share of a kernel family, and the whole of that share.
_FAMILY_SHARES = {"Active PEs": "the fabric", "PE time": "the PEs' time"}
_REPLICAS = "Replicas:"
# Starts the table of all candidates; a sentence before it has the chosen number and its neighbors.
_REPLICAS_TRIED = "\nNumbers of replicas"
# Short column names, so that a table fits a terminal of 100 columns.
_SHORT_NAMES = {
    "Kernel Name": "Kernel",
    "Compute Samples/s": "Compute",
    "Transmission Samples/s": "Transmission",
    "Compute Utilization": "Utilization",
}
_NOTES = "All figures are estimates"
_TOTALS = ("overall", "all")
# Sort key of the second cell that puts the slowest rows first, by the name of the first column.
_SLOWEST_FIRST: dict[str, Callable[[float], float]] = {"Kernel Name": float, "Layer": lambda ms: -ms}


def print_report(report: str) -> None:
    """Print a report to stdout."""
    sys.stdout.write(report)
    sys.stdout.flush()  # keeps its place between log lines if both go to one file


def shorten_report(text: str, rows: int = ROWS, file: str = "compile_report.txt") -> str:
    """Shorten a text report so that it fits a screen together with the log of the compile.

    Tables of kernels and layers keep their slowest rows, in the original order, and the total. The head
    becomes a line, families and times become sentences. Only the file has the loops of generated kernels, the
    facts of the program, the advice, and the explanation of the figures.

    Args:
        text: The report, with empty lines between its sections.
        rows: Number of kernels or layers to keep.
        file: Path of the full report.
    """
    sections = [section for section in text.strip("\n").split("\n\n") if not section.startswith(_OMITTED)]
    brief = [_shorten_section(_shorten_table(section, rows, file)) for section in sections]
    return "\n".join(f"\n{section}" if "\n" in section else section for section in brief).strip("\n") + "\n"


def _shorten_section(part: str) -> str:
    lines = part.strip("\n").split("\n")
    if part.startswith(_HEAD):
        values = dict(line.split(":", 1) for line in lines[2:])
        names = _OVERALL if values.keys() >= set(_OVERALL) else values
        return _format_sentence(_HEAD, [f"{name} {values[name].strip()}" for name in names])
    if part.startswith(_REPLICAS):
        return part.partition(_REPLICAS_TRIED)[0]
    if not part.startswith("+-"):
        return part.partition("\n")[0] if part.startswith(_NOTES) else part
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    if cells[0][0] == _TIMES:
        times = [f"{name} {ms} ({share})" for name, ms, share in cells[1:]]
        return _format_sentence(f"{_TIMES} in ms", times)
    if cells[0][0] == _FAMILY:
        column, whole = next(
            (cells[0].index(name), whole) for name, whole in _FAMILY_SHARES.items() if name in cells[0]
        )
        # The share of a family is in its own cell, or in parentheses after a number.
        shares = [f"{row[0]} {row[1]} ({row[column].rpartition('(')[2].rstrip(')')})" for row in cells[1:]]
        return _format_sentence(f"Kernels by family, with their share of {whole}", shares)
    return part if _FAMILY in cells[0] else _format_table(cells)  # the kernels of a validation are few


def _format_sentence(what: str, figures: Sequence[str]) -> str:
    return textwrap.fill(f"{what}: {', '.join(figures)}", _WIDTH)


def _format_table(rows: list[list[str]]) -> str:
    """Format a table without rules; a row of one cell is a note that spans all columns."""
    rows[0] = [_SHORT_NAMES.get(name, name) for name in rows[0]]
    whole = [row for row in rows if len(row) > 1]
    widths = [max(len(row[column]) for row in whole) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        numbers = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False))
        lines.append("  ".join([f"{first:<{widths[0]}}", *numbers]).rstrip())
    return "\n".join(lines)


def format_by_family(kernels: Sequence[tuple[str, bool, int]], file: str) -> str:
    """Summarize kernels with one line per family.

    Args:
        kernels: Family, whether it is generated, and number of ops of each kernel.
        file: Path of the full list.
    """
    ops = sum(count for *_, count in kernels)
    families = sorted({family for family, *_ in kernels})
    width = max(map(len, families), default=0)
    lines = [f"{len(kernels)} kernels for {ops} ops, by family:"]
    for family in families:
        own = [(generated, count) for name, generated, count in kernels if name == family]
        made = sum(generated for generated, _ in own)
        note = f", {made} of them generated" if made else ""
        lines.append(f"  {family:<{width}} {len(own):5} for {sum(count for _, count in own)} ops{note}")
    return "\n".join([*lines, f"all of them, with your source lines: {file}"]) + "\n"


def _shorten_table(table: str, rows: int, file: str) -> str:
    if not table.startswith("+-"):
        return table
    lines = table.split("\n")
    rules = [index for index, line in enumerate(lines) if line.startswith("+-")]
    slowness = _SLOWEST_FIRST.get(_cell(lines[1], 0))
    if slowness is None or len(rules) < 3:
        return table
    last = rules[2] - (_cell(lines[rules[2] - 1], 0) in _TOTALS)
    kept = lines[rules[1] + 1 : last]
    if len(kept) <= rows:
        return table
    slowest = sorted(range(len(kept)), key=lambda index: slowness(float(_cell(kept[index], 1))))[:rows]
    note = f"... and {len(kept) - rows} faster ones, see {file}"
    width = len(lines[rules[2]]) - 4
    shown = [kept[index] for index in sorted(slowest)]
    return "\n".join([*lines[: rules[1] + 1], *shown, f"| {note:<{width}} |", *lines[last:]])


def _cell(line: str, column: int) -> str:
    return line.split("|")[column + 1].strip().replace(",", "")

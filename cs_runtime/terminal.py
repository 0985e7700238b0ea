"""What the user sees of a report in a terminal, at most a screen, without any part of the compiler."""

from __future__ import annotations

import logging
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

# The toolkit's own loggers say at INFO what a user waits for; other libraries stay at WARNING.
PACKAGES = ("cgc", "cs_system", "cs_runtime", "cs_stream")
FORMAT = "%(asctime)s %(levelname)s: %(message)s"


def set_up(front_end: str) -> None:
    """Write the toolkit's lines to stderr as long as the program has not configured logging.

    Args:
        front_end: The package of the front end.
    """
    if logging.getLogger().handlers:
        return
    # The handler of last resort, and none of the root logger: `basicConfig` does nothing where that has one,
    # and programs call it after this, where they know which task they are.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    logging.lastResort = handler
    for name in (*PACKAGES, front_end):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)


log = logging.getLogger("cs_runtime")

LINE_EVERY_S = 10.0
FIRST_LINE_S = 7.0
"""The CS system tells every two seconds why it waits: what stands still is named within ten."""


class WaitLog:
    """Logs what it is called with: after seven seconds, then every ten.

    Args:
        at_once: The first sentence is logged at once; else a wait of less than seven seconds is no line.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._next_s = 0.0 if at_once else time.monotonic() + FIRST_LINE_S

    def __call__(self, text: str) -> bool:
        """Logs `text` where a line is due; whether it was."""
        due = time.monotonic() >= self._next_s
        if due:
            log.info("%s", text)
            self._next_s = time.monotonic() + LINE_EVERY_S
        return due

    def reset(self) -> None:
        """The wait is over: what comes is another one."""
        self._next_s = time.monotonic() + FIRST_LINE_S


@contextmanager
def announced(what: str, doing: str = "waiting for the CS system to") -> Iterator[None]:
    """Logs `waiting for the CS system to {what}, for N s` every ten seconds of the body, which blocks."""
    ended, began_s = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(LINE_EVERY_S):
            log.info("%s %s, for %.0f s", doing, what, time.monotonic() - began_s)

    thread = threading.Thread(target=tell, name="wait-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


_WIDTH = 100
ROWS = 10
"""Rows of a long table that a terminal shows."""

_ADVICE = "To go faster:"
_LEFT_OUT = (
    *("Model:", "Program:", "Precision:", "execution "),
    *("Generated kernels, from loop nests", _ADVICE),
)
"""Begin parts that the command or another line of the log says, and parts for readers of the file."""
_HEAD = "Estimated Overall Performance"
_OVERALL = ("Samples/s", "Active PEs", "Compute Utilization")
"""Lines of the head that stay where it has them; the last row of the table has all."""
_TIMES = "Time of a step"
_FAMILY = "Family"
_FAMILY_SHARES = {"Active PEs": "the fabric", "PE time": "the PEs' time"}
"""Column of a table by family that has the shares, and what they are of."""
_REPLICAS = "Replicas:"
_REPLICAS_TRIED = "\nNumbers of replicas"
"""Begin the table of the numbers that were compared; the chosen one and its neighbours are in a sentence."""
_SHORT_NAMES = {
    "Kernel Name": "Kernel",
    "Compute Samples/s": "Compute",
    "Transmission Samples/s": "Transmission",
    "Compute Utilization": "Utilization",
}
"""Of columns, so that a table fits a terminal of 100 columns."""
_NOTES = "All figures are estimates"
_TOTALS = ("overall", "all")
_SLOWEST_FIRST: dict[str, Callable[[float], float]] = {"Kernel Name": float, "Layer": lambda ms: -ms}
"""How the second cells of a table, by the name of its first column, say which rows are slow."""


def show(report: str) -> None:
    """Prints a report, at once: in a file it stands where it belongs between the lines of the log."""
    sys.stdout.write(report)
    sys.stdout.flush()


def shortened(text: str, rows: int = ROWS, file: str = "compile_report.txt") -> str:
    """A text report for a terminal: with all lines of a compilation about it, it fits a screen.

    Of a table of kernels or layers the slowest rows are shown, in order, and the last. The head is a line;
    families and times are words of a sentence. The file alone has the loops of generated kernels, what was
    compiled, what would make it faster, and what the figures mean.

    Args:
        text: the report, its parts with an empty line between them.
        rows: kernels or layers to show.
        file: where the whole of it lies.
    """
    parts = [part for part in text.strip("\n").split("\n\n") if not part.startswith(_LEFT_OUT)]
    brief = [_brief(_short_table(part, rows, file)) for part in parts]
    return "\n".join(f"\n{part}" if "\n" in part else part for part in brief).strip("\n") + "\n"


def _brief(part: str) -> str:
    """A part in as few lines as it needs."""
    lines = part.strip("\n").split("\n")
    if part.startswith(_HEAD):
        values = dict(line.split(":", 1) for line in lines[2:])
        names = _OVERALL if values.keys() >= set(_OVERALL) else values
        return _sentence(_HEAD, [f"{name} {values[name].strip()}" for name in names])
    if part.startswith(_REPLICAS):
        return part.partition(_REPLICAS_TRIED)[0]
    if not part.startswith("+-"):
        return part.partition("\n" if part.startswith(_NOTES) else f"\n{_ADVICE}")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    if cells[0][0] == _TIMES:
        return _sentence(f"{_TIMES} in ms", [f"{name} {ms} ({share})" for name, ms, share in cells[1:]])
    if cells[0][0] == _FAMILY:
        return _families(cells)
    return part if _FAMILY in cells[0] else _narrow(cells)  # kernels of a validation: words, few


def _families(rows: list[list[str]]) -> str:
    """A sentence; a share is in a cell of its own, or in brackets behind a number."""
    column, whole = next(
        (rows[0].index(name), whole) for name, whole in _FAMILY_SHARES.items() if name in rows[0]
    )
    shares = [f"{row[0]} {row[1]} ({row[column].rpartition('(')[2].rstrip(')')})" for row in rows[1:]]
    return _sentence(f"Kernels by family, with their share of {whole}", shares)


def _sentence(what: str, figures: Sequence[str]) -> str:
    return textwrap.fill(f"{what}: {', '.join(figures)}", _WIDTH)


def _narrow(rows: list[list[str]]) -> str:
    """A table without rules, its columns as wide as their cells; a row of one cell is a note."""
    rows[0] = [_SHORT_NAMES.get(name, name) for name in rows[0]]
    whole = [row for row in rows if len(row) > 1]
    widths = [max(len(row[column]) for row in whole) for column in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        numbers = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=False))
        lines.append("  ".join([f"{first:<{widths[0]}}", *numbers]).rstrip())
    return "\n".join(lines)


def by_family(kernels: Sequence[tuple[str, bool, int]], file: str) -> str:
    """A line for each family of kernels.

    Args:
        kernels: of each its family, whether it is generated, and the number of its ops.
        file: where the list of all lies.
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
    return "\n".join([*lines, f"all of them, with your lines: {file}"]) + "\n"


def _short_table(table: str, rows: int, file: str) -> str:
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

"""What the user sees of a report in a terminal, without any part of the compiler."""

from __future__ import annotations

import sys

ROWS = 40
"""Rows of the kernel table that a terminal shows."""


def show(report: str) -> None:
    """Prints a report, at once: in a file it stands where it belongs between the lines of the log."""
    sys.stdout.write(report)
    sys.stdout.flush()


def shortened(text: str, rows: int = ROWS) -> str:
    """A text report for a terminal: of a long table only the slowest kernels, in order, and the last row.

    Args:
        text: the content of `compile_report.txt`.
        rows: kernels to show.
    """
    lines = text.splitlines(keepends=True)
    rules = [index for index, line in enumerate(lines) if line.startswith("+-")]
    first, last = rules[1] + 1, rules[2] - 1
    kernels = lines[first:last]
    if len(kernels) <= rows:
        return text
    slowest = sorted(range(len(kernels)), key=lambda index: _rate(kernels[index]))[:rows]
    note = f"... and {len(kernels) - rows} faster kernels, see compile_report.txt"
    width = len(lines[rules[2]].rstrip()) - 4
    shown = [kernels[index] for index in sorted(slowest)]
    return "".join([*lines[:first], *shown, f"| {note:<{width}} |\n", *lines[last:]])


def _rate(line: str) -> float:
    """Samples/s of a line of the kernel table."""
    return float(line.split("|")[2])

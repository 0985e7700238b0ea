"""What the user sees of a report in a terminal, at most a screen, without any part of the compiler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

ROWS = 10
"""Rows of a long table that a terminal shows."""

_COMPILED = ("Model:", "Program:", "Precision:")
"""Begin the part that says what was compiled."""
_NOTES = "All figures are estimates"
_LOOPS = "Generated kernels, from loop nests"
_SLOWEST_FIRST: dict[str, Callable[[float], float]] = {"Kernel Name": float, "Layer": lambda ms: -ms}
"""How the second cells of a table, by the name of its first column, say which rows are slow."""


def show(report: str) -> None:
    """Prints a report, at once: in a file it stands where it belongs between the lines of the log."""
    sys.stdout.write(report)
    sys.stdout.flush()


def shortened(text: str, rows: int = ROWS, file: str = "compile_report.txt") -> str:
    """A text report for a terminal: of a long table the slowest rows, in order, and the last; no loops.

    Where it is shortened, it is without what was compiled, which is the command of the user, and of the notes
    on the figures it has the first one, which says what they are estimates of.

    Args:
        text: the report, its parts with an empty line between them.
        rows: kernels or layers to show.
        file: where the whole of it lies.
    """
    parts = text.split("\n\n")
    shown = [_shortened(part, rows, file) for part in parts]
    if shown == parts:
        return text
    return "\n\n".join(_first_note(part) for part in shown if not part.startswith(_COMPILED))


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


def _shortened(part: str, rows: int, file: str) -> str:
    if part.startswith("+-"):
        return _short_table(part, rows, file)
    if part.startswith(_LOOPS):
        count = sum(line.startswith("  ") and line[2] != " " for line in part.splitlines())
        kernels = "1 kernel is" if count == 1 else f"{count} kernels are"
        return f"{kernels} generated from loop nests, which are in {file}" + "\n" * part.endswith("\n")
    return part


def _first_note(part: str) -> str:
    if not part.startswith(_NOTES):
        return part
    return part.partition("\n")[0] + "\n" * part.endswith("\n")


def _short_table(table: str, rows: int, file: str) -> str:
    lines = table.split("\n")
    rules = [index for index, line in enumerate(lines) if line.startswith("+-")]
    slowness = _SLOWEST_FIRST.get(_cell(lines[1], 0))
    if slowness is None or len(rules) < 3:
        return table
    last = rules[2] - (_cell(lines[rules[2] - 1], 0) == "overall")
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

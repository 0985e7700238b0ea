"""Plain text tables with `+---+` borders."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Render a bordered table, without a newline at the end.

    Args:
        header: column titles.
        rows: cells, one for each title.
        left: indices of the columns that are flush left; the others are flush right.
    """
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    lines = []
    for row in (header, *rows):
        padded = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])

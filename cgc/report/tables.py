"""Plain text tables with `+---+` borders."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """A bordered table, without a newline at the end.

    Args:
        header: column titles.
        rows: cells, as many as there are titles.
        left: positions of the columns that are flush left; the others are flush right.
    """
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [_line(row, widths, left) for row in (header, *rows)]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _line(cells: Sequence[str], widths: Sequence[int], left: Collection[int]) -> str:
    padded = [
        cell.ljust(width) if index in left else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"

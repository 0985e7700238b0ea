"""A terminal's screen, as far as live lines use it."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\r\n\x1b]")


def screen(output: str, columns: int = 80) -> list[str]:
    """Return the lines that a terminal shows after this output, without the last one if it is empty."""
    lines, column = [""], 0
    for token in _TOKEN.findall(output):
        if token == "\r":
            column = 0
        elif token == "\n":
            lines.append("")
        elif token == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif not token.startswith("\x1b"):
            if column == columns:
                lines.append("")
                column = 0
            lines[-1] = lines[-1][:column].ljust(column) + token + lines[-1][column + 1 :]
            column += 1
        if token == "\n":
            column = 0
    return lines if lines[-1] else lines[:-1]

"""The documents of the project, and the contents of their blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Command:
    """A command of a page, its words as the shell gives them to the program."""

    page: str
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


@dataclass(frozen=True)
class Block:
    """An indented block: numbers and text of its lines, and the fragment of the heading above it."""

    page: str
    heading: str
    lines: tuple[tuple[int, str], ...]


@cache
def pages() -> tuple[Path, ...]:
    """All documents that users read."""
    first = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "models" / "README.md")
    return (*first, *sorted((ROOT / "docs").rglob("*.md")))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    """The fenced blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> Iterator[Block]:
    """The indented blocks; continued lines are one line."""
    fenced, heading, lines = False, "", list[tuple[int, str]]()
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and line.startswith("    "):
            last = lines[-1] if lines else (0, "")
            if last[1].endswith("\\"):
                lines[-1] = (last[0], last[1][:-1] + line.strip())
            else:
                lines.append((number, line.strip()))
            continue
        if lines:
            yield Block(name(page), heading, tuple(lines))
            lines = []
        if not fenced and line.startswith("#"):
            heading = anchor(line.lstrip("#").strip())


def anchor(heading: str) -> str:
    """The fragment that a heading can be reached by."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")


def code_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Numbers and text of the lines in indented blocks."""
    for block in blocks(page):
        yield from block.lines


def commands(page: Path) -> Iterator[Command]:
    """Yield the commands in the indented blocks of a page, with `P=...` replaced in the next lines."""
    variables: dict[str, str] = {}
    for number, line in code_lines(page):
        if set_variable := re.fullmatch(r"([A-Z]+)=(\S+)", line):
            variables[set_variable[1]] = set_variable[2]
            continue
        text = re.sub(r"\$([A-Z]+)", lambda found: variables.get(found[1], found[0]), line)
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # a block of text, such as an excerpt of a report
            continue
        yield from _of_words(name(page), number, words)


def _of_words(page: str, number: int, words: list[str]) -> Iterator[Command]:
    """Return the commands of a line in sequence, without leading assignments."""
    part: list[str] = []
    for word in [*words, ";"]:
        if word in (";", "&&", "&", "|", ">", "2>"):
            while part and re.fullmatch(r"[A-Z_]+=.*", part[0]):
                del part[0]
            if part:
                yield Command(page, number, tuple(part))
            part = []
        else:
            part.append(word)

"""Breaks lines after 100 characters: `.venv/bin/python scripts/wrap_documents.py [FILE ...]`.

Code, tables and headings stay as they are. Without FILE all documents are done that no program writes.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
GENERATED = ("benchmarks.md", "execution-options.md", "models.md", "supported-ops.md")
_KEPT = re.compile(r"#|\||<|!\[| {4}|\s*$")
_ITEM = re.compile(r"( {0,3}(?:[-*]|\d+\.) +)(.*)")
_UNBROKEN = re.compile(r"`[^`]*`|\]\([^)]*\)")


def main(arguments: list[str]) -> int:
    """Wraps the files in place."""
    named = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "models/README.md")
    documents = [ROOT / file for file in named]
    documents += [page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED]
    for file in map(Path, arguments) if arguments else documents:
        file.write_text(wrapped(file.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def wrapped(text: str) -> str:
    """The text with paragraphs and items of lists in lines of at most `WIDTH` characters."""
    lines: list[str] = []
    paragraph: list[str] = []
    first = later = ""
    fenced = False

    def flush() -> None:
        lines.extend(_broken(" ".join(paragraph), first, later))
        paragraph.clear()

    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        continues_item = bool(paragraph and later)
        if fenced or is_fence or (_KEPT.match(line) and not (continues_item and line.strip())):
            flush()
            lines.append(line)
            fenced ^= is_fence
            continue
        if item := _ITEM.match(line):
            flush()
            first, later, line = item[1], " " * len(item[1]), item[2]
        elif not paragraph:
            first = later = line[: len(line) - len(line.lstrip())]
        paragraph.append(line.strip())
    flush()
    return "\n".join(lines)


def _broken(text: str, first: str, later: str) -> list[str]:
    """Lines of a paragraph; code and the targets of links are not broken."""
    kept = _UNBROKEN.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        kept,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

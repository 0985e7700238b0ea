"""What a check has found, and how it is shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "fail"]

NAME_WIDTH = 16
_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}
_COLOURS = {"ok": "32", "note": "33", "fail": "31"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: of what was checked.
        level: ok; note: a run works, and may not be what was meant; fail: a run would not work.
        text: what was found.
        advice: what to do; empty where there is nothing to do.
    """

    name: str
    level: Level
    text: str
    advice: str = ""


def line(finding: Finding, colored: bool) -> str:
    """The finding for a terminal, its advice in a line of its own."""
    mark = _MARKS[finding.level]
    if colored:
        mark = f"\x1b[{_COLOURS[finding.level]}m{mark}\x1b[0m"
    text = f"{mark}  {finding.name:<{NAME_WIDTH}} {finding.text}\n"
    if finding.advice:
        text += f"{'':6}{'':{NAME_WIDTH}} -> {finding.advice}\n"
    return text


def verdict(findings: Iterable[Finding]) -> str:
    """One line about all of them."""
    levels = [finding.level for finding in findings]
    failed, notes = levels.count("fail"), levels.count("note")
    if failed:
        return f"a run would not work: {failed} of {len(levels)} checks failed\n"
    return f"a run would work: {len(levels)} checks" + (f", {notes} with a note\n" if notes else "\n")


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The output of --json."""
    listed = [asdict(finding) for finding in findings]
    return {"would_work": all(one["level"] != "fail" for one in listed), "checks": listed}

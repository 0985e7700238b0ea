"""Findings of the checks of `csrun doctor`, and their text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "fail"]

NAME_WIDTH = 16
_MARKS = {"ok": "ok  ", "note": "note", "fail": "FAIL"}
_COLORS = {"ok": "32", "note": "33", "fail": "31"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: subject of the check.
        level: ok; note if a run works, but perhaps not as intended; fail if a run would not work.
        text: result of the check.
        advice: for the user; empty for none.
    """

    name: str
    level: Level
    text: str
    advice: str = ""


def line(finding: Finding, colored: bool) -> str:
    """Format a finding for a terminal, with its advice on a second line."""
    mark = _MARKS[finding.level]
    if colored:
        mark = f"\x1b[{_COLORS[finding.level]}m{mark}\x1b[0m"
    text = f"{mark}  {finding.name:<{NAME_WIDTH}} {finding.text}\n"
    if finding.advice:
        text += f"{'':6}{'':{NAME_WIDTH}} -> {finding.advice}\n"
    return text


def verdict(findings: Iterable[Finding]) -> str:
    """Summarize the findings in one line."""
    levels = [finding.level for finding in findings]
    failed, notes = levels.count("fail"), levels.count("note")
    if failed:
        return f"a run would not work: {failed} of {len(levels)} checks failed\n"
    return f"a run would work: {len(levels)} checks" + (f", {notes} with a note\n" if notes else "\n")


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings for --json."""
    listed = [asdict(finding) for finding in findings]
    return {"would_work": all(one["level"] != "fail" for one in listed), "checks": listed}

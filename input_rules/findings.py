"""Findings about an input pipeline, and the Input Function Report that lists them in a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import join
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Gain:
    """What it gives to do what a finding recommends.

    Attributes:
        kind: "measured": the rates with and without the change were compared; "expected": from the times of
            the stages; "not-speed": something else is won, or not lost.
        text: for a reader.
        times: the rate with the change over that without it; None where there is no figure.
        low: lower end of the 95 % confidence interval of a measured one.
        high: upper end.
        cpus: CPUs that it was measured with, or is expected with.
        at_most: it is a bound: no way to make the change gives more.
    """

    kind: Literal["measured", "expected", "not-speed"]
    text: str
    times: float | None = None
    low: float | None = None
    high: float | None = None
    cpus: int | None = None
    at_most: bool = False

    def __str__(self) -> str:
        return f"{self.kind.replace('-', ' ')}: {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the input function that could be better.

    Attributes:
        id: stable name of the rule.
        severity: "error" for wrong training data or a run that fails, "warning" for lost speed, "info".
        op: the operation it is about.
        source: the user's line as "file:line"; None where it concerns the pipeline as a whole.
        message: what was found and why it matters, one sentence.
        recommended: what to write instead.
        gain: what that was measured to give, or is expected to; None where neither could be told.
        value: the number in what is recommended, where it is one: of worker processes, of elements in a
            buffer; else None.
        by_hand: why the change is left to the author, though it could be written mechanically; None where
            nothing speaks against it.
    """

    id: str
    severity: Severity
    op: str
    source: str | None
    message: str
    recommended: str
    gain: Gain | None = None
    value: int | None = None
    by_hand: str | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Finding:
        """A finding from its JSON object."""
        gain = value["gain"]
        return cls(**{**value, "gain": None if gain is None else Gain(**gain)})


TITLE = "Input Function Report"
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def lines(
    findings: Sequence[Finding], command: Sequence[str] = (), notes: Sequence[str] = ()
) -> Iterator[tuple[int, str]]:
    """Lines of the report with the levels of `logging`; those about a finding begin with `[input_fn]`.

    Args:
        findings: Of an input.
        command: The words of the program that reads it, which an analysis runs again.
        notes: What a reader must know beside, one sentence each.
    """
    if not findings:
        yield logging.INFO, f"{TITLE}: nothing to improve"
        yield from ((logging.INFO, f"[input_fn] note - {note}") for note in notes)
        return
    yield logging.INFO, f"---------- {TITLE}: {counted(findings)} ----------"
    for finding in findings:
        level = _LEVELS[finding.severity]
        place = f"{finding.source}: " if finding.source else ""
        yield level, f"[input_fn] {finding.id} - {place}{finding.op}(): {finding.message}"
        gain = f" ({finding.gain})" if finding.gain and _says_more(finding.gain) else ""
        yield level, f"[input_fn] {finding.id} - recommended: {finding.recommended}{gain}"
    yield from ((logging.INFO, f"[input_fn] note - {note}") for note in notes)
    if command and any(finding.gain and finding.gain.kind == "expected" for finding in findings):
        yield logging.INFO, f"what they give here is measured by: {join(['cs_input_analyzer', *command])}"
    yield logging.INFO, f"---------- end of the {TITLE} ----------"


def _says_more(gain: Gain) -> bool:
    """Whether a gain has a figure; the message has said what is won beside speed, or that time is spared."""
    return gain.kind != "not-speed" and (gain.times is not None or any(map(str.isdigit, gain.text)))


def counted(findings: Sequence[Finding]) -> str:
    """`1 error, 2 warnings`."""
    counts = {level: sum(f.severity == level for f in findings) for level in _LEVELS}
    plurals = {"error": "errors", "warning": "warnings", "info": "hints"}
    singular = {"error": "error", "warning": "warning", "info": "hint"}
    return ", ".join(
        f"{count} {singular[level] if count == 1 else plurals[level]}"
        for level, count in counts.items()
        if count
    )

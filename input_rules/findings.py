"""Findings about an input pipeline, and the Input Function Report that lists them in a log. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import join
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Gain:
    """The benefit of following a recommendation.

    Attributes:
        kind: "measured" if the rates with and without the change were compared; "expected" if it follows from
            the times of the stages; "not-speed" if the benefit is something other than speed.
        text: the gain in words.
        times: ratio of the rates with and without the change; None if there is no figure.
        low: lower end of the 95 % confidence interval of a measured ratio.
        high: upper end of that interval.
        cpus: CPUs that it was measured with, or is expected with.
        at_most: `times` is an upper bound for any way to make the change.
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
        severity: "error" for wrong training data or a run that fails, "warning" for lost speed, "info" for
            the rest.
        op: the operation that it is about.
        source: the user's line as "file:line"; None if it concerns the pipeline as a whole.
        message: the problem and why it matters, one sentence.
        recommended: what to write instead.
        gain: the measured or expected benefit; None if neither is known.
        value: the recommended number, if there is one: worker processes, elements of a buffer.
        by_hand: why the author has to make the change although it is mechanical; None if `--apply` may make
            it.
        withdrawn: the change was measured to cost speed, so it is no longer recommended.
        related: the user's lines of the other calls that the change involves, in pipeline order.
        form: the way to make a change that has several, once it was tried; None if there is one way.
        diff: the change as a unified diff of the user's source; None if it is not mechanical.
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
    withdrawn: bool = False
    related: tuple[str, ...] = ()
    form: str | None = None
    diff: str | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        """Read a finding from its JSON object."""
        gain = value["gain"]
        related = tuple(value.get("related", ()))
        return cls(**{**value, "gain": None if gain is None else Gain(**gain), "related": related})


TITLE = "Input Function Report"
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


def report_lines(
    findings: Sequence[Finding], command: Sequence[str] = (), notes: Sequence[str] = ()
) -> Iterator[tuple[int, str]]:
    """Yield the lines of the report with their `logging` levels; those of a finding begin with `[input_fn]`.

    Args:
        findings: The findings about an input.
        command: The command line of the program, which an analysis runs again.
        notes: Further remarks, one sentence each.
    """
    if not findings:
        yield logging.INFO, f"{TITLE}: nothing to improve"
        yield from ((logging.INFO, f"[input_fn] note - {note}") for note in notes)
        return
    yield logging.INFO, f"---------- {TITLE}: {count_by_severity(findings)} ----------"
    for finding in findings:
        level = _LEVELS[finding.severity]
        place = f"{finding.source}: " if finding.source else ""
        yield level, f"[input_fn] {finding.id} - {place}{finding.op}(): {finding.message}"
        gain = ""
        # Only gains with a figure add to the message of their finding.
        if finding.gain and finding.gain.kind != "not-speed":
            has_figure = finding.gain.times is not None or any(map(str.isdigit, finding.gain.text))
            gain = f" ({finding.gain})" if has_figure else ""
        yield level, f"[input_fn] {finding.id} - recommended: {finding.recommended}{gain}"
    yield from ((logging.INFO, f"[input_fn] note - {note}") for note in notes)
    if command and any(finding.gain and finding.gain.kind == "expected" for finding in findings):
        yield logging.INFO, f"to measure the gains, run: {join(['cs_input_analyzer', *command])}"
    yield logging.INFO, f"---------- end of the {TITLE} ----------"


def count_by_severity(findings: Sequence[Finding]) -> str:
    """Count findings by severity: `1 error, 2 warnings`."""
    counts = {level: sum(f.severity == level for f in findings) for level in _LEVELS}
    plurals = {"error": "errors", "warning": "warnings", "info": "hints"}
    singular = {"error": "error", "warning": "warning", "info": "hint"}
    return ", ".join(
        f"{count} {singular[level] if count == 1 else plurals[level]}"
        for level, count in counts.items()
        if count
    )

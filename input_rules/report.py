"""The Input Function Report: the findings about an input function as lines of a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from shlex import join

from input_rules.finding import Finding, Gain

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

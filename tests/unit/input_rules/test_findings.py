"""The Input Function Report, as log lines."""

from __future__ import annotations

import logging
from typing import Any

from input_rules.findings import Finding, Gain, report_lines


def finding(severity: Any, gain: Gain | None = None) -> Finding:
    return Finding("rule", severity, "map", "data.py:7", "it is slow", "map(fast)", gain)


TWICE, MIXED = Gain("expected", "2 times the rate", 2.0), Gain("not-speed", "records are mixed")


def test_lines_of_the_report() -> None:
    assert list(report_lines(())) == [(logging.INFO, "Input Function Report: nothing to improve")]
    report = list(report_lines([finding("error"), finding("warning", TWICE), finding("warning", MIXED)]))
    assert report[0] == (logging.INFO, "---------- Input Function Report: 1 error, 2 warnings ----------")
    assert report[1] == (logging.ERROR, "[input_fn] rule - data.py:7: map(): it is slow")
    advice = "[input_fn] rule - recommended: map(fast)"
    assert report[4] == (logging.WARNING, f"{advice} (expected: 2 times the rate)")
    assert report[6] == (logging.WARNING, advice)
    assert len(report) == 8
    measured = list(report_lines([finding("warning", TWICE)], ["python", "my run.py", "--mode=train"]))
    assert measured[-2] == (
        logging.INFO,
        "to measure the gains, run: cs_input_analyzer python 'my run.py' --mode=train",
    )
    assert len(measured) == 5
    assert len(list(report_lines([finding("warning", MIXED)], ["python", "run.py"]))) == 4, (
        "nothing to be measured"
    )

"""The summary of random faults."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how often each fault struck in the cases that have passed, and their rate."""
    reports = terminalreporter.stats.get("passed", [])
    cases = [value for report in reports for name, value in report.user_properties if name == "soak"]
    if not cases:
        return
    struck = Counter(fault for case in cases for fault in case["struck"])
    seconds = sum(case["seconds"] for case in cases)
    attempts = sum(len(case["codes"]) for case in cases)
    terminalreporter.section("random faults")
    terminalreporter.line(
        f"{len(cases)} cases with {struck.total()} faults in {attempts} attempts: every result is that of a "
        f"run without faults; {60 * len(cases) / seconds:.1f} cases a minute"
    )
    for fault, count in sorted(struck.items()):
        terminalreporter.line(f"{count:5} {fault}")
    missed = sum(case["missed"] for case in cases)
    terminalreporter.line(f"{missed:5} came too late")

"""The phases of a run and their durations, read from its summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RUN_SUMMARY = "run_summary.json"


def locate_csperf_log(directory: str | Path = ".") -> str | None:
    """Return the newest run summary in a directory or below it; None if there is none."""
    found = sorted(Path(directory).rglob(RUN_SUMMARY), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else None


class AssessBottlenecks:
    """The phases of a run, longest first.

    Args:
        log: Path of a run summary, as `locate_csperf_log` returns it.
    """

    def __init__(self, log: str | Path, *args: Any, **kwargs: Any) -> None:
        self.log = str(log)
        summary = json.loads(Path(log).read_text())
        phases = [(phase["name"], phase["seconds"] or 0.0) for phase in summary.get("timeline", [])]
        self.phases = sorted(phases, key=lambda phase: -phase[1])

    def assess(self) -> dict[str, float]:
        """Return the seconds of each phase."""
        return dict(self.phases)

    def report(self) -> str:
        """Return a line for each phase."""
        return "\n".join(f"{name}: {seconds:.3f} s" for name, seconds in self.phases)

    __str__ = report

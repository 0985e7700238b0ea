"""Training runs as text for a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from cs_toolkit.figures import format_rate
from cs_toolkit.log_lines import escape_controls
from csrun.jobs.state import columns
from csrun.training_runs.records import ModelDir, TrainingRun, find_differences


def value_text(value: Any) -> str:
    """Return a value of a record for a reader; `-` for a missing one."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _started(run: TrainingRun) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started_at_unix_s))
    except (OverflowError, ValueError, OSError):
        return "-"


def _steps(run: TrainingRun) -> str:
    if run.last_step is None:
        return "-"
    return f"{value_text(run.first_step or 0)} to {value_text(run.last_step)}"


FIGURES: MappingProxyType[str, Callable[[TrainingRun], str]] = MappingProxyType(
    {
        "started, UTC": lambda run: "-" if run.started_at_unix_s is None else _started(run),
        "steps": _steps,
        "loss": lambda run: value_text(run.loss),
        "samples/s": lambda run: "-" if run.samples_per_s is None else format_rate(run.samples_per_s),
        "training": lambda run: "-" if run.training_s is None else f"{run.training_s:,.1f} s",
        "status": lambda run: run.status or "-",
    }
)


def render_runs(dirs: Sequence[ModelDir]) -> str:
    """Render runs, and the parameters in which their directories differ; control characters are escaped."""
    blocks = []
    for number, one in enumerate(dirs):
        runs = f"{len(one.runs):,} training run{'s' if len(one.runs) != 1 else ''}"
        lines = [f"{letter(number)}  {escape_controls(str(one.path))}: {runs}"]
        if one.runs:
            rows = [("run", *FIGURES)]
            rows += [(str(run.number), *(show(run) for show in FIGURES.values())) for run in one.runs]
            lines += [f"   {line}" for line in columns(rows)]
        blocks.append("\n".join(lines))
    differences = find_differences(dirs)
    if differences:
        letters = [letter(number) for number in range(len(dirs))]
        rows = [("differs", *letters)]
        rows += [(row["name"], *map(value_text, row["values"])) for row in differences]
        blocks.append("\n".join(columns(rows)))
    elif len(dirs) > 1:
        blocks.append("All recorded settings and parameters are the same.")
    return "\n\n".join(blocks) + "\n"


def letter(number: int) -> str:
    """Return A to Z, then A2 and so on."""
    return chr(ord("A") + number % 26) + (str(number // 26 + 1) if number >= 26 else "")

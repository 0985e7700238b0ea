"""Training runs as a page for a browser: one file without scripts that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from csrun.training_runs.records import ModelDir, find_differences
from csrun.training_runs.text import FIGURES, letter, value_text

_WIDTH, _HEIGHT = 820.0, 260.0
_LEFT, _TOP = 70.0, 12.0
_COLORS = 6
_LOGARITHMIC_FROM = 20  # highest loss, as a multiple of the lowest


def render_page(dirs: Sequence[ModelDir]) -> str:
    """Render the runs of directories. Everything from their files is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    fastest = max((run.samples_per_s or 0 for one in dirs for run in one.runs), default=0) or 1
    return environment.get_template("page.html.j2").render(
        dirs=dirs,
        figures=FIGURES,
        fastest=fastest,
        plot=_plot(dirs),
        differences=find_differences(dirs),
        text=value_text,
        letter=letter,
        colors=_COLORS,
    )


def _plot(dirs: Sequence[ModelDir]) -> dict[str, Any] | None:
    """Return the curves of the loss at the end of each run; None without any loss."""
    curves = [
        [(run.last_step, run.loss) for run in one.runs if run.last_step is not None and run.loss is not None]
        for one in dirs
    ]
    points = [point for curve in curves for point in curve]
    if not points:
        return None
    losses = [loss for _, loss in points]
    low, high, last = min(losses), max(losses), max(step for step, _ in points)
    logarithmic = low > 0 and high >= _LOGARITHMIC_FROM * low
    scale = math.log if logarithmic else float
    # Differences of huge numbers overflow, so both ends are scaled first.
    bottom, span = scale(low) / 2, (scale(high) / 2 - scale(low) / 2) or 1.0

    def place(step: float, loss: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - 20) * step / (last or 1)
        return x, _TOP + (_HEIGHT - _TOP - 24) * (1 - (scale(loss) / 2 - bottom) / span)

    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "top": _TOP,
        "low": low,
        "high": high,
        "last": last,
        "logarithmic": logarithmic,
        "curves": [[(*place(*point), *point) for point in curve] for curve in curves],
    }

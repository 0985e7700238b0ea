"""The status page as HTML: sections that are rendered from a snapshot, and replaced when they change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cs_system.errors import duration_text
from cs_system.monitoring.board import Snapshot
from cs_system.monitoring.numbers import figure, si
from cs_system.monitoring.recorder import CurvePoint
from cs_toolkit.figures import format_share
from cs_toolkit.floorplan import Floorplan, PlacedKernel

FOLDER = Path(__file__).parent
SECTIONS = ("state", "curves", "workers", "wafer", "queue", "events")
# More rows would make the page slow on a phone; the metrics have all workers.
MAX_ROWS = 256
_CURVE_WIDTH, _CURVE_HEIGHT = 600, 150
_LOGARITHMIC_FROM = 20  # highest loss, as a multiple of the lowest
_LOAD_BINS = 5
_DRAWN_COPIES = 16


@dataclass(frozen=True)
class Plot:
    """A curve in an SVG of `width` by `height`.

    Attributes:
        title: Name of the quantity.
        points: Of the polylines; a gap in the data separates two of them.
        low, high: Texts of the scale.
        first_step, last_step: Ends of the axis.
        last: Text of the newest value.
        trend: A sentence for screen readers.
    """

    title: str
    points: tuple[str, ...]
    low: str
    high: str
    first_step: int
    last_step: int
    last: str
    trend: str
    width: int = _CURVE_WIDTH
    height: int = _CURVE_HEIGHT


@dataclass(frozen=True)
class Drawing:
    """A floorplan for an SVG, cut to the part of the fabric that is in use.

    Attributes:
        view: Its viewBox.
        kernels: Kernels with the bin of their load; None if it is unknown.
        copies: Boxes (x, y, width, height) of further copies; none if there are too many to see the kernels.
        used: Which part of the fabric it shows, in words.
        has_loads: True if the loads of the kernels are known.
    """

    view: str
    kernels: tuple[tuple[PlacedKernel, int | None, bool], ...]
    copies: tuple[tuple[int, int, int, int], ...]
    used: str
    has_loads: bool


class Page:
    """Renders snapshots; each one only once, however many browsers show it."""

    def __init__(self) -> None:
        environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(
            si=si, percent=format_share, duration=duration_text, clock=_clock, figure=figure
        )
        self._document = environment.get_template("status.html.j2")
        self._sections = environment.get_template("sections.html.j2")
        self._rendered: tuple[Snapshot, dict[str, str]] | None = None

    def sections(self, snapshot: Snapshot) -> dict[str, str]:
        """Return the HTML of each section by its id."""
        if self._rendered is None or self._rendered[0] is not snapshot:
            info, plan = snapshot.info, snapshot.floorplan
            module = self._sections.make_module(
                {
                    "info": info,
                    "run": info.run,
                    "now": snapshot.time,
                    "plots": make_plots(snapshot.curve),
                    "plan": plan,
                    "drawing": None if plan is None else draw(plan),
                    "max_rows": MAX_ROWS,
                }
            )
            found = {name: str(getattr(module, name)()).strip() for name in SECTIONS}
            self._rendered = (snapshot, found)
        return self._rendered[1]

    def document(self, snapshot: Snapshot) -> str:
        """Return the whole page."""
        return self._document.render(info=snapshot.info, sections=self._markup(snapshot))

    def _markup(self, snapshot: Snapshot) -> dict[str, str]:
        from markupsafe import Markup

        # Rendered by the same environment, which has escaped all values.
        return {name: Markup(html) for name, html in self.sections(snapshot).items()}


def make_plots(curve: Sequence[CurvePoint]) -> tuple[Plot, ...]:
    """Return the curves of loss and rate; none before there are two points."""
    if len(curve) < 2:
        return ()
    plots = [_plot("Loss", curve, [point.loss for point in curve])] if curve[-1].loss is not None else []
    return (*plots, _plot("Steps per second", curve, [point.steps_per_s for point in curve], from_zero=True))


def _plot(
    title: str, curve: Sequence[CurvePoint], values: Sequence[float | None], *, from_zero: bool = False
) -> Plot:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if from_zero:
        low = 0.0
    # The end of a training run would be a flat line otherwise.
    is_logarithmic = low > 0 and high > _LOGARITHMIC_FROM * low
    scale: Callable[[float], float] = math.log if is_logarithmic else float
    start, span_s = curve[0].time, max(curve[-1].time - curve[0].time, 1e-9)
    bottom, height = scale(low), (scale(high) - scale(low)) or 1.0
    lines: list[list[str]] = [[]]
    for point, value in zip(curve, values, strict=True):
        if value is None or not math.isfinite(value):
            lines.append([])
            continue
        x = _CURVE_WIDTH * (point.time - start) / span_s
        y = _CURVE_HEIGHT * (1 - (scale(value) - bottom) / height)
        lines[-1].append(f"{x:.1f},{y:.1f}")
    first, last = (finite[0], finite[-1]) if finite else (math.nan, math.nan)
    return Plot(
        f"{title} (logarithmic)" if is_logarithmic else title,
        tuple(" ".join(line) for line in lines if line),
        si(low) if low >= 1 else f"{low:.3g}",
        si(high) if high >= 1 else f"{high:.3g}",
        curve[0].step,
        curve[-1].step,
        figure(last),
        f"{title}: from {figure(first)} at step {curve[0].step} to {figure(last)} at step {curve[-1].step}, "
        f"between {figure(low)} and {figure(high)}.",
    )


def draw(plan: Floorplan) -> Drawing:
    """Cut a floorplan to the used part of the fabric, and sort its kernels by load into bins."""
    right = max((kernel.x + kernel.width for kernel in plan.kernels), default=plan.width)
    bottom = max((kernel.y + kernel.height for kernel in plan.kernels), default=plan.height)
    left = min((kernel.x for kernel in plan.kernels), default=0)
    top = min((kernel.y for kernel in plan.kernels), default=0)
    # A copy has the position of its box's corner; the first box begins at 0, 0.
    corners = plan.copies if len(plan.copies) < _DRAWN_COPIES else ()
    copies = tuple((x + left, y + top, right - left, bottom - top) for x, y in corners)
    right = max([right, *(x + width for x, _, width, _ in copies)])
    bottom = max([bottom, *(y + height for _, y, _, height in copies)])
    left, top = min([left, *(x for x, *_ in copies)]), min([top, *(y for _, y, *_ in copies)])
    margin = max(1, round(0.02 * max(right - left, bottom - top)))
    bound = set(plan.bound_by)
    of_copies = f", one of {len(plan.copies) + 1} copies" if plan.copies and not copies else ""
    return Drawing(
        f"{left - margin} {top - margin} {right - left + 2 * margin} {bottom - top + 2 * margin}",
        tuple((kernel, _bin(kernel.load), kernel.name in bound) for kernel in plan.kernels),
        copies,
        f"columns {left} to {right - 1} and rows {top} to {bottom - 1} of {plan.width} by {plan.height} "
        f"processing elements{of_copies}",
        any(kernel.load is not None for kernel in plan.kernels),
    )


def _bin(load: float | None) -> int | None:
    return None if load is None else min(_LOAD_BINS - 1, int(_LOAD_BINS * load))


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))

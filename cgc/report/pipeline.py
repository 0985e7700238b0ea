"""The predicted pipeline of the wafer as a trace, and as a small drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cgc.errors import ReportError
from cgc.report.model import PipelinedPart
from cs_toolkit.spans import Slice, make_slices, name_process, name_track

DEFAULT_SAMPLES = 16

_DRAWN_SAMPLES = 8
_DRAWN_KERNELS = 96  # a drawing of all kernels of a deep model would be a tenth of the page
_WIDTH, _LEFT, _RIGHT = 900.0, 30.0, 4.0
_LABEL_DISTANCE = 11.0  # between the numbers of rows
_ROW_HEIGHT, _MIN_ROW_HEIGHT = 12.0, 3.0
_FULL_ROWS = 24


def make_trace(report: Mapping[str, Any], samples: int = DEFAULT_SAMPLES) -> dict[str, Any]:
    """Return the trace of a compile report in JSON.

    Args:
        report: `compile_report.json`.
        samples: number of samples that pass the pipeline.

    Raises:
        ReportError: a program of an older version wrote it.
    """
    try:
        if report.get("execution") == "weight_streaming":
            events = _streamed_events(report)
        else:
            events = _pipelined_events(report, samples)
    except KeyError as error:
        raise ReportError(
            f"the compile report has no {error}: an older version of the toolkit wrote it; compile the "
            "program again"
        ) from error
    facts = {"fabric": report["fabric"], "estimate_of": report["estimate_of"]}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": facts}


def _pipelined_events(report: Mapping[str, Any], samples: int) -> list[dict[str, Any]]:
    clock_hz, interval = report["clock_hz"], report["bottleneck"]["deltat_cycles"]
    events = name_process(1, f"wafer, predicted (one sample each {interval:,} cycles)")
    for number, kernel in enumerate(report["kernels"], 1):
        slices: list[Slice] = []
        for sample in range(samples):
            began = kernel["start_cycles"] + sample * interval
            ended = began + kernel["deltat_cycles"]
            slices.append((f"sample {sample}", began / clock_hz, ended / clock_hz, {"cycle": began}))
        events += name_track(1, number, f"{kernel['name']} ({kernel['family']})")
        events += make_slices(slices, 1, number)
    return events


def _streamed_events(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one step; the forward and the backward part of a layer are one slice."""
    slices: list[Slice] = []
    now_s = 0.0
    for layer in report["layers"]:
        began_s = now_s
        for part in ("exposed_transfer_s", "latency_s", "compute_s"):
            ended_s = now_s + layer[part]
            if ended_s > now_s:
                name = part.removesuffix("_s").replace("_", " ")
                slices.append((name, now_s, ended_s, None))
            now_s = ended_s
        bytes_moved = {name: layer[name] for name in ("weight_bytes", "gradient_bytes", "activation_bytes")}
        slices.append((layer["name"], began_s, now_s, bytes_moved))
    return [
        *name_process(1, "wafer, predicted (one step)"),
        *name_track(1, 1, "layers"),
        *make_slices(slices, 1, 1),
    ]


@dataclass(frozen=True)
class PipelineDrawing:
    """A drawing of the first samples in the pipeline.

    Attributes:
        width, height: of the drawing.
        paths: for each sample the shapes of its slices, as data of an SVG path.
        bottleneck: y of the row of the kernel that bounds the speed, and its height; None for none.
        rows: y and number of the kernels of some rows.
        ticks: x and label of each start of a sample on the first kernel.
        kernels: number of kernels that are drawn.
        all_kernels: number of kernels.
    """

    width: float
    height: float
    paths: tuple[str, ...]
    bottleneck: tuple[float, float] | None
    rows: tuple[tuple[float, int], ...]
    ticks: tuple[tuple[float, str], ...]
    kernels: int
    all_kernels: int


def draw_pipeline(part: PipelinedPart) -> PipelineDrawing:
    """Draw kernels as rows in data-flow order, and time from left to right."""
    slowest = None if part.bottleneck is None else part.kernels.index(part.bottleneck)
    drawn = _select(len(part.kernels), slowest)
    height = (
        _ROW_HEIGHT
        if len(drawn) <= _FULL_ROWS
        else max(_MIN_ROW_HEIGHT, _ROW_HEIGHT * _FULL_ROWS / len(drawn))
    )
    rows = [part.kernels[index] for index in drawn]
    starts = [part.start_cycles[row.kernel.name] for row in rows]
    interval = part.interval_cycles
    last = max(
        start + row.figures.deltat_cycles for start, row in zip(starts, rows, strict=True)
    ) + interval * (_DRAWN_SAMPLES - 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / last
    paths = []
    for sample in range(_DRAWN_SAMPLES):
        shapes = []
        for number, (start, row) in enumerate(zip(starts, rows, strict=True)):
            x = _LEFT + scale * (start + sample * interval)
            width = max(0.5, scale * row.figures.deltat_cycles)
            shapes.append(f"M{x:.1f} {height * number:.1f}h{width:.1f}v{0.8 * height:.1f}h-{width:.1f}z")
        paths.append("".join(shapes))
    outline = None if slowest is None else (height * drawn.index(slowest), 0.8 * height)
    ticks = tuple((_LEFT + scale * sample * interval, str(sample)) for sample in range(_DRAWN_SAMPLES))
    every = -(-int(_LABEL_DISTANCE) // int(height))
    labels = [(height * (at + 0.8), drawn[at] + 1) for at in range(0, len(drawn), every)]
    return PipelineDrawing(
        width=_WIDTH,
        height=height * len(rows),
        paths=tuple(paths),
        bottleneck=outline,
        rows=tuple(labels),
        ticks=ticks,
        kernels=len(rows),
        all_kernels=len(part.kernels),
    )


def _select(count: int, wanted: int | None) -> Sequence[int]:
    """Return the indices of the kernels to draw: all, or evenly selected ones and the wanted one."""
    if count <= _DRAWN_KERNELS:
        return range(count)
    found = {number * count // _DRAWN_KERNELS for number in range(_DRAWN_KERNELS)}
    return sorted(found | ({wanted} if wanted is not None else set()))

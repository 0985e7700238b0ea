"""Render the report for browsers: a single file that needs nothing else, with a plot and definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from input_analyzer.analysis import Analysis
from input_analyzer.conclusions import usable_fraction
from input_analyzer.report import wording
from input_rules.formatting import format_bytes, format_number, format_percent, plural


def render_html(analysis: Analysis) -> str:
    """Render the page: the same bytes for the same analysis.

    All values from the user's program are escaped. A content security policy forbids network access and
    scripts.
    """
    style = _asset("cgc.report", "base.css") + "\n" + _asset("input_analyzer.report", "page.css")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            analysis=analysis,
            subject=analysis.subject,
            found=analysis.recommendation,
            layout=analysis.recommendation.layout,
            title=wording.title(analysis),
            verdict=wording.verdict(analysis),
            command=wording.training_command(analysis),
            unaccounted=wording.unaccounted(analysis),
            no_findings=wording.no_findings(analysis),
            fit=wording.fit(analysis),
            plot=chart(analysis),
            size=PLOT_SIZE,
            stages=_stages(analysis),
            of_program=wording.of_program(analysis.subject.command),
            measurements=analysis.measurements,
            measured_columns=_measured_columns(analysis),
            layouts=_layouts(analysis),
            definitions=DEFINITIONS,
            style=Markup(style),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(lambda name: _asset("input_analyzer.report", name)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        rate=format_number,
        bytes=format_bytes,
        percent=format_percent,
        microseconds=wording.microseconds,
        share=wording.share,
        of_target=wording.of_target,
        from_disk=wording.from_disk,
        breakable=_breakable,
        pixels=lambda value: f"{value:.1f}",
    )
    environment.globals.update(counted=plural)
    return environment


@cache
def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _breakable(path: str) -> Markup:
    """Allow line breaks after the slashes of a path."""
    return escape(path).replace("/", Markup("/<wbr>"))


def _stages(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the stages with their fraction of the time; the longest bar is the longest time."""
    steady = [stage.self_time_us_per_sample or 0.0 for stage in analysis.stages if not stage.once]
    total = sum(steady)
    longest = max((stage.self_time_us_per_sample or 0.0 for stage in analysis.stages), default=0.0)
    slowest = None if analysis.bottleneck is None else analysis.bottleneck.stage
    return [
        {
            "stage": stage,
            "share": (stage.self_time_us_per_sample or 0.0) / total if total and not stage.once else None,
            "computing": 100 * _computing(stage.cpu_us_per_sample, stage.self_time_us_per_sample) / longest
            if longest
            else 0.0,
            "length": 100 * (stage.self_time_us_per_sample or 0.0) / longest if longest else 0.0,
            "slowest": stage.name == slowest,
        }
        for stage in analysis.stages
    ]


def _measured_columns(analysis: Analysis) -> tuple[str, ...]:
    """Return the columns of the measurements; those about a first epoch only if one was measured."""
    epochs = any(one.first_epoch_samples_per_s is not None for one in analysis.measurements)
    disk = any(wording.from_disk(one) is not None for one in analysis.measurements)
    return (
        *("Tasks", "CPUs each", "Samples/s", "95 % interval"),
        *(["First epoch"] if epochs else []),
        *(["From disk per sample"] if disk else []),
        *("CPU µs per sample", "Bytes per sample", "Memory per task", "Warm-up", "CPUs of others"),
    )


def _computing(cpu_us: float | None, self_us: float | None) -> float:
    return (self_us or 0.0) if cpu_us is None else cpu_us


def _layouts(analysis: Analysis) -> list[dict[str, Any]]:
    target = None if analysis.target is None else analysis.target.samples_per_s
    return [
        {
            "layout": one.layout,
            "samples_per_s": one.samples_per_s,
            "share": None if target is None else one.samples_per_s / target,
            "chosen": one.layout == analysis.recommendation.layout,
        }
        for one in analysis.predictions
    ]


WIDTH, HEIGHT = 1240.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 20.0, 26.0, 46.0
PLOT_SIZE = {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "BOTTOM": BOTTOM}
# A target that exceeds the highest rate by this factor would flatten the plot: it is named at the edge.
_FAR_ABOVE = 3.0
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A measurement with its interval."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """The predictions of the model for a number of CPUs per task, and the measurements for it."""

    number: int
    cpus_per_task: int
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """All shapes.

    Attributes:
        target_y: height of the target line; None where there is none in the plot.
        target_text: what stands at it, or at the upper edge.
        chosen: the recommended layout as a point; None where it has no place.
    """

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    target_y: float | None
    target_text: str
    chosen: Mark | None


def chart(analysis: Analysis) -> Chart:
    """The plot of an analysis."""
    rates = _filled_nodes(analysis)
    most = max([max(points) for points in rates.values()] + [m.tasks for m in analysis.measurements])
    highest = max(
        [value for points in rates.values() for value in points.values()]
        + [m.high for m in analysis.measurements]
    )
    target = None if analysis.target is None else analysis.target.samples_per_s
    shown_target = target is not None and target <= _FAR_ABOVE * highest
    top = _round_up(max(highest, target or 0.0) if shown_target else highest)

    def x(workers: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * workers / (most + 0.5)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value, top) / top

    curves = []
    for number, (cpus, points) in enumerate(rates.items()):
        line = sorted(points.items())
        path = "M" + "L".join(f"{x(n):.1f} {y(value):.1f}" for n, value in [(0, 0.0), *line])
        marks = tuple(
            Mark(
                x(m.tasks),
                y(m.samples_per_s),
                y(m.low),
                y(m.high),
                f"{m.tasks} side by side with {cpus} CPUs each: {format_number(m.samples_per_s)} samples/s "
                "measured, "
                f"{format_number(m.low)} to {format_number(m.high)}",
            )
            for m in analysis.measurements
            if m.cpus_per_task == cpus
        )
        curves.append(Curve(number, cpus, path, marks))
    found = analysis.recommendation
    at = y(found.samples_per_s)
    text = f"recommended: {format_number(found.samples_per_s)} samples/s expected"
    return Chart(
        tuple(Tick(x(n), str(n)) for n in _worker_ticks(most)),
        tuple(Tick(y(top * step / 5), format_number(top * step / 5)) for step in range(6)),
        tuple(curves),
        y(target) if shown_target and target is not None else None,
        "" if target is None else f"target {format_number(target)}",
        Mark(x(found.layout.workers), at, at, at, text),
    )


def _filled_nodes(analysis: Analysis) -> dict[int, dict[int, float]]:
    """By CPUs per task the rate of 1, 2, ... workers where one node after the other is filled.

    On the measured node all tasks count, as all copies were workers; of more nodes one task is the chief.
    Where files are shared out, there are no more workers than files, and the part of their rate that counts.
    """
    filled, files = {}, analysis.model.files
    for cpus, points in sorted(analysis.model.curves.items()):
        node = dict(points)
        tasks = max(node)
        most = max(tasks, analysis.available_nodes * tasks - 1)
        most = most if files is None else min(most, files)
        filled[cpus] = {
            n: (n // tasks * node[tasks] + node.get(n % tasks, 0.0)) * usable_fraction(files, n)
            for n in range(1, most + 1)
        }
    return filled


def _worker_ticks(most: int) -> Sequence[int]:
    step = max(1, math.ceil(most / _MOST_TICKS))
    return range(step, most + 1, step)


def _round_up(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)


DEFINITIONS: dict[str, str] = {
    "Samples/s": "Samples that all copies, or all workers, deliver together in a second, in the steady "
    "state: after buffers have filled, and after the first epoch where one ended.",
    "95 % interval": "Confidence interval of a measured rate, from the means of twenty stretches of the "
    "measurement (Student's t).",
    "Unsettled": "The measurement has used up its time before every copy had given ten batches, the rate had "
    "come to rest, and half of its interval was within 5 % of the rate.",
    "First epoch": "Rate of a single copy from its first batch to the end of its first epoch: files are read "
    "for the first time, a cache is filled. Cold: files were dropped from the memory of the operating system "
    "before it (--cold); an epoch that does not end in time is then as long as the measurement, one of "
    "unknown size as long as files are read from the disk. Else empty where an epoch does not end in time, "
    "or its end is not seen. Empty too where one is over at once.",
    "From disk per sample": "Bytes that the copy caused to be read from disks in its first epoch, by its "
    "samples: as the kernel counts them, to which many network file systems do not add. About 0 where files "
    "were in memory already.",
    "CPU time per sample": "CPU time of the worker's process, all its threads, divided by its samples.",
    "Bytes per sample": "Size of a sample as the worker gets it and sends it.",
    "Memory per task": "Most resident memory that a copy, with all processes below it, was seen to have.",
    "Warm-up": "Time until the measurement counts: buffers fill, and the first epoch ends where it is short.",
    "CPUs of others": "CPUs that programs beside the copies have kept busy meanwhile.",
    "Self time": "Time of a stage alone per sample, without the stages that it reads: computing and waiting.",
    "Share": "Part of a stage in the self time of all stages after the first epoch.",
    "CPU time in no stage": "CPU time per sample of a single copy with the recommended number of CPUs, less "
    "that of all stages after the first epoch. Stages are timed alone and in one thread, so what their calls "
    "cost in the pipeline, and handing elements and batches over between threads and processes, is in it.",
    "Bottleneck": "The stage without which a task with the recommended number of CPUs would be fastest after "
    "the first epoch, by the times of the stages, the threads that work on them, and the CPU time in no "
    "stage, which stays as it is: a change that spares calls and hand-overs, too, gives more.",
    "Gain": "What a recommended change gives. Measured: the rate with the change over that without it, read "
    "interleaved, with a 95 % interval. Expected: the time of a sample by the times of the "
    "stages, before over after: up to, where the change spares no hand-overs between threads; about, where "
    "it may spare some.",
    "Target": "Samples per second that the training can use: what the compile report estimates for the "
    "wafer, or what --target-samples-per-s says.",
    "Predicted": "Sum over the nodes of the fitted rate of as many copies as the node has workers. One "
    "task of the first node is the chief, which streams nothing. Of files that cannot be shared out evenly "
    "the part that counts until the worker with the most of them is through: their mean over the most.",
    "Model": "rate = n / (t(c) (1 + sigma (n-1) + kappa n (n-1))) for n tasks with c CPUs each on a node; "
    "t(c) is a part that more CPUs do not shorten and a part that they do. sigma is the time that copies "
    "wait for each other, kappa what they cost each other pairwise. Several threads that wait and compute "
    "alternately, as worker processes of a torch DataLoader, queue for the CPUs.",
    "Headroom": "By what part the expected rate exceeds the target. The smallest layout with at least 10 % "
    "is taken: the rate of the input alone is higher than that of a training, whose workers also send.",
    "Utilization": "Part of the time for which the accelerator is expected to have input: rate by target, "
    "at most 1.",
    "Input-bound": "No layout within the available nodes reaches the target: the accelerator waits for "
    "input. Probably: the interval of the expected rate has the target in it. That is, relative to the rate, "
    "the interval of the measurement that is nearest to the workers of a node, and the distance of the model "
    "from all of them, their squares added.",
}

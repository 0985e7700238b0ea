"""Render the report for browsers: a single self-contained file with a plot and definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

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
            outside_stages=wording.time_outside_stages(analysis),
            no_findings=wording.no_findings(analysis),
            together=wording.combination(analysis),
            fit=wording.fit(analysis),
            plot=chart(analysis),
            size=PLOT_SIZE,
            times=wording.time_rows(analysis) if analysis.stages else [],
            is_program=wording.is_program(analysis.subject.command),
            measurements=analysis.measurements,
            measured_columns=_list_columns(analysis),
            target=None if analysis.target is None else analysis.target.samples_per_s,
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
        withdrawal=wording.withdrawal,
        breakable=lambda path: escape(path).replace("/", Markup("/<wbr>")),  # lines may break after slashes
        pixels=lambda value: f"{value:.1f}",
    )
    environment.globals.update(counted=plural)
    return environment


@cache
def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _list_columns(analysis: Analysis) -> tuple[str, ...]:
    """Return the columns of the measurements; those about a first epoch only if one was measured."""
    epochs = any(one.first_epoch_samples_per_s is not None for one in analysis.measurements)
    disk = any(wording.from_disk(one) is not None for one in analysis.measurements)
    return (
        *("Tasks", "CPUs each", "Samples/s", "95 % interval"),
        *(["First epoch"] if epochs else []),
        *(["From disk per sample"] if disk else []),
        *("CPU µs per sample", "Bytes per sample", "Memory per task", "Warm-up", "CPUs of others"),
    )


WIDTH, HEIGHT = 1240.0, 380.0
LEFT, RIGHT, TOP, BOTTOM = 84.0, 20.0, 26.0, 46.0
PLOT_SIZE = {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT, "BOTTOM": BOTTOM}
# A target that exceeds the highest rate by this factor would flatten the plot: it is noted at the edge.
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
    """All shapes of the plot.

    Attributes:
        target_y: height of the target line; None if it is not in the plot.
        target_text: label of the line, or of the upper edge.
        chosen: the recommended layout as a point; None if it is not in the plot.
    """

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    target_y: float | None
    target_text: str
    chosen: Mark | None


def chart(analysis: Analysis) -> Chart:
    """Return the plot of an analysis."""
    rates = _rates_by_workers(analysis)
    most = max([max(points) for points in rates.values()] + [m.tasks for m in analysis.measurements])
    highest = max(
        [value for points in rates.values() for value in points.values()]
        + [m.high for m in analysis.measurements]
    )
    target = None if analysis.target is None else analysis.target.samples_per_s
    shown_target = target is not None and target <= _FAR_ABOVE * highest
    top = max(highest, target or 0.0) if shown_target else highest
    power = 10.0 ** math.floor(math.log10(top))
    top = next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= top * 0.999)
    step = max(1, math.ceil(most / _MOST_TICKS))

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
                f"{m.tasks} in parallel with {cpus} CPUs each: {format_number(m.samples_per_s)} samples/s "
                f"measured, {format_number(m.low)} to {format_number(m.high)}",
            )
            for m in analysis.measurements
            if m.cpus_per_task == cpus
        )
        curves.append(Curve(number, cpus, path, marks))
    found = analysis.recommendation
    at = y(found.samples_per_s)
    text = f"recommended: {format_number(found.samples_per_s)} samples/s expected"
    return Chart(
        tuple(Tick(x(n), str(n)) for n in range(step, most + 1, step)),
        tuple(Tick(y(top * part / 5), format_number(top * part / 5)) for part in range(6)),
        tuple(curves),
        y(target) if shown_target and target is not None else None,
        "" if target is None else f"target {format_number(target)}",
        Mark(x(found.layout.workers), at, at, at, text),
    )


def _rates_by_workers(analysis: Analysis) -> dict[int, dict[int, float]]:
    """Return the rates of 1, 2, ... workers, which fill node by node, by CPUs per task."""
    # On the measured node all tasks count, as all copies were workers; with more nodes one task is the chief.
    # If files are distributed whole, there are no more workers than files, and only the usable fraction of
    # their rate counts.
    rates, files = {}, analysis.model.files
    for cpus, points in sorted(analysis.model.curves.items()):
        node = dict(points)
        tasks = max(node)
        most = max(tasks, analysis.available_nodes * tasks - 1)
        most = most if files is None else min(most, files)
        rates[cpus] = {
            n: (n // tasks * node[tasks] + node.get(n % tasks, 0.0)) * usable_fraction(files, n)
            for n in range(1, most + 1)
        }
    return rates


DEFINITIONS: dict[str, str] = {
    "Samples/s": "Samples per second of all copies, or of all workers, together in the steady state: after "
    "buffers have filled, and after the first epoch if one ended.",
    "95 % interval": "Confidence interval of a measured rate, from the means of twenty sections of the "
    "measurement (Student's t).",
    "Unsettled": "The time of a measurement was over before every copy had delivered ten batches, the rate "
    "was steady, and half of its interval was within 5 % of the rate. The headline begins with it if that is "
    "so, or if other programs used more than 5 % of the CPUs.",
    "First epoch": "Rate of a single copy from its first batch to the end of its first epoch, in which files "
    "are read for the first time and caches are filled. Cold: files were dropped from the page cache before "
    "it (--cold); if the epoch does not end in time, it counts as far as it was measured, and if its size is "
    "unknown, as long as files are read from the disk. Otherwise empty if the epoch does not end in time or "
    "its end cannot be observed, and if it is too short to have a rate.",
    "From disk per sample": "Bytes per sample that the copy caused to be read from disks in its first epoch, "
    "as counted by the kernel, which does not count many network file systems. About 0 if the files were "
    "already in memory.",
    "CPU time per sample": "CPU time of all threads of the worker's process, divided by its samples.",
    "Bytes per sample": "Size of a sample as the worker receives it and sends it.",
    "Memory per task": "Peak resident memory of a copy and all its descendants.",
    "Warm-up": "Time that is cut off from the beginning of the measurement, while buffers fill and a short "
    "first epoch ends.",
    "CPUs of others": "CPUs that programs other than the copies used during the measurement.",
    "Self time": "Time per sample of a stage without the stages that it reads: computing and waiting.",
    "Share": "Fraction of a stage in the time of all stages and of the time in no stage, after the first "
    "epoch. Bars have the length of their share.",
    "Time in no stage": "CPU time of a single copy outside of all stages (calls, hand-offs between threads, "
    "the process that reads the batches), and the time for which the copy waited without a stage that "
    "explains it: for CPUs that other programs used, for locks, for threads.",
    "CPU time outside of stages": "CPU time per sample of a single copy with the recommended number of CPUs, "
    "minus that of all stages after the first epoch. Stages are timed one by one in a single thread, so this "
    "includes the cost of calls in the pipeline and of passing elements and batches between threads and "
    "processes.",
    "Bottleneck": "The stage without which a task with the recommended number of CPUs would be fastest after "
    "the first epoch. It is computed from the times of the stages, the threads that work on them, and the "
    "CPU time outside of stages, which is assumed to stay the same: a change that also saves calls gains "
    "more.",
    "Gain": "Effect of a recommended change. Measured: the rate with the change divided by the rate without "
    "it, read interleaved, with a 95 % interval. Expected: the time of a sample before the change divided by "
    'that after it, computed from the times of the stages; "up to" if the change does not reduce the cost of '
    'passing elements between threads, "about" if it may.',
    "Target": "Samples per second that training can use: the estimate for the wafer in the compile report, "
    "or the value of --target-samples-per-s.",
    "Predicted": "Sum over the nodes of the rate of the fitted model with as many copies as the node has "
    "workers. One task of the first node is the chief, which streams nothing. If files cannot be distributed "
    "evenly, an epoch lasts until the worker with the most files has read them, so only the mean number of "
    "files divided by the maximum counts.",
    "Model": "rate = n / (t(c) (1 + sigma (n-1) + kappa n (n-1))) for n tasks with c CPUs each on a node; "
    "t(c) has a part that more CPUs do not shorten and a part that they do. sigma is the fraction of time "
    "for which copies queue for shared resources, kappa the pairwise cost of coherency. If several threads "
    "wait and compute alternately, as worker processes of a torch DataLoader do, they queue for the CPUs.",
    "Headroom": "Fraction by which the expected rate exceeds the target. The smallest layout with at least "
    "10 % is recommended, because workers of a training run also send their batches, which was not measured.",
    "Utilization": "Fraction of the time for which the accelerator is expected to have input: rate divided "
    "by target, at most 1.",
    "Input-bound": "No layout of the available nodes reaches the target, so the accelerator waits for input. "
    "Probably: the interval of the expected rate includes the target. This interval combines the relative "
    "interval of the measurement that is nearest to the workers of a node with the deviation of the model "
    "from all measurements, by the sum of squares.",
}

"""The report for a browser: one file that needs nothing else."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from input_analyzer.analysis import Analysis
from input_analyzer.report import chart, words
from input_analyzer.report.definitions import DEFINITIONS
from input_rules.formatting import format_bytes as size_in_words


def render_html(analysis: Analysis) -> str:
    """The text of the page: the same bytes for the same analysis.

    Everything that comes from the user's program is escaped. A content security policy refuses every network
    access and every script.
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
            title=words.title(analysis),
            verdict=words.verdict(analysis),
            command=words.training_command(analysis),
            unaccounted=words.unaccounted(analysis),
            no_findings=words.no_findings(analysis),
            fit=words.fit(analysis),
            plot=chart.chart(analysis),
            size=chart,
            stages=_stages(analysis),
            of_program=words.of_program(analysis.subject.command),
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
        rate=words.rate,
        bytes=size_in_words,
        percent=words.percent,
        microseconds=words.microseconds,
        share=words.share,
        of_target=words.of_target,
        from_disk=words.from_disk,
        breakable=_breakable,
        pixels=lambda value: f"{value:.1f}",
    )
    environment.globals.update(counted=words.counted)
    return environment


@cache
def _asset(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _breakable(path: str) -> Markup:
    """A path that may be broken behind its slashes."""
    return escape(path).replace("/", Markup("/<wbr>"))


def _stages(analysis: Analysis) -> list[dict[str, Any]]:
    """Stages with their part of the time; the longest bar is the longest time."""
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
    """Columns of the measurements; those about a first epoch only where one was measured."""
    epochs = any(one.first_epoch_samples_per_s is not None for one in analysis.measurements)
    disk = any(words.from_disk(one) is not None for one in analysis.measurements)
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

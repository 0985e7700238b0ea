"""The report on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from input_analyzer.analysis import Analysis, Finding, Prediction
from input_analyzer.report.words import (
    counted,
    no_findings,
    percent,
    rate,
    size,
    title,
    training_command,
    unaccounted,
    verdict,
)

_SHOWN_LAYOUTS = 12
_BAR = 24
_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def print_report(analysis: Analysis, console: Console) -> None:
    """Prints all of it."""
    console.print(render(analysis))
    # As long as it is: a line break in the middle would be copied along.
    console.print(Text(f"  {training_command(analysis)}"), soft_wrap=True)


def render(analysis: Analysis) -> RenderableType:
    """The report as one renderable; the command to train with follows it."""
    parts: list[RenderableType] = [*_head(analysis), "", _measurements(analysis)]
    if analysis.stages:
        parts += ["", _stages(analysis), *_unaccounted(analysis)]
    parts += ["", _heading("Input Function Report"), *map(_finding, analysis.findings)]
    if not analysis.findings:
        parts.append(Text(no_findings(analysis)))
    if analysis.applied_gain:
        parts.append(Text(f"All that --apply mends, together: {analysis.applied_gain}"))
    parts += ["", _layouts(analysis)]
    if analysis.notes:
        parts += ["", _heading("To be known"), *(Text(f"- {note}") for note in analysis.notes)]
    return Group(*parts, "", *_recommendation(analysis))


def _head(analysis: Analysis) -> list[RenderableType]:
    subject = analysis.subject
    shapes = ", ".join(f"{c.name} {c.dtype}{list(c.shape)}" for c in subject.components)
    where = f" ({subject.source})" if subject.source else ""
    return [
        _heading("Input analysis"),
        Text(f"{subject.function}{where}, {subject.framework}"),
        Text(f"batches of {subject.batch_size}: {shapes}"),
        Text(
            f"measured on {analysis.node.name}: {counted(analysis.node.cpus, 'CPU')}, "
            f"{size(analysis.node.memory_bytes)}"
        ),
    ]


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _table(heading: str, *columns: str) -> Table:
    table = Table(
        title=Text(heading, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        name = column.removesuffix(" <")
        table.add_column(name, justify="left" if name != column else "right", overflow="fold")
    return table


def _measurements(analysis: Analysis) -> Table:
    # Where no first epoch was measured the column would only take room.
    from_disk = any(one.first_epoch_disk_bytes_per_sample is not None for one in analysis.measurements)
    table = _table(
        "Measured, copies side by side on one node",
        "tasks",
        "CPUs each",
        "samples/s",
        "95 % interval",
        "first epoch",
        *(["from disk/sample"] if from_disk else []),
        "CPU us/sample",
        "bytes/sample",
        "memory/task",
    )
    for one in analysis.measurements:
        first = "-" if one.first_epoch_samples_per_s is None else rate(one.first_epoch_samples_per_s)
        read = one.first_epoch_disk_bytes_per_sample
        table.add_row(
            str(one.tasks),
            f"{one.cpus_per_task}{'' if one.pinned else ' (shared)'}",
            rate(one.samples_per_s),
            f"{rate(one.low)} to {rate(one.high)}",
            f"{first}{' (cold)' if one.cold and one.tasks == 1 else ''}",
            *(["-" if read is None else rate(read)] if from_disk else []),
            "-" if one.cpu_us_per_sample is None else f"{one.cpu_us_per_sample:.4g}",
            rate(one.bytes_per_sample),
            size(one.memory_per_task_bytes),
        )
    return table


def _stages(analysis: Analysis) -> Table:
    table = _table("Stages, self time per sample", "stage <", "us", "share <", "source <")
    total = sum(stage.self_time_us_per_sample or 0.0 for stage in analysis.stages if not stage.once)
    slowest = None if analysis.bottleneck is None else analysis.bottleneck.stage
    for stage in analysis.stages:
        time = stage.self_time_us_per_sample
        share = (time or 0.0) / total if total and not stage.once else 0.0
        bar = "█" * round(_BAR * share)
        notes = " first epoch only" if stage.once else " <- bottleneck" if stage.name == slowest else ""
        table.add_row(
            stage.name,
            "-" if time is None else f"{time:.4g}",
            Text(f"{bar} {percent(share)}{notes}" if time else notes.strip()),
            stage.source or "",
            style="bold" if stage.name == slowest else "",
        )
    return table


def _unaccounted(analysis: Analysis) -> list[RenderableType]:
    text = unaccounted(analysis)
    return [] if text is None else [Text(text)]


def _finding(finding: Finding) -> RenderableType:
    head = Text.assemble((finding.severity, _STYLE[finding.severity]), f" {finding.id}")
    if finding.source:
        head.append(f" at {finding.source}")
    lines = [head, Text(f"  {finding.message}"), Text(f"  recommended: {finding.recommended}")]
    if finding.gain:
        lines.append(Text(f"  gain: {finding.gain}"))
    return Group(*lines)


def _layouts(analysis: Analysis) -> Table:
    table = _table(
        "Predicted", "nodes", "tasks per node", "CPUs per task", "workers", "samples/s", "of the target"
    )
    target = None if analysis.target is None else analysis.target.samples_per_s
    for one in _shown(analysis):
        chosen = one.layout == analysis.recommendation.layout
        table.add_row(
            str(one.layout.nodes),
            str(one.layout.tasks_per_node),
            str(one.layout.cpus_per_task),
            str(one.layout.workers),
            rate(one.samples_per_s),
            "-" if target is None else percent(one.samples_per_s / target),
            style="bold" if chosen else "",
        )
    return table


def _shown(analysis: Analysis) -> list[Prediction]:
    """The best layout of each number of nodes and CPUs per task, and the recommended one; not too many."""
    best: dict[tuple[int, int], Prediction] = {}
    for one in analysis.predictions:
        key = (one.layout.nodes, one.layout.cpus_per_task)
        if key not in best or one.samples_per_s > best[key].samples_per_s:
            best[key] = one
    chosen = analysis.recommendation.layout
    fast = sorted(best.values(), key=lambda one: -one.samples_per_s)[:_SHOWN_LAYOUTS]
    kept = [one for one in analysis.predictions if one in fast or one.layout == chosen]
    return sorted(kept, key=lambda one: (one.layout.nodes, one.samples_per_s))


def _recommendation(analysis: Analysis) -> list[RenderableType]:
    layout = analysis.recommendation.layout
    style = "bold red" if analysis.input_bound else "bold"
    lines: list[RenderableType] = [
        Text(title(analysis), style=style),
        Text(verdict(analysis)),
    ]
    if analysis.target is not None:
        lines.append(
            Text(f"Target: {rate(analysis.target.samples_per_s)} samples/s, {analysis.target.origin}.")
        )
    if analysis.bottleneck is not None:
        lines.append(Text(f"Bottleneck: {analysis.bottleneck.stage}, {analysis.bottleneck.reason}."))
    return [
        *lines,
        "",
        _heading("Recommended"),
        Text(f"nodes: {layout.nodes}"),
        Text(f"tasks_per_node: {layout.tasks_per_node}"),
        Text(f"cpus_per_task: {layout.cpus_per_task}"),
    ]

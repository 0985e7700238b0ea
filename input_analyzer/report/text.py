"""Print the report on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import TextWrapper

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from input_analyzer.analysis import Analysis, Prediction
from input_analyzer.report.wording import (
    combination,
    from_disk,
    microseconds,
    no_findings,
    of_target,
    share,
    subject,
    time_outside_stages,
    time_rows,
    title,
    training_command,
    verdict,
    withdrawal,
)
from input_rules.findings import Finding
from input_rules.formatting import format_bytes, format_number, plural

_SHOWN_LAYOUTS = 12
_BAR, _MIN_BAR = 24, len("first epoch only") - len(" 100 %")  # most and fewest characters
_UNSETTLED = "*"  # marks measurements that needed more time
_STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}


def print_report(analysis: Analysis, console: Console) -> None:
    """Print the whole report."""
    # Words wider than the terminal, such as paths, are not broken, so that they can be copied.
    console.print(render(analysis, console), crop=False)
    # Without line breaks, so that it can be copied.
    console.print(Text(f"  {training_command(analysis)}"), soft_wrap=True)


def render(analysis: Analysis, console: Console) -> RenderableType:
    """Return the report as one renderable of the console's width, without the training command."""
    width = console.width
    found = analysis.subject
    shapes = ", ".join(f"{c.name} {c.dtype}{list(c.shape)}" for c in found.components)
    subjects = (
        subject(analysis),
        f"batches of {found.batch_size}: {shapes}",
        f"measured on {analysis.node.name}: {plural(analysis.node.cpus, 'CPU')}, "
        f"{format_bytes(analysis.node.memory_bytes)}",
    )
    parts: list[RenderableType] = [_heading("Input analysis")]
    parts += [_wrap(line, width, "", "  ") for line in subjects]
    parts += ["", *_render_measurements(analysis, console)]
    if analysis.stages:
        parts += ["", _render_stages(analysis, width)]
        if outside := time_outside_stages(analysis):
            parts.append(_wrap(outside, width))
    parts += ["", _heading("Input Function Report")]
    parts += [part for finding in analysis.findings for part in _render_finding(finding, width)]
    if not analysis.findings:
        parts.append(_wrap(no_findings(analysis), width))
    if together := combination(analysis):
        parts.append(_wrap(together, width, "", "  "))
    parts += ["", _render_layouts(analysis, width)]
    if analysis.notes:
        notes = (_wrap(note, width, "- ", "  ") for note in analysis.notes)
        parts += ["", _heading("Notes"), *notes]
    lines = [verdict(analysis)]
    if analysis.target is not None:
        lines.append(
            f"Target: {format_number(analysis.target.samples_per_s)} samples/s, {analysis.target.origin}."
        )
    if analysis.bottleneck is not None:
        lines.append(f"Bottleneck: {analysis.bottleneck.stage}, {analysis.bottleneck.reason}.")
    # Where readers find the definitions of all figures.
    lines.append(
        "docs/reference/input-analyzer-reference.md (Figures) and the page of --html=FILE explain "
        "the figures."
    )
    parts += ["", Text(title(analysis), style="bold red" if analysis.input_bound else "bold")]
    parts += [_wrap(line, width, "", "  ") for line in lines]
    layout = analysis.recommendation.layout
    return Group(
        *parts,
        "",
        _heading("Recommended"),
        Text(f"nodes: {layout.nodes}"),
        Text(f"tasks_per_node: {layout.tasks_per_node}"),
        Text(f"cpus_per_task: {layout.cpus_per_task}"),
    )


def _wrap(text: str, width: int, first: str = "", others: str = "") -> Text:
    """Wrap text at words, with prefixes for the first line and for the others."""
    wrapper = TextWrapper(
        width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return Text(wrapper.fill(text), no_wrap=True, overflow="ignore")


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _table(heading: str, *columns: str) -> Table:
    """Make a table; a column whose name ends in " <" is left-aligned."""
    table = Table(
        title=Text(heading, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        name = column.removesuffix(" <")
        # At least as wide as the longest word, so that none is broken.
        table.add_column(
            name,
            justify="left" if name != column else "right",
            overflow="fold",
            min_width=max(map(len, name.split())),
        )
    return table


_MEASURED = "Measured: copies in parallel on one node"


def _render_measurements(analysis: Analysis, console: Console) -> Iterator[RenderableType]:
    """Yield one table, or two if one would be wider than the console, and an explanation of the marks."""
    rows = []
    for one in analysis.measurements:
        first, read, cpu_us = one.first_epoch_samples_per_s, from_disk(one), one.cpu_us_per_sample
        cold = " (cold)" if one.cold and one.tasks == 1 else ""
        mark = "" if one.settled else f" {_UNSETTLED}"
        rows.append(
            {
                "tasks": str(one.tasks),
                "CPUs each": f"{one.cpus_per_task}{'' if one.pinned else ' (shared)'}",
                "samples/s": format_number(one.samples_per_s),
                "95 % interval": f"{format_number(one.low)} to {format_number(one.high)}{mark}",
                "first epoch": "" if first is None else f"{format_number(first)}{cold}",
                "from disk per sample": "" if read is None else format_number(read),
                "CPU us per sample": "-" if cpu_us is None else format_number(cpu_us),
                "bytes per sample": format_number(one.bytes_per_sample),
                "memory per task": format_bytes(one.memory_per_task_bytes),
            }
        )
    names = list(rows[0])
    key, of_costs = names[:2], names[6:]
    # Columns about a first epoch are not shown if they are empty in all measurements.
    of_rates = [*key, *(name for name in names[2:6] if any(row[name] for row in rows))]
    whole, width = _rows(_MEASURED, [*of_rates, *of_costs], rows, console.width)
    if width <= console.width:
        yield whole
    else:
        yield _rows(_MEASURED, of_rates, rows, console.width)[0]
        yield ""
        yield _rows("Resources of a copy", [*key, *of_costs], rows, console.width)[0]
    if not all(one.settled for one in analysis.measurements):
        yield _wrap(f"{_UNSETTLED} unsettled: it needed more time, see the notes below", console.width)


def _rows(
    heading: str, names: Sequence[str], rows: Sequence[dict[str, str]], width: int
) -> tuple[Table, int]:
    """Return a table whose cells stay on one line, and its minimum width."""
    table = _table(heading, *names)
    for column in table.columns:
        cells = max(len(row[str(column.header)]) for row in rows)
        column.min_width = max(column.min_width or 0, cells)
    for row in rows:
        table.add_row(*(row[name] or "-" for name in names))
    between = _BETWEEN * (len(names) - 1) + _EDGES
    least = between + sum(column.min_width or 0 for column in table.columns)
    if between + sum(max(len(str(c.header)), c.min_width or 0) for c in table.columns) > width:
        for column in table.columns:  # rich would shrink columns that must not be shrunk
            column.width = column.min_width
    return table, least


_BETWEEN, _EDGES = 3, 2  # characters of a table between two columns, and at its edges
_MARK = " <- bottleneck"
# Characters of the table of stages between its columns and after a bar.
_ROOM = 3 * _BETWEEN + _EDGES + len(f" 100 %{_MARK}")


def _render_stages(analysis: Analysis, width: int) -> Table:
    table = _table("Stages, self time per sample", "stage <", "us", "share <", "source <")
    rows = time_rows(analysis)
    cells = [microseconds(row.time_us) for row in rows]
    names = max(len(row.name) for row in rows)
    sources = max(len(row.source or "") for row in rows)
    room = width - names - max(map(len, cells)) - _ROOM
    narrow = room - sources < _MIN_BAR
    if narrow:  # the mark of the bottleneck then has its own line
        room += len(_MARK)
    longest = max(_MIN_BAR, min(_BAR, room - sources))
    for row, cell in zip(rows, cells, strict=True):
        taken = row.share or 0.0
        part = "first epoch only" if row.once else f"{'█' * round(longest * taken)} {share(taken)}"
        if row.slowest:
            part += f"\n{_MARK.strip()}" if narrow else _MARK
        source = [""]  # broken after slashes
        for piece in re.findall(r"[^/]*/|[^/]+", row.source or ""):
            if source[-1] and len(source[-1]) + len(piece) > room - longest:
                source.append("")
            source[-1] += piece
        table.add_row(
            row.name,
            cell,
            Text(part.strip() if row.time_us else ""),
            "\n".join(source),
            style="bold" if row.slowest else "",
        )
    return table


def _render_finding(finding: Finding, width: int) -> Iterator[RenderableType]:
    head = Text.assemble((finding.severity, _STYLE[finding.severity]), f" {finding.id}")
    if finding.source:
        head.append(f" at {finding.source}")
    head.no_wrap, head.overflow = True, "ignore"
    yield head
    yield _wrap(finding.message, width, "  ", "  ")
    if finding.withdrawn:
        yield _wrap(f"considered: {finding.recommended}", width, "  ", "    ")
        yield _wrap(withdrawal(finding), width, "  ", "    ")
        return
    yield _wrap(f"recommended: {finding.recommended}", width, "  ", "    ")
    if finding.gain:
        yield _wrap(f"gain: {finding.gain}", width, "  ", "    ")
    # As it is, so that it can be copied.
    for line in (finding.diff or "").splitlines():
        yield Text(f"  {line}", no_wrap=True, overflow="ignore")


def _render_layouts(analysis: Analysis, width: int) -> Table:
    """Return a table of the best layouts by nodes and CPUs per task, and of the recommended one."""
    best: dict[tuple[int, int], Prediction] = {}
    for one in analysis.predictions:
        key = (one.layout.nodes, one.layout.cpus_per_task)
        if key not in best or one.samples_per_s > best[key].samples_per_s:
            best[key] = one
    fast = sorted(best.values(), key=lambda one: -one.samples_per_s)[:_SHOWN_LAYOUTS]
    chosen = analysis.recommendation.layout
    shown = [one for one in analysis.predictions if one in fast or one.layout == chosen]
    shown.sort(key=lambda one: (one.layout.nodes, one.samples_per_s))
    target = None if analysis.target is None else analysis.target.samples_per_s
    rows = [
        {
            "nodes": str(one.layout.nodes),
            "tasks per node": str(one.layout.tasks_per_node),
            "CPUs per task": str(one.layout.cpus_per_task),
            "workers": str(one.layout.workers),
            "samples/s": format_number(one.samples_per_s),
            "of the target": "-" if target is None else of_target(one.samples_per_s / target),
        }
        for one in shown
    ]
    table, _ = _rows("Predicted", list(rows[0]), rows, width)
    for row, one in zip(table.rows, shown, strict=True):
        row.style = "bold" if one.layout == chosen else ""
    return table

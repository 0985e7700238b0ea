"""The command `cgc-report`: compare compile reports."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cgc.errors import CompileError, ReportError
from cgc.manifest import PROVENANCE, REPORT_JSON
from cgc.report.diff_page import render_diff_html
from cgc.report.pipeline import DEFAULT_SAMPLES, make_trace
from cgc.report.text import table
from cs_toolkit.command_group import CommandGroup
from cs_toolkit.files import read_json
from cs_toolkit.log_lines import escape_controls


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look at compile reports."""


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All figures, unrounded, as a JSON value.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a page with both reports side by side.",
)
def diff(a: Path, b: Path, as_json: bool, html: Path | None) -> None:
    """Compare the reports A and B: program and settings, predicted speed, changed kernels.

    A and B are a compile_report.json, an artifact cs_<hash>, or a folder with artifacts (a model_dir), whose
    newest one is used.

    \b
    Examples:
      cgc-report diff float32/ float16/
      cgc-report diff float32/ float16/ --html=diff.html
      cgc-report diff --json model_dir/cs_1f.../ model_dir/cs_9b.../

    Exit status: 0, also if the reports differ; 1 if a report is missing; 2 for bad usage.
    """
    try:
        reports = load_report(a), load_report(b)
        with _damage_as_error(a, b):
            found = compare(*reports)
            # Names come from the reports, which others may have made.
            text = json.dumps(found, indent=1) if as_json else _printable(render(found))
            page = render_diff_html(found, [one.report for one in reports]) if html is not None else ""
        if html is not None:
            _write(html, page, "--html")
    except CompileError as error:
        click.echo(f"cgc-report: error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(text, nl=as_json)


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("report", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    default="pipeline.json",
    show_default=True,
    metavar="FILE",
    help="Where to write the trace; - for stdout.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=DEFAULT_SAMPLES,
    show_default=True,
    metavar="N",
    help="Number of samples that pass the wafer.",
)
def trace(report: Path, output: Path, samples: int) -> None:
    """Write the predicted pipeline of REPORT as a trace for https://ui.perfetto.dev or chrome://tracing.

    Each kernel is a track, each sample a slice on it. With streamed weights the layers of a step follow each
    other on one track. REPORT is given as for `cgc-report diff`.

    Exit status: 0; 1 if the report is missing or of an older version; 2 for bad usage.
    """
    try:
        loaded = load_report(report)
        with _damage_as_error(report):
            text = json.dumps(make_trace(loaded.report, samples)) + "\n"
        if output == Path("-"):
            click.echo(text, nl=False)
            return
        _write(output, text, "-o")
    except CompileError as error:
        click.echo(f"cgc-report: error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(f"{output}: open it at https://ui.perfetto.dev or in chrome://tracing")


def _printable(text: str) -> str:
    """Escape control characters, and halves of surrogate pairs, which no terminal can print."""
    return escape_controls(text, keep="\n").encode(errors="backslashreplace").decode()


def _write(file: Path, text: str, option: str) -> None:
    try:
        # Names of other programs may have half of a surrogate pair.
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ReportError(
            f"cannot write {file}: {error.strerror}; name another file with {option}"
        ) from error


@contextmanager
def _damage_as_error(*reports: Path) -> Iterator[None]:
    """Raise ReportError if the body finds that values of reports are missing or of another kind."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        names = " or ".join(map(str, reports))
        raise ReportError(
            f"{names} is damaged ({type(error).__name__}: {error}); compile the program again"
        ) from error


Report = Mapping[str, Any]

_SHOWN = 20  # changed kernels in the text; `--json` has all


@dataclass(frozen=True)
class Loaded:
    """A report with its path and its provenance."""

    path: Path
    report: Report
    provenance: Mapping[str, Any]


def load_report(given: Path) -> Loaded:
    """Read a report.

    Args:
        given: `compile_report.json`, an artifact `cs_<hash>`, or a folder with artifacts, whose newest one is
            used.

    Raises:
        ReportError: it is missing or cannot be read.
    """
    path = _report_file(given)
    try:
        report = read_json(path)
        if not isinstance(report, dict) or "overall" not in report:
            raise ReportError(f"{path} is no compile report; name the {REPORT_JSON} of an artifact")
        made = path.with_name(PROVENANCE)
        provenance = read_json(made) if made.exists() else {}
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot read {path}: {error}; compile the program again") from error
    return Loaded(path, report, provenance)


def _report_file(given: Path) -> Path:
    if given.is_file():
        return given
    if (given / REPORT_JSON).is_file():
        return given / REPORT_JSON
    found = sorted(given.glob(f"cs_*/{REPORT_JSON}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ReportError(
            f"there is no compile report in {given}: expected {REPORT_JSON}, or folders cs_<hash> with it; "
            "compile the program with --mode=compile_only, and name its model_dir"
        )
    return found[-1]


def compare(a: Loaded, b: Loaded) -> dict[str, Any]:
    """Build the JSON value of a comparison.

    Keys: `reports` (the two files), `head` and `overall` (rows of `what`, `a`, `b`; numbers have `percent`),
    `bottleneck` (of both), `unit` and `parts` (kernels, or layers with streamed weights: `name`, `a`, `b`,
    `percent`, `pes` of both; null for a report that lacks it), `families`.
    """
    kinds = tuple(_execution(one.report) for one in (a, b))
    comparable = kinds[0] == kinds[1]
    return {
        "reports": [str(a.path), str(b.path)],
        "head": [_row(name, x, y) for name, x, y in _join(_head(a), _head(b))],
        "overall": [_row(name, x, y) for name, x, y in _join(_overall(a.report), _overall(b.report))],
        "bottleneck": [_bottleneck(a.report), _bottleneck(b.report)],
        "unit": _unit(a.report) if comparable else None,
        "parts": _compare_parts(_parts(a.report), _parts(b.report)) if comparable else [],
        "families": _compare_families(a.report, b.report) if comparable and kinds[0] == "pipelined" else [],
    }


def render(diff: Mapping[str, Any]) -> str:
    """Render a comparison as text."""
    a, b = diff["reports"]
    blocks = [f"A: {a}\nB: {b}"]
    head = [row for row in diff["head"] if row["a"] != row["b"]]
    same = [f"{row['what']} {_text(row['a'])}" for row in diff["head"] if row["a"] == row["b"]]
    if head:
        blocks.append(table(("", "A", "B"), [_cells(row) for row in head], left=(0, 1, 2)))
    if same:
        blocks.append(f"The same: {', '.join(same)}")
    overall = [(*_cells(row), _percent(row)) for row in diff["overall"]]
    blocks.append(table(("Overall", "A", "B", "Change"), overall))
    blocks.append("Bound by: " + _arrow(*diff["bottleneck"]))
    if diff["unit"] is None:
        blocks.append("One is pipelined and the other streams its weights: no parts to compare.")
        return "\n\n".join(blocks) + "\n"
    if diff["families"]:
        families = [
            (row["family"], _arrow(*row["kernels"]), _arrow(*row["active_pes"])) for row in diff["families"]
        ]
        blocks.append(table(("Family", "Kernels", "Active PEs"), families))
    blocks.append(_render_parts(diff["parts"], diff["unit"]))
    return "\n\n".join(blocks) + "\n"


def _render_parts(parts: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Render a table of the changed parts, the largest changes first."""
    changed = [row for row in parts if row["a"] != row["b"] or row["pes"][0] != row["pes"][1]]
    noun = "kernels" if unit == "cycles" else "layers"
    if not changed:
        return f"All {len(parts):,} {noun} are the same."
    rows = [
        (row["name"], _text(row["a"]), _text(row["b"]), _percent(row), _arrow(*row["pes"])) for row in changed
    ]
    lines = [
        table((noun[:-1].capitalize(), f"A, {unit}", f"B, {unit}", "Change", "Active PEs"), rows[:_SHOWN])
    ]
    if len(rows) > _SHOWN:
        lines.append(f"... and {len(rows) - _SHOWN:,} more changed ones; --json has all")
    lines.append(f"{len(parts) - len(changed):,} of {len(parts):,} {noun} are the same.")
    return "\n".join(lines)


def _head(loaded: Loaded) -> dict[str, Any]:
    report, made = loaded.report, loaded.provenance
    versions = made.get("versions", {})
    return {
        **{name: made[name] for name in ("model", "program", "command", "compiled_at") if made.get(name)},
        "execution": _execution(report),
        "precision": report.get("precision"),
        "batch": report["batch_size"],
        "fabric": report["fabric"],
        **{f"version of {name}": version for name, version in versions.items()},
    }


def _execution(report: Report) -> str:
    return str(report.get("execution", "pipelined"))


def _overall(report: Report) -> dict[str, Any]:
    overall = report["overall"]
    names = {
        "samples_per_s": "Samples/s",
        "deltat_cycles": "Cycles per sample",
        "step_s": "Seconds of a step",
        "active_pes": "Active PEs",
        "compute_utilization_percent": "Compute utilization, %",
        "activation_bytes": "Activations, bytes",
    }
    return {text: overall[name] for name, text in names.items() if name in overall}


def _bottleneck(report: Report) -> str:
    if _execution(report) != "pipelined":
        return str(report["overall"]["bound_by"])
    found = report["bottleneck"]
    return f"{found['kernel']} ({found['limit']})"


def _unit(report: Report) -> str:
    return "cycles" if _execution(report) == "pipelined" else "ms"


def _parts(report: Report) -> dict[str, dict[str, Any]]:
    """Return time and PEs of the kernels or layers by name."""
    if _execution(report) == "pipelined":
        return {k["name"]: {"value": k["deltat_cycles"], "pes": k["active_pes"]} for k in report["kernels"]}
    return {
        layer["name"]: {
            "value": 1e3 * (layer["compute_s"] + layer["latency_s"] + layer["exposed_transfer_s"]),
            "pes": layer["active_pes"],
        }
        for layer in report["layers"]
    }


def _compare_parts(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    nothing = {"value": None, "pes": None}
    rows = []
    for name in dict.fromkeys((*a, *b)):
        x, y = a.get(name, nothing), b.get(name, nothing)
        rows.append({**_row(name, x["value"], y["value"], "name"), "pes": [x["pes"], y["pes"]]})
    return sorted(rows, key=lambda row: -abs((row["b"] or 0) - (row["a"] or 0)))


def _compare_families(a: Report, b: Report) -> list[dict[str, Any]]:
    sums = []
    for report in (a, b):
        found: dict[str, list[int]] = {}
        for kernel in report["kernels"]:
            one = found.setdefault(kernel["family"], [0, 0])
            one[0] += 1
            one[1] += kernel["active_pes"]
        sums.append(found)
    none = [0, 0]
    return [
        {
            "family": family,
            "kernels": [one.get(family, none)[0] for one in sums],
            "active_pes": [one.get(family, none)[1] for one in sums],
        }
        for family in dict.fromkeys((*sums[0], *sums[1]))
    ]


def _join(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys((*a, *b)):
        yield name, a.get(name), b.get(name)


def _row(what: str, a: Any, b: Any, key: str = "what") -> dict[str, Any]:
    numbers = all(isinstance(value, int | float) for value in (a, b))
    return {key: what, "a": a, "b": b, "percent": 100 * (b / a - 1) if numbers and a else None}


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["what"], _text(row["a"]), _text(row["b"])


def _arrow(a: Any, b: Any) -> str:
    return _text(a) if a == b else f"{_text(a)} -> {_text(b)}"


def _text(value: Any) -> str:
    if value is None:
        return "--"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _percent(row: Mapping[str, Any]) -> str:
    percent = row["percent"]
    if percent is None:
        return "new" if row["a"] is None else "gone" if row["b"] is None else ""
    if percent == 0:
        return ""
    decimals = max(1, -math.floor(math.log10(abs(percent))))
    return f"{percent:+.{decimals}f} %"


if __name__ == "__main__":
    main()

"""`cgc-report`: looks at compile reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from cgc.errors import CompileError
from cgc.tools.report_diff import compare, load_report, render


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look at compile reports."""


@main.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All figures, unrounded, as a JSON value.")
def diff(a: Path, b: Path, as_json: bool) -> None:
    """Compare the reports A and B: what was compiled, how fast it is, which kernels have changed.

    A and B are a compile_report.json, an artifact cs_<hash>, or a folder with artifacts (a model_dir), of
    which the newest counts.

    \b
    Examples:
      cgc-report diff float32/ float16/
      cgc-report diff --json model_dir/cs_1f.../ model_dir/cs_9b.../

    Exit status: 0, also where the reports differ; 1 where there is no report; 2 for bad usage.
    """
    try:
        found = compare(load_report(a), load_report(b))
    except CompileError as error:
        click.echo(f"cgc-report: error: {error}", err=True)
        sys.exit(error.exit_code)
    click.echo(json.dumps(found, indent=1) if as_json else render(found), nl=as_json)


if __name__ == "__main__":
    main()

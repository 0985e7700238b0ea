"""csrun runs: lists and compares the training runs of model directories."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cs_toolkit.files import replace_file
from cs_toolkit.log_lines import escape_controls
from csrun.console import STDOUT, say, write_text
from csrun.errors import CsrunError

PROGRAM = "csrun"


@click.command("runs")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[DIR]...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write a page with the losses, the rates, and the parameters that differ.",
)
def runs(folders: tuple[Path, ...], as_json: bool, html: Path | None) -> int:
    """Lists the training runs in DIR and below it, and compares them; without DIR those of this directory.

    A run is a line of runs.jsonl in a model_dir, with the loss of its last step. The parameters are those of
    params.yaml, of the newest run.
    """
    from csrun.training_runs.records import RUNS, find_differences, find_model_dirs, read_model_dir
    from csrun.training_runs.text import render_runs  # not for csrun --help

    given = folders or (Path(),)
    paths = list(dict.fromkeys(path for folder in given for path in find_model_dirs(folder)))
    for folder in given:
        if not any(path.is_relative_to(folder) for path in paths):
            say(PROGRAM, f"there is no {RUNS} in {escape_controls(str(folder))} or below it")
    dirs = [read_model_dir(path) for path in paths]
    for one in dirs:
        for problem in one.problems:
            say(PROGRAM, escape_controls(problem))
    if not any(one.runs for one in dirs):
        raise CsrunError("no training run found; expected a model_dir of a program that has trained")
    if html is not None:
        from csrun.training_runs.page import render_page

        try:
            replace_file(html, render_page(dirs).encode(errors="backslashreplace").decode())
        except OSError as error:
            raise CsrunError(
                f"cannot write {html}: {error.strerror}; name another file with --html"
            ) from error
    if as_json:
        value = {"directories": [one.to_json() for one in dirs], "differences": find_differences(dirs)}
        write_text(STDOUT, json.dumps(value, indent=2, default=str) + "\n")
    else:
        write_text(STDOUT, render_runs(dirs))
    return 0

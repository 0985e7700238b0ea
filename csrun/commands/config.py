"""csrun config: show and check the site's settings, and print the schema of the site file for editors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from csrun.commands.flags import use_site_config_option
from csrun.console import STDERR, STDOUT, write_text
from csrun.schedulers.registry import choose
from csrun.site import SiteError
from csrun.site.loading import LoadedSite, load_site, site_file_candidates
from csrun.site.values import variables

EXIT_INVALID = 2


@click.group(no_args_is_help=False, options_metavar="[FLAGS]")
def config() -> None:
    """The site's settings: show, check, schema."""


@config.command(options_metavar="[FLAGS]")
@use_site_config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Shows every setting with its origin: FILE:LINE, the environment variable, or the default."""
    loaded = load_site(os.environ)
    if as_json:
        write_text(STDOUT, json.dumps(as_data(loaded, os.environ), indent=2) + "\n")
    else:
        write_text(STDOUT, as_text(loaded, os.environ))


@config.command(options_metavar="[FLAGS]")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> int:
    """Checks FILE, or without FILE the settings in use here: the site file and the environment.

    Prints all errors with FILE:LINE; the exit code is 0 without errors, otherwise 2.
    """
    try:
        loaded = load_site({} if file else os.environ, file)
    except SiteError as error:
        write_text(STDERR, "".join(f"{message}\n" for message in error.errors))
        return EXIT_INVALID
    notes = "".join(f"{note}\n" for note in loaded.notes)
    write_text(STDOUT, f"{notes}{loaded.path or 'the environment'}: no errors\n")
    return 0


@config.command(options_metavar="[FLAGS]")
def schema() -> None:
    """Prints the JSON Schema of the site file."""
    write_text(STDOUT, schema_text())


def schema_text() -> str:
    """Return the JSON Schema, the content of configs/site.schema.json."""
    # Only here: importing pydantic takes longer than everything else that these commands do.
    from csrun.site.file import site_schema

    return json.dumps(site_schema(), indent=2) + "\n"


def as_data(loaded: LoadedSite, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for --json, named by the keys of the site file."""
    return {
        "site_file": str(loaded.path) if loaded.path else None,
        "searched": [str(path) for path in site_file_candidates(environment)],
        "launcher": choose(None, loaded.site, environment).name,
        "settings": {
            key: {"value": loaded.values[key], "origin": loaded.origins[key], "variables": names}
            for key, names in variables().items()
        },
        "notes": loaded.notes,
    }


def as_text(loaded: LoadedSite, environment: Mapping[str, str]) -> str:
    """Return the settings as a table of key, value in the form of the site file, and origin."""
    if loaded.path:
        place = f"site file: {loaded.path}"
    else:
        searched = ", ".join(map(str, site_file_candidates(environment)))
        place = f"site file: none (searched: {searched})"
    rows = []
    for key, origin in loaded.origins.items():
        value = loaded.values[key]
        plain = isinstance(value, str) and value
        # JSON is YAML in flow style.
        rows.append((key, value if plain else json.dumps(value, ensure_ascii=False), origin))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [place, f"jobs run with the launcher: {choose(None, loaded.site, environment).name}", ""]
    lines += [f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for key, value, origin in rows]
    if loaded.notes:
        lines += ["", *loaded.notes]
    return "\n".join(lines) + "\n"

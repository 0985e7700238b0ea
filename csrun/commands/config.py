"""csrun config: show and check the site's settings, and print the schema of the site file for editors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from cs_toolkit.command_group import CommandGroup
from csrun.commands.config_init import init
from csrun.commands.flags import use_site_config_option, working_directory
from csrun.console import STDERR, STDOUT, write_text
from csrun.errors import CsrunError
from csrun.schedulers.registry import choose
from csrun.site import SiteError
from csrun.site.loading import LoadedSite, load_site
from csrun.site.project import FILE_NAME, find_project_file, give_consent, needs_consent, withdraw_consent
from csrun.site.values import variables

EXIT_INVALID = 2


@click.group(cls=CommandGroup, options_metavar="[FLAGS]")
def config() -> None:
    """The site's settings: init, show, check, schema, trust."""


config.add_command(init)


@config.command(options_metavar="[FLAGS]")
@use_site_config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Shows every setting with its origin: FILE:LINE, the environment variable, or the default.

    Below a value are the values of earlier layers that it overrides.
    """
    loaded = load_site(os.environ)
    if as_json:
        write_text(STDOUT, json.dumps(as_data(loaded, os.environ), indent=2) + "\n")
    else:
        write_text(STDOUT, as_text(loaded, os.environ))


@config.command(options_metavar="[FLAGS]")
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> int:
    """Checks FILE, or without FILE the settings in use here: the site files and the environment.

    Prints all errors with FILE:LINE; the exit code is 0 without errors, otherwise 2.
    """
    try:
        loaded = load_site({} if file else os.environ, file)
    except SiteError as error:
        write_text(STDERR, "".join(f"{message}\n" for message in error.errors))
        return EXIT_INVALID
    notes = "".join(f"{note}\n" for note in loaded.notes)
    checked = ", ".join(str(one.path) for one in loaded.files) or "the environment"
    write_text(STDOUT, f"{notes}{file or checked}: no errors\n")
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


@config.command(options_metavar="[FLAGS]")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--revoke", is_flag=True, help="Withdraw an earlier consent.")
def trust(file: Path | None, revoke: bool) -> int:
    """Accepts a project's site file, as it is now: FILE, or the csrun.yaml found from here upward.

    Without it a project's file may set the size of jobs and their place in the queue. It may not set what
    runs (python, container), what is mounted, or which CS system gets the data. A change of the file ends the
    consent.
    """
    path = file or find_project_file(working_directory())
    if path is None:
        raise CsrunError(
            f"no {FILE_NAME} here or above; expected one: give the path of a project's site file"
        )
    path = path.absolute()
    if revoke:
        withdraw_consent(path, os.environ)
        write_text(STDOUT, f"{path}: not accepted any more\n")
        return 0
    from csrun.site.file import read_site_file  # imports pydantic

    content = read_site_file(path)
    if content.errors:
        raise SiteError(list(content.errors))
    give_consent(path, os.environ)
    rows = [(key, _value_text(content.settings[key])) for key in content.settings if needs_consent(key)]
    chosen = "".join(f"  {key}: {value}\n" for key, value in rows)
    write_text(STDOUT, f"{path}: accepted until it changes\n{chosen}")
    return 0


def as_data(loaded: LoadedSite, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for --json, named by the keys of the site file."""
    return {
        "site_file": str(loaded.files[-1].path) if loaded.files else None,
        "searched": [str(one.path) for one in loaded.searched],
        "site_files": [
            {"layer": one.layer, "path": str(one.path), "exists": one in loaded.files}
            for one in loaded.searched
        ],
        "launcher": choose(None, loaded.site, environment).name,
        "settings": {
            key: {
                "value": loaded.values[key],
                "origin": loaded.sources[key].text,
                "layer": loaded.sources[key].layer,
                "overridden": [
                    {"value": each.value, "origin": each.text, "layer": each.layer}
                    for each in loaded.overridden.get(key, ())
                ],
                "locked": loaded.site.locked.get(key),
                "variables": names,
            }
            for key, names in variables().items()
        },
        "notes": loaded.notes,
    }


def as_text(loaded: LoadedSite, environment: Mapping[str, str]) -> str:
    """Return the settings as a table of key, value in the form of the site file, and origin."""
    if loaded.files:
        lines = [f"site file: {one.path} ({one.layer})" for one in loaded.files]
    else:
        searched = ", ".join(str(one.path) for one in loaded.searched)
        lines = [f"site file: none (searched: {searched})"]
    rows = []
    for key, source in loaded.sources.items():
        lock = f", locked by {loaded.site.locked[key]}" if key in loaded.site.locked else ""
        rows.append((key, _value_text(loaded.values[key]), f"{source.text}{lock}"))
        rows += [
            ("", _value_text(each.value), f"overridden: {each.text}")
            for each in loaded.overridden.get(key, ())
        ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines += [f"jobs run with the launcher: {choose(None, loaded.site, environment).name}", ""]
    lines += [f"{key:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for key, value, origin in rows]
    if loaded.notes:
        lines += ["", *loaded.notes]
    return "\n".join(lines) + "\n"


def _value_text(value: Any) -> str:
    # JSON is YAML in flow style.
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)

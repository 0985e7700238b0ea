"""The flag --site-config, which all commands have, and what it stands for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from csrun.site.loading import LoadedSite, load_site
from csrun.site.model import SITE_CONFIG_VARIABLE, Site

Function = TypeVar("Function", bound=Callable[..., Any])

FLAG = "--site-config"


def site_config_option(function: Function) -> Function:
    """Declares the flag on a launcher. Its value is read by `command_site`; the launcher gets none."""
    return _declared(function, _remember)


def use_site_config_option(function: Function) -> Function:
    """Declares the flag on a command that loads the site itself, and lets `load_site` find the file."""
    return _declared(function, _use)


def command_site(build: Callable[[Site], click.Command], arguments: Sequence[str]) -> LoadedSite:
    """The site that a command works with; the command line itself depends on it, its help for instance.

    Processes that the command starts find the same file: it is put into this process's environment.

    Args:
        build: makes the command for a site.
        arguments: the command line without the program's name.

    Raises:
        SiteError: settings that cannot be used.
    """
    file = _flag_value(build, arguments)
    if file is not None:
        _use_file(file)
    return load_site(os.environ)


def _flag_value(build: Callable[[Site], click.Command], arguments: Sequence[str]) -> Path | None:
    """What --site-config says: as click parses it, which alone knows where the command starts."""
    if not any(word.replace("_", "-").startswith(FLAG) for word in arguments):
        return None
    command = build(Site())
    context = command.make_context(command.name, list(arguments), resilient_parsing=True)
    value = context.meta.get(FLAG)
    return value if isinstance(value, Path) else None


def _declared(
    function: Function, callback: Callable[[click.Context, click.Parameter, Path | None], None]
) -> Function:
    option = click.option(
        FLAG,
        type=click.Path(path_type=Path),
        metavar="FILE",
        expose_value=False,
        help=f"The site file. Default: {SITE_CONFIG_VARIABLE}, else the one that 'csrun config show' names.",
        callback=callback,
    )
    return option(function)


def _remember(context: click.Context, param: click.Parameter, value: Path | None) -> None:
    context.meta[FLAG] = value


def _use(context: click.Context, param: click.Parameter, value: Path | None) -> None:
    if value is not None and not context.resilient_parsing:
        _use_file(value)


def _use_file(file: Path) -> None:
    os.environ[SITE_CONFIG_VARIABLE] = str(file.absolute())

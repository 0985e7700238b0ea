"""csrun: commands for jobs, the site and examples; csrun_cpu and csrun_wse launch programs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from cs_toolkit import __version__
from cs_toolkit.command_group import CommandGroup
from csrun.commands.flags import context_settings, run_main, use_site_config_option

PROGRAM = "csrun"

# Module of every subcommand, with a click command of that name; only the one that runs is imported.
COMMANDS: Mapping[str, str] = {
    "cancel": "csrun.commands.jobs",
    "completion": "csrun.commands.completion",
    "config": "csrun.commands.config",
    "doctor": "csrun.commands.doctor",
    "init": "csrun.commands.init",
    "logs": "csrun.commands.jobs",
    "pip": "csrun.commands.pip",
    "runs": "csrun.commands.runs",
    "status": "csrun.commands.jobs",
    "trace": "csrun.commands.trace",
}

_HELP = """Manages jobs and the site's settings, and copies example programs.

Jobs are started by csrun_cpu and csrun_wse.

`csrun COMMAND --help` explains a command.
"""


class _LazyGroup(CommandGroup):
    """A group that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: Any = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


def main() -> NoReturn:
    """Run the command as a console script."""
    run_main(PROGRAM, build_command)


def build_command() -> click.Command:
    """Build the command line."""

    @click.group(
        PROGRAM,
        cls=_LazyGroup,
        context_settings=context_settings(),
        help=_HELP,
        options_metavar="[FLAGS]",
    )
    @use_site_config_option
    @click.version_option(__version__, prog_name=PROGRAM)
    def csrun() -> None:
        pass

    return csrun

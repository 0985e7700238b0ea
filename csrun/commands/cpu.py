"""csrun_cpu: runs one program in the toolkit's environment, without a CS system."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import join, quote
from typing import NoReturn

import click

from csrun.commandline import find_command, start_refused
from csrun.commands.flags import (
    context_settings,
    directories,
    flag_name,
    require_command,
    run_main,
    true_or_false,
    working_directory,
)
from csrun.console import STDERR, STDOUT, flush_standard_streams, say, write_text
from csrun.environment import EnvironmentChange, program_environment, this_toolkit, unset_notice
from csrun.errors import CsrunError
from csrun.site_defaults import SiteDefaults, site_defaults
from csrun.version import __version__

PROGRAM = "csrun_cpu"

_HELP = """Runs COMMAND in the toolkit's environment on CPUs: to validate and compile a program, to train
without a CS system, or for a shell. `python` is the toolkit's interpreter.

The first word that is no flag starts the command; everything behind it is passed on unchanged. The command
takes the place of csrun_cpu: it keeps the terminal, and its exit code is the exit code.

Flags may be written with _ or -, as --flag VALUE or --flag=VALUE.
"""

_EPILOG = """\b
Examples:
  csrun_cpu python run.py --mode=validate_only
  csrun_cpu python run.py --mode=compile_only --cs_ip=192.0.2.7
  csrun_cpu --mount-dirs=/data/ml,/lab/ml python run.py --mode=train --steps=100
  csrun_cpu bash
"""


def main() -> NoReturn:
    """Entry point."""
    run_main(PROGRAM, lambda: build_command(site_defaults(os.environ)))


def build_command(site: SiteDefaults) -> click.Command:
    """The command line; `site` answers the queries of scripts."""

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=_EPILOG, options_metavar="[FLAGS]"
    )
    @click.option(
        "--alloc-node",
        callback=true_or_false,
        metavar="True|False",
        help="Reserve a whole node of the cluster. Without a cluster the program runs on this machine.",
    )
    @click.option(
        "--mount-dirs",
        callback=directories,
        multiple=True,
        metavar="DIR,DIR",
        help="Directories that the program needs to see, separated by commas.",
    )
    @click.option("--logging", callback=true_or_false, default="True", hidden=True)
    @click.option("--exclude-gres", callback=true_or_false, default="True", hidden=True)
    @click.option("--dry-run", is_flag=True, help="Show the environment and the command; start nothing.")
    @click.version_option(__version__, prog_name=PROGRAM)
    @click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...")
    @click.pass_context
    def csrun_cpu(
        context: click.Context,
        alloc_node: bool | None,
        mount_dirs: tuple[Path, ...],
        logging: bool,
        exclude_gres: bool,
        dry_run: bool,
        command: tuple[str, ...],
    ) -> int:
        words = require_command(command, context)
        environment = dict(os.environ)
        change = program_environment(environment, this_toolkit())
        if logging:
            _say_notices(environment, change, alloc_node, bool(mount_dirs))
        if dry_run:
            write_text(STDOUT, describe(words, change, working_directory()))
            return 0
        if logging:
            write_text(STDERR, f"Running: {join(words)}\n")
        replace_process(words, change.apply(environment))

    csrun_cpu.params.extend(_queries(site))
    return csrun_cpu


def describe(command: tuple[str, ...], change: EnvironmentChange, cwd: Path) -> str:
    """The text of --dry-run: exactly what would run; pure."""
    return "\n".join(
        [
            "one program on this machine, in place of csrun_cpu; nothing is started",
            f"working directory: {quote(str(cwd))}",
            f"unset: {' '.join(change.unset) or '(nothing)'}",
            "set:",
            *(f"  {name}={quote(value)}" for name, value in change.values.items()),
            f"command: {join(command)}",
            "",
        ]
    )


def replace_process(command: tuple[str, ...], environment: Mapping[str, str]) -> NoReturn:
    """Makes this process the user's program.

    Raises:
        CsrunError: there is no such program, or it cannot be executed.
    """
    file = find_command(command[0], environment["PATH"])
    flush_standard_streams()
    # Python ignores these two, and an ignored signal stays ignored across exec: `csrun_cpu yes | head` would
    # complain about a broken pipe instead of ending.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execve(file, command, environment)
    except OSError as error:
        raise start_refused(command[0], error) from error


def _say_notices(
    environment: Mapping[str, str], change: EnvironmentChange, alloc_node: bool | None, mounts: bool
) -> None:
    hidden = unset_notice(environment, change)
    if hidden:
        say(PROGRAM, hidden)
    if alloc_node:
        say(PROGRAM, "--alloc-node=True: there is no cluster here, the program runs on this machine")
    if mounts:
        say(PROGRAM, "--mount-dirs has no effect here: without a container the program sees all directories")


def _queries(site: SiteDefaults) -> list[click.Parameter]:
    """Hidden flags by which other scripts ask for the site's defaults; the first one given is answered."""
    cpus = site.cpus_per_task or max(1, len(os.sched_getaffinity(0)) // site.tasks_per_node)
    answers = {
        "--def-nodes": str(site.nodes),
        "--def-tasks": str(site.tasks_per_node),
        "--def-cpus": str(cpus),
        "--singularity": site.singularity_image,
        "--def-mount-dirs": site.mount_dirs,
        "--def-gres": site.gres_resource,
        "--def-gres-node": site.gres_node,
    }
    return [
        click.Option(
            [flag], is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_answer(text)
        )
        for flag, text in answers.items()
    ]


def _answer(text: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(context: click.Context, param: click.Parameter, asked: bool) -> None:
        if not asked or context.resilient_parsing:
            return
        if not text and flag_name(param) == "--singularity":
            raise CsrunError(
                "SINGULARITY_IMAGE is not set; expected the path of the site's container image: set the "
                "environment variable (the launcher 'local' needs none)"
            )
        write_text(STDOUT, f"{text}\n")
        context.exit()

    return callback

"""csrun_cpu: runs one program in the toolkit's environment, without a CS system."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import join, quote
from typing import NoReturn

import click

from cs_toolkit.version import __version__
from csrun.commandline import find_command, start_refused
from csrun.commands.flags import (
    context_settings,
    flag_name,
    launcher_name,
    mount_dirs_option,
    no_mounts_notice,
    require_command,
    run_main,
    slurm_options,
    true_or_false,
    working_directory,
)
from csrun.commands.site_flag import command_site, site_config_option
from csrun.console import STDERR, STDOUT, flush_standard_streams, say, write_text
from csrun.container_images import containerise, require_container
from csrun.environment import EnvironmentChange, program_environment, this_toolkit, unset_notice
from csrun.errors import CsrunError
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.site.model import Launcher, Site, choose_launcher

PROGRAM = "csrun_cpu"
HERE = "on this machine"

_HELP = """Runs COMMAND in the toolkit's environment on CPUs: to validate and compile a program, to train
without a CS system, or for a shell. `python` is the toolkit's interpreter. With the launcher slurm it runs on
a node of its own, unless csrun_cpu is called inside a job or --alloc-node=False is given.

The first word that is no flag starts the command; everything behind it is passed on unchanged. The command
takes the place of csrun_cpu: it keeps the terminal, gets its signals, and its exit code is the exit code.

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
    run_main(PROGRAM, lambda: build_command(command_site(build_command, sys.argv[1:]).site))


def build_command(site: Site) -> click.Command:
    """The command line; `site` answers the queries of scripts."""

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=_EPILOG, options_metavar="[FLAGS]"
    )
    @click.option(
        "--alloc-node",
        callback=true_or_false,
        metavar="True|False",
        help="Reserve a whole node of the cluster for the program, or run it on this machine. Default: "
        "reserve one where the launcher is slurm, but not inside a job of Slurm's.",
    )
    @click.option(
        "--launcher",
        metavar="NAME",
        callback=launcher_name,
        help="local: this machine; slurm: a node of a cluster. Default: the site's.",
    )
    @slurm_options
    @mount_dirs_option
    @click.option("--logging", callback=true_or_false, default="True", hidden=True)
    @click.option("--exclude-gres", callback=true_or_false, default="True", hidden=True)
    @site_config_option
    @click.option("--dry-run", is_flag=True, help="Show the environment and the command; start nothing.")
    @click.version_option(__version__, prog_name=PROGRAM)
    @click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...")
    @click.pass_context
    def csrun_cpu(
        context: click.Context,
        alloc_node: bool | None,
        mount_dirs: tuple[Path, ...],
        launcher: Launcher | None,
        time_limit: str,
        partition: str,
        account: str,
        qos: str,
        dependency: str,
        logging: bool,
        exclude_gres: bool,
        dry_run: bool,
        command: tuple[str, ...],
    ) -> int:
        words = require_command(command, context)
        environment = dict(os.environ)
        cwd = working_directory()
        change = program_environment(environment, this_toolkit(), site)
        executed = containerise(words, site, cwd, [path.absolute() for path in mount_dirs])
        on_slurm = choose_launcher(launcher, site, environment) == "slurm"
        if alloc_node is None:
            alloc_node = on_slurm and not environment.get("SLURM_JOB_ID")
        own_node = alloc_node and on_slurm
        if logging:
            in_vain = alloc_node and not on_slurm
            _say_notices(unset_notice(environment, change), in_vain, no_mounts_notice(site, mount_dirs))
        if own_node:
            options = SlurmOptions.of_site(
                site,
                time_limit=time_limit,
                partition=partition,
                account=account,
                qos=qos,
                dependency=dependency,
            )
            from csrun.schedulers.slurm.attended import on_terminal, run_attended, step_name

            name, terminal = step_name(PROGRAM), on_terminal()
            executed = _on_own_node(
                site,
                executed,
                change.apply(environment),
                options,
                exclude_gres,
                dry_run,
                name=name,
                terminal=terminal,
            )
        if dry_run:
            write_text(STDOUT, describe(executed, change, cwd, "on a node of its own" if own_node else HERE))
            return 0
        if not own_node:
            require_container(site, environment.get("PATH", ""))
        if logging:
            write_text(STDERR, f"Running: {join(words)}\n")
        if own_node:
            cleared = _cleared(change.apply(environment))
            return run_attended(executed, cleared, name, terminal=terminal, limit_s=None)
        replace_process(executed, change.apply(environment))

    csrun_cpu.params.extend(_queries(site))
    return csrun_cpu


def _on_own_node(
    site: Site,
    executed: tuple[str, ...],
    environment: Mapping[str, str],
    options: SlurmOptions,
    exclude_gres: bool,
    dry_run: bool,
    *,
    name: str,
    terminal: bool,
) -> tuple[str, ...]:
    """The words that run a command on a node of its own.

    Raises:
        CsrunError: there is no such command, no such partition, or no cluster.
    """
    # Only here: the start-up time of the other way.
    from csrun.schedulers.slurm.arguments import srun_cpu
    from csrun.schedulers.slurm.client import SlurmClient
    from csrun.schedulers.slurm.errors import SlurmError
    from csrun.schedulers.slurm.facts import look_around, whole_node_cpus

    if site.container == "none" and not dry_run:  # a container's runtime only the nodes need to have
        find_command(executed[0], environment["PATH"])  # a typing error is not worth a wait in the queue
    client, cpus = SlurmClient(environment), None
    try:
        cpus = whole_node_cpus(client, options, look_around(client, options).partition)
    except SlurmError:
        if not dry_run:
            raise
    return srun_cpu(name, options, executed, exclude_gres=exclude_gres, terminal=terminal, cpus=cpus)


def _cleared(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the variables of an enclosing job, which srun would take for options."""
    from csrun.schedulers.slurm.client import submission_environment

    return submission_environment(environment)


def describe(command: tuple[str, ...], change: EnvironmentChange, cwd: Path, where: str) -> str:
    """The text of --dry-run: exactly what would run; pure."""
    return "\n".join(
        [
            f"one program {where}, in place of csrun_cpu; nothing is started",
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


def _say_notices(hidden: str | None, alloc_node: bool | None, mounts: str | None) -> None:
    no_cluster = "--alloc-node=True: there is no cluster here, the program runs on this machine"
    for notice in (hidden, no_cluster if alloc_node else None, mounts):
        if notice:
            say(PROGRAM, notice)


def _queries(site: Site) -> list[click.Parameter]:
    """Hidden flags by which other scripts ask for the site's defaults; the first one given is answered."""
    cpus = site.def_cpus_per_task or max(1, len(os.sched_getaffinity(0)) // site.def_tasks_per_node)
    answers = {
        "--def-nodes": str(site.def_nodes),
        "--def-tasks": str(site.def_tasks_per_node),
        "--def-cpus": str(cpus),
        "--singularity": site.container_image,
        "--def-mount-dirs": ",".join(site.mount_dirs),
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
                "environment variable or container_image in the site file (the container 'none' needs none)"
            )
        write_text(STDOUT, f"{text}\n")
        context.exit()

    return callback

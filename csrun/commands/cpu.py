"""csrun_cpu: run one program in the toolkit's environment, without a CS system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import join, quote
from typing import NoReturn

import click

from cs_toolkit import __version__
from csrun.commands.completion import files
from csrun.commands.flags import (
    command_site,
    context_settings,
    flag_name,
    mount_dirs_option,
    no_mounts_notice,
    require_command,
    require_unlocked_command,
    run_main,
    site_config_option,
    true_or_false,
    working_directory,
)
from csrun.commands.scheduler_flags import Where, scheduler_flags
from csrun.console import STDERR, STDOUT, SignOfLife, say, write_text
from csrun.errors import CsrunError
from csrun.schedulers.base import ProgramPlan, ProgramRequest
from csrun.schedulers.registry import LOCAL, scheduler
from csrun.site import Site
from csrun.site.values import scheduler_keys
from csrun.tasks.command import containerize
from csrun.tasks.environment import EnvironmentChange, program_environment, this_toolkit, unset_notice

PROGRAM = "csrun_cpu"

_HELP = """Runs COMMAND in the toolkit's environment on CPUs: to validate and compile a program, to train
without a CS system, or for a shell. `python` is the toolkit's interpreter. On a cluster COMMAND runs on a
separate node, unless csrun_cpu is called inside a job or with --alloc-node=False.

The first argument that is not a flag starts the command; everything after it is passed on unchanged. The
command replaces csrun_cpu: it has the terminal, gets the signals, and its exit code is the exit code.

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
    """Run the command as a console script."""
    run_main(PROGRAM, lambda: build_command(command_site(build_command, sys.argv[1:]).site))


def build_command(site: Site) -> click.Command:
    """Build the command line; `site` answers the queries of scripts."""

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=_EPILOG, options_metavar="[FLAGS]"
    )
    @click.option(
        "--alloc-node",
        callback=true_or_false,
        metavar="True|False",
        help="Reserve a whole node of the cluster for the program, or run it on this machine. Default: "
        "reserve one if the launcher has nodes and this is not a job of it.",
    )
    @scheduler_flags("Where the program runs.")
    @mount_dirs_option
    @click.option("--logging", callback=true_or_false, default="True", hidden=True)
    @click.option("--exclude-gres", callback=true_or_false, default="True", hidden=True)
    @site_config_option
    @click.option("--dry-run", is_flag=True, help="Show the environment and the command; start nothing.")
    @click.version_option(__version__, prog_name=PROGRAM)
    @click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...", shell_complete=files
    )
    @click.pass_context
    def csrun_cpu(
        context: click.Context,
        alloc_node: bool | None,
        mount_dirs: tuple[Path, ...],
        where: Where,
        logging: bool,
        exclude_gres: bool,
        dry_run: bool,
        command: tuple[str, ...],
    ) -> int:
        arguments = require_command(command, context)
        require_unlocked_command(site, arguments, mount_dirs)
        environment = dict(os.environ)
        cwd = working_directory()
        change = program_environment(environment, this_toolkit(), site)
        executed = containerize(arguments, site, cwd, [path.absolute() for path in mount_dirs])
        chosen = where.scheduler(site, environment)
        if alloc_node is None:
            alloc_node = chosen.has_nodes and chosen.job_here(environment) is None
        if logging:
            no_nodes = alloc_node and not chosen.has_nodes
            no_cluster = "--alloc-node=True: there is no cluster here, the program runs on this machine"
            notices = (
                unset_notice(environment, change),
                no_cluster if no_nodes else None,
                no_mounts_notice(site, mount_dirs),
            )
            for notice in filter(None, notices):
                say(PROGRAM, notice)
        runner = chosen if alloc_node and chosen.has_nodes else scheduler(LOCAL)
        foreign = where.foreign(runner)
        if foreign is not None:
            say(PROGRAM, foreign)
        request = ProgramRequest(PROGRAM, executed, change.apply(environment), avoid_system=exclude_gres)
        with SignOfLife(PROGRAM) as sign:
            if runner.has_nodes:
                sign.doing(f"asking {runner.title} for its nodes")
            plan = runner.plan_program(request, where.asked(site, environment, dry_run=dry_run))
        if dry_run:
            write_text(STDOUT, describe(plan, change, cwd))
            return 0
        from csrun.system_status import check_system, cs_ip_argument  # only here: --help starts no process

        # On a node the program may find another status of the system than this process does.
        if cs_ip_argument(arguments) and not runner.has_nodes:
            with SignOfLife(PROGRAM) as sign:
                check_system(
                    arguments,
                    "",
                    this_toolkit(),
                    wait=False,
                    certain=True,
                    certs=site.certs,
                    doing=sign.doing,
                )
        if logging:
            write_text(STDERR, f"Running: {join(arguments)}\n")
        return runner.run_program(plan)

    csrun_cpu.params.extend(_queries(site))
    return csrun_cpu


def describe(plan: ProgramPlan, change: EnvironmentChange, cwd: Path) -> str:
    """Return the text of --dry-run: exactly what would run."""
    return "\n".join(
        [
            f"one program {plan.where}, instead of csrun_cpu; nothing is started",
            f"working directory: {quote(str(cwd))}",
            f"unset: {' '.join(change.unset) or '(nothing)'}",
            "set:",
            *(f"  {name}={quote(value)}" for name, value in change.values.items()),
            f"command: {join(plan.words)}",
            "",
        ]
    )


def _queries(site: Site) -> list[click.Parameter]:
    """Return hidden flags by which scripts query the site's defaults; the first one given is answered."""
    cpus = site.def_cpus_per_task or max(1, len(os.sched_getaffinity(0)) // site.def_tasks_per_node)
    answers = {
        "--def-nodes": str(site.def_nodes),
        "--def-tasks": str(site.def_tasks_per_node),
        "--def-cpus": str(cpus),
        "--singularity": site.container_image,
        "--def-mount-dirs": ",".join(site.mount_dirs),
    }
    for each in scheduler_keys().values():
        if each.setting.query:
            answers[each.setting.query] = str(site.sections.get(each.scheduler, {}).get(each.name, ""))
    return [
        click.Option(
            [flag], is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_answer_with(text)
        )
        for flag, text in answers.items()
    ]


def _answer_with(text: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(context: click.Context, param: click.Parameter, asked: bool) -> None:
        if not asked or context.resilient_parsing:
            return
        if not text and flag_name(param) == "--singularity":
            raise CsrunError(
                "SINGULARITY_IMAGE is not set; expected the path of the site's container image: set "
                "it or container_image in the site file (without a container it is not needed)"
            )
        write_text(STDOUT, f"{text}\n")
        context.exit()

    return callback

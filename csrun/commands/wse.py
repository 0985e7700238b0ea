"""csrun_wse: runs a program as one chief and many workers that train on a CS system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click

from csrun.commands.flags import (
    context_settings,
    count,
    directories,
    require_command,
    run_main,
    seconds,
    working_directory,
)
from csrun.console import STDOUT, say, write_text
from csrun.environment import this_toolkit
from csrun.errors import UsageError
from csrun.jobs import new_job_id
from csrun.layout import resolve_layout
from csrun.schedulers.base import LaunchRequest, Scheduler, Surroundings
from csrun.site_defaults import SiteDefaults, site_defaults
from csrun.version import __version__

PROGRAM = "csrun_wse"
DEFAULT_GRACE_S = 10
DEFAULT_WIND_DOWN_S = 60
LAUNCHERS = ("local",)

_HELP = """Runs COMMAND as the tasks of one job on a CS system: rank 0 is the chief, all others are workers
that stream input data. All tasks run the same command; programs find their part in TF_CONFIG and CSRUN_*.

The first word that is no flag starts the command; everything behind it is passed on unchanged. With S
single-task nodes of N nodes the job has S + (N - S) * T tasks.

The tasks' output appears line by line with the task's name in front, and without it in one log file per task.
Tasks have no input. The first task that fails ends the job, and its exit code becomes that of csrun_wse.

Flags may be written with _ or -, as --flag VALUE or --flag=VALUE.
"""

_EPILOG = """\b
Examples:
  csrun_wse python run.py --mode=train --cs_ip=127.0.0.1:9000
  csrun_wse --total-nodes=3 --tasks-per-node=5 --cpus-per-task=16 python run.py --mode=train --cs_ip=192.0.2.7
  csrun_wse --total-nodes=5 --single-task-nodes=2 --tasks-per-node=4 python run.py    (14 tasks)
  csrun_wse --dry-run --tasks-per-node=3 python run.py --mode=train    (shows what would run)

\b
Defaults of this site: --total-nodes={nodes} --tasks-per-node={tasks} --cpus-per-task={cpus}
  (environment variables DEF_NODES, DEF_TASKS_PER_NODE, DEF_CPUS_PER_TASK)
"""


def main() -> NoReturn:
    """Entry point."""
    run_main(PROGRAM, lambda: build_command(site_defaults(os.environ)))


def build_command(site: SiteDefaults) -> click.Command:
    """The command line; `site` fills in what the user leaves open."""
    epilog = _EPILOG.format(
        nodes=site.nodes, tasks=site.tasks_per_node, cpus=site.cpus_per_task or "(open: tasks share the CPUs)"
    )

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=epilog, options_metavar="[FLAGS]"
    )
    @click.option("--total-nodes", "--nodes", callback=count(), metavar="N", help="Nodes of the job.")
    @click.option(
        "--tasks-per-node",
        callback=count(),
        metavar="T",
        help="Tasks on each node. Default: the site's; with --cpus-per-task alone, as many as fit on a node.",
    )
    @click.option(
        "--cpus-per-task",
        callback=count(),
        metavar="C",
        help="CPUs of each task. Tasks are pinned to them where the machine has enough for all.",
    )
    @click.option(
        "--single-task-nodes",
        callback=count(0),
        metavar="S",
        default="0",
        show_default=True,
        help="The first S nodes run one task each; S < N.",
    )
    @click.option(
        "--cyclic", is_flag=True, help="Workers go round robin over the nodes. Default: node by node."
    )
    @click.option(
        "--mount-dirs",
        callback=directories,
        multiple=True,
        metavar="DIR,DIR",
        help="Directories that the program needs to see, separated by commas.",
    )
    @click.option(
        "--launcher",
        metavar="NAME",
        default=LAUNCHERS[0],
        show_default=True,
        help="Where the tasks run. local: processes of this machine.",
    )
    @click.option(
        "--log-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Where the logs go. Default: ./csrun_logs/<job id>",
    )
    @click.option(
        "--grace-period",
        callback=seconds,
        metavar="SECONDS",
        default=str(DEFAULT_GRACE_S),
        show_default=True,
        help="From asking the tasks to end until they are killed.",
    )
    @click.option(
        "--wind-down",
        callback=seconds,
        metavar="SECONDS",
        default=str(DEFAULT_WIND_DOWN_S),
        show_default=True,
        help="How long workers may go on after the chief has finished.",
    )
    @click.option("--wait", is_flag=True, help="Queue for a CS system that is busy instead of failing.")
    @click.option(
        "--dry-run", is_flag=True, help="Show the tasks, their environment and command; start nothing."
    )
    @click.version_option(__version__, prog_name=PROGRAM)
    @click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...")
    @click.pass_context
    def csrun_wse(
        context: click.Context,
        total_nodes: int | None,
        tasks_per_node: int | None,
        cpus_per_task: int | None,
        single_task_nodes: int,
        cyclic: bool,
        mount_dirs: tuple[Path, ...],
        launcher: str,
        log_dir: Path | None,
        grace_period: float,
        wind_down: float,
        wait: bool,
        dry_run: bool,
        command: tuple[str, ...],
    ) -> int:
        scheduler = _scheduler(launcher)
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        layout = resolve_layout(
            site,
            len(cpus),
            total_nodes=total_nodes,
            tasks_per_node=tasks_per_node,
            cpus_per_task=cpus_per_task,
            single_task_nodes=single_task_nodes,
            cyclic=cyclic,
        )
        words = require_command(command, context)
        request = LaunchRequest(words, layout, log_dir, mount_dirs, grace_period, wind_down, wait)
        job_id = new_job_id(scheduler.name)
        surroundings = Surroundings(job_id, working_directory(), dict(os.environ), this_toolkit(), cpus)
        return _launch(scheduler, request, surroundings, dry_run)

    return csrun_wse


def _scheduler(name: str) -> Scheduler:
    if name not in LAUNCHERS:
        raise UsageError(
            f"--launcher: got {name!r}, expected one of: {', '.join(LAUNCHERS)}; write "
            f"--launcher={LAUNCHERS[0]} to run the tasks as processes of this machine"
        )
    from csrun.schedulers.local import LocalScheduler

    return LocalScheduler()


def _launch(scheduler: Scheduler, request: LaunchRequest, surroundings: Surroundings, dry_run: bool) -> int:
    plan = scheduler.plan(request, surroundings)
    for notice in plan.notices:
        say(PROGRAM, notice)
    if dry_run:
        write_text(STDOUT, scheduler.describe(plan))
        return 0
    return scheduler.run(plan, surroundings.environment)

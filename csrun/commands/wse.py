"""csrun_wse: runs a program as one chief and many workers that train on a CS system."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import click

from cs_toolkit.version import __version__
from csrun.commands.flags import (
    batch_options,
    context_settings,
    count,
    launcher_name,
    mount_dirs_option,
    refuse_without_sbatch,
    require_batch_job,
    require_command,
    run_main,
    sbatch_launcher,
    seconds,
    slurm_options,
    working_directory,
)
from csrun.commands.site_flag import command_site, site_config_option
from csrun.console import STDOUT, say, write_text
from csrun.container_images import containerise, require_container
from csrun.environment import this_toolkit
from csrun.job_registry import read_record
from csrun.jobs import known_job, new_job_id
from csrun.layout import JobLayout, resolve_layout
from csrun.recommendation import Recommendation, read_recommendation
from csrun.schedulers.base import LaunchContext, LaunchRequest, Scheduler
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.site.model import Launcher, Site, choose_launcher

PROGRAM = "csrun_wse"
DEFAULT_GRACE_S = 10
DEFAULT_WIND_DOWN_S = 60

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
  csrun_wse --use-sbatch --requeue --time=4:00:00 python run.py --mode=train --cs_ip=192.0.2.7

\b
Defaults of this site: --total-nodes={nodes} --tasks-per-node={tasks} --cpus-per-task={cpus}
  ('csrun config show' tells where they come from)
"""


def main() -> NoReturn:
    """Entry point."""
    run_main(PROGRAM, lambda: build_command(command_site(build_command, sys.argv[1:]).site))


def build_command(site: Site) -> click.Command:
    """The command line; `site` fills in what the user leaves open."""
    epilog = _EPILOG.format(
        nodes=site.def_nodes,
        tasks=site.def_tasks_per_node,
        cpus=site.def_cpus_per_task or "(open: tasks share the CPUs)",
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
    @mount_dirs_option
    @click.option(
        "--launcher",
        metavar="NAME",
        callback=launcher_name,
        help="Where the tasks run. local: processes of this machine; slurm: nodes of a cluster, those of the "
        "allocation that it is called in, else nodes of its own. Default: the site's.",
    )
    @slurm_options
    @batch_options
    @click.option(
        "--recommendation",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take nodes, tasks and CPUs from what 'cs_input_analyzer --json FILE' has written.",
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
    @site_config_option
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
        launcher: Launcher | None,
        time_limit: str,
        partition: str,
        account: str,
        qos: str,
        dependency: str,
        use_sbatch: bool,
        follow: bool,
        requeue: bool,
        warn_before: float | None,
        job_id: str | None,
        recommendation: Path | None,
        log_dir: Path | None,
        grace_period: float,
        wind_down: float,
        wait: bool,
        dry_run: bool,
        command: tuple[str, ...],
    ) -> int:
        environment = dict(os.environ)
        wanted = Wanted(total_nodes, tasks_per_node, cpus_per_task, single_task_nodes, cyclic)
        if recommendation is not None:
            wanted = wanted.completed_by(read_recommendation(recommendation))
        scheduler: Scheduler[Any]
        if use_sbatch:
            launcher = sbatch_launcher(launcher)
        chosen = choose_launcher(launcher, site, environment)
        options = None
        if chosen == "slurm":
            options = SlurmOptions.of_site(
                site,
                time_limit=time_limit,
                partition=partition,
                account=account,
                qos=qos,
                dependency=dependency,
            )
            scheduler, layout = _slurm(site, options, wanted, environment, dry_run, use_sbatch)
        else:
            scheduler, layout = _local(site, wanted)
            if not dry_run:
                require_container(site, environment.get("PATH", ""))
        words = require_command(command, context)
        job_id, cwd = job_id or new_job_id(scheduler.name), working_directory()
        log_dir = log_dir or Path("csrun_logs", job_id)
        directories = [*(path.absolute() for path in mount_dirs), cwd / log_dir]
        executed = containerise(words, site, cwd, directories)
        request = LaunchRequest(
            words, executed, layout, log_dir, mount_dirs, grace_period, wind_down, wait, requeue
        )
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        launch_context = LaunchContext(job_id, cwd, environment, this_toolkit(), site, cpus)
        if use_sbatch and options is not None:
            from csrun.schedulers.slurm.batch import warning_time

            batch = BatchJob(options, follow, warning_time(warn_before, options.time_limit))
            return _submit(scheduler, batch, request, launch_context, dry_run)
        refuse_without_sbatch({"--no-follow": not follow, "--warn-before": warn_before is not None})
        if requeue:
            require_batch_job(environment)
        return _launch(scheduler, request, launch_context, dry_run)

    return csrun_wse


@dataclass(frozen=True, slots=True)
class Wanted:
    """The layout as the user has given it; None where it is left open."""

    total_nodes: int | None
    tasks_per_node: int | None
    cpus_per_task: int | None
    single_task_nodes: int
    cyclic: bool

    def completed_by(self, recommendation: Recommendation) -> Wanted:
        """With what is recommended where the user has said nothing."""
        return replace(
            self,
            total_nodes=self.total_nodes or recommendation.nodes,
            tasks_per_node=self.tasks_per_node or recommendation.tasks_per_node,
            cpus_per_task=self.cpus_per_task or recommendation.cpus_per_task,
        )

    def layout(self, site: Site, node_cpus: int) -> JobLayout:
        """What is left open filled in for nodes with so many CPUs."""
        return resolve_layout(
            site,
            node_cpus,
            total_nodes=self.total_nodes,
            tasks_per_node=self.tasks_per_node,
            cpus_per_task=self.cpus_per_task,
            single_task_nodes=self.single_task_nodes,
            cyclic=self.cyclic,
        )


def _local(site: Site, wanted: Wanted) -> tuple[Scheduler[Any], JobLayout]:
    from csrun.schedulers.local import LocalScheduler

    return LocalScheduler(), wanted.layout(site, len(os.sched_getaffinity(0)))


def _slurm(
    site: Site,
    options: SlurmOptions,
    wanted: Wanted,
    environment: Mapping[str, str],
    dry_run: bool,
    use_sbatch: bool,
) -> tuple[Scheduler[Any], JobLayout]:
    # Only here, so that --help and the other launcher do not pay for it.
    from csrun.schedulers.slurm.choose import slurm_scheduler
    from csrun.schedulers.slurm.client import submission_environment

    if use_sbatch:  # the allocation in which a batch job is submitted is not its own
        environment = submission_environment(environment)
    scheduler, defaults, node_cpus, notices = slurm_scheduler(
        site, options, environment, wanted.total_nodes, must_answer=not dry_run
    )
    for notice in notices:
        say(PROGRAM, notice)
    return scheduler, wanted.layout(defaults, node_cpus)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """How a batch job is submitted; `follow`: stay until it has ended."""

    options: SlurmOptions
    follow: bool
    warn_s: int


def _submit(
    scheduler: Scheduler[Any],
    batch: BatchJob,
    request: LaunchRequest,
    launch_context: LaunchContext,
    dry_run: bool,
) -> int:
    from csrun.schedulers.slurm.batch import batch_script, follow, submit
    from csrun.schedulers.slurm.script import render

    plan = scheduler.plan(request, launch_context)  # refuses what can never run
    for notice in plan.notices:
        say(PROGRAM, notice)
    script = batch_script(
        request, launch_context, batch.options, requeue=request.requeue, warn_s=batch.warn_s
    )
    if dry_run:
        write_text(STDOUT, render(script))
        return 0
    job = submit(script, known_job(plan), launch_context.environment)
    return follow(job) if batch.follow else 0


def _launch(
    scheduler: Scheduler[Any], request: LaunchRequest, launch_context: LaunchContext, dry_run: bool
) -> int:
    plan = scheduler.plan(request, launch_context)
    for notice in plan.notices:
        say(PROGRAM, notice)
    if dry_run:
        write_text(STDOUT, scheduler.describe(plan))
        return 0
    exit_code = scheduler.run(plan, launch_context.environment)
    if request.requeue:
        from csrun.schedulers.slurm.batch import goes_back_into_queue, put_back

        record = read_record(known_job(plan))
        if goes_back_into_queue(exit_code, record):
            put_back(launch_context.environment["SLURM_JOB_ID"], launch_context.environment, record)
    return exit_code

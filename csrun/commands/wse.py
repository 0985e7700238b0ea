"""csrun_wse: runs a program as one chief and many workers that train on a CS system."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import click

from cs_toolkit.version import __version__
from csrun.commands.completion import files
from csrun.commands.flags import (
    EXIT_CTRL_C,
    command_site,
    context_settings,
    count,
    mount_dirs_option,
    require_command,
    run_main,
    seconds,
    site_config_option,
    working_directory,
)
from csrun.commands.scheduler_flags import Where, scheduler_flags
from csrun.console import STDOUT, say, write_text
from csrun.errors import LogDirError
from csrun.jobs.layout import JobLayout, Recommendation, read_recommendation, resolve_layout
from csrun.jobs.record import known_job, new_job_id, prepare_log_dir
from csrun.jobs.registry import KnownJob, register
from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest, Scheduler
from csrun.site.model import Site
from csrun.tasks.command import containerize
from csrun.tasks.environment import SYSTEM_VARIABLE, this_toolkit

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
    @scheduler_flags(
        "Where the tasks run; inside of a job of the scheduler on its nodes, else on nodes of their own.",
        queue=True,
    )
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
    @click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGUMENT]...", shell_complete=files
    )
    @click.pass_context
    def csrun_wse(
        context: click.Context,
        total_nodes: int | None,
        tasks_per_node: int | None,
        cpus_per_task: int | None,
        single_task_nodes: int,
        cyclic: bool,
        mount_dirs: tuple[Path, ...],
        where: Where,
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
        scheduler, queue = where.scheduler(site, environment), where.queue
        queue.check(scheduler, environment)
        foreign = where.foreign(scheduler)
        _say([foreign] if foreign is not None else [])
        asked = where.asked(site, environment, total_nodes=wanted.total_nodes, dry_run=dry_run)
        survey = scheduler.survey(asked)
        _say(survey.notices)
        layout = wanted.layout(survey.defaults, survey.node_cpus)
        words = require_command(command, context)
        job_id, cwd = queue.job_id or new_job_id(scheduler.name), working_directory()
        log_dir = log_dir or Path("csrun_logs", job_id)
        directories = [*(path.absolute() for path in mount_dirs), cwd / log_dir]
        request = LaunchRequest(
            command=words,
            executed=containerize(words, site, cwd, directories),
            layout=layout,
            log_dir=log_dir,
            mount_dirs=mount_dirs,
            grace_s=grace_period,
            wind_down_s=wind_down,
            wait=wait,
            requeue=queue.requeue,
            warn_before_s=queue.warn_before_s,
        )
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        launch_context = LaunchContext(job_id, cwd, environment, this_toolkit(), site, cpus)
        plan = scheduler.plan(request, launch_context, survey)  # refuses what can never run
        _say(plan.notices)
        if not dry_run:
            from csrun.system_status import check_system  # only here: --help starts no process

            here = scheduler.job_here(environment)
            certain = not queue.submit and (not scheduler.has_nodes or (here is not None and here.on_node))
            notice = check_system(
                words,
                site.cs_ip,
                this_toolkit(),
                wait=wait,
                certain=certain,
                variable=environment.get(SYSTEM_VARIABLE, ""),
            )
            _say([notice] if notice else [])
        if not queue.submit and not dry_run:
            return scheduler.run(plan, environment)
        if not queue.submit:
            write_text(STDOUT, scheduler.describe(plan))
            return 0
        script = scheduler.script(request, launch_context, survey)
        if dry_run:
            write_text(STDOUT, script)
            return 0

        return submit(scheduler, script, plan, environment, follow=queue.follow)

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


def _say(notices: Iterable[str]) -> None:
    for notice in notices:
        say(PROGRAM, notice)


SCRIPT_NAME = "job.sh"
WHOLE_FILE_LINES = 1_000_000


def submit(
    scheduler: Scheduler[Any, Any],
    script: str,
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    follow: bool,
) -> int:
    """Writes the script into the job's log directory, hands it to the queue, and registers the job.

    Args:
        scheduler: whose queue.
        script: its text.
        plan: of the job.
        environment: of the launcher; the job inherits it.
        follow: stay until the job has ended.

    Returns:
        The exit code: that of the job, if it was followed to its end.

    Raises:
        LogDirError: the script cannot be written.
        ToolkitError: the scheduler refuses the job; nothing was submitted.
    """
    prepare_log_dir(plan.log_dir)
    path = plan.log_dir / SCRIPT_NAME
    try:
        path.write_text(script, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    except OSError as error:
        raise LogDirError(
            f"cannot write {path}: {error.strerror}; expected a writable log directory: give another one "
            f"with --log-dir"
        ) from error
    job = replace(known_job(plan), scheduler_job_id=scheduler.submit(path, environment))
    register(job, environment)
    # As sbatch prints it, so that scripts that read sbatch's answer can read ours.
    write_text(STDOUT, f"Submitted batch job {job.scheduler_job_id}\n")
    say(PROGRAM, f"job {job.job_id}, script {path}")
    return _follow(job, scheduler.output_file(job)) if follow else 0


def _follow(job: KnownJob, output: Path) -> int:
    """Shows what the job writes until it has ended; returns its exit code.

    Ctrl-C ends the showing, not the job.
    """
    number = job.scheduler_job_id
    try:
        from csrun.commands.jobs import follow_log  # only here: nothing else follows a log

        return follow_log(job, output, lines=WHOLE_FILE_LINES)
    except KeyboardInterrupt:
        say(
            PROGRAM,
            f"job {number} goes on: 'csrun status {number}', 'csrun logs --follow {number}', 'csrun cancel "
            f"{number}' look after it",
        )
        return EXIT_CTRL_C

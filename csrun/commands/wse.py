"""csrun_wse: runs a program as one chief and many workers that train on a CS system."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import click

from cs_toolkit import __version__
from csrun.commands.completion import files
from csrun.commands.flags import (
    EXIT_CTRL_C,
    command_site,
    context_settings,
    count,
    mount_dirs_option,
    require_command,
    require_unlocked,
    require_unlocked_command,
    run_main,
    seconds,
    site_config_option,
    working_directory,
)
from csrun.commands.scheduler_flags import Queueing, Where, scheduler_flags
from csrun.console import STDOUT, SignOfLife, say, write_text
from csrun.errors import LogDirError
from csrun.jobs.layout import JobLayout, Recommendation, read_recommendation, resolve_layout
from csrun.jobs.record import known_job, new_job_id, prepare_log_dir
from csrun.jobs.registry import KnownJob, register
from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest, Scheduler, Survey
from csrun.site import Site
from csrun.tasks.command import containerize
from csrun.tasks.environment import SYSTEM_VARIABLE, this_toolkit

PROGRAM = "csrun_wse"
DEFAULT_GRACE_S = 10
DEFAULT_WIND_DOWN_S = 60
SCRIPT_NAME = "job.sh"
WHOLE_FILE_LINES = 1_000_000

_HELP = """Runs COMMAND as the tasks of one job on a CS system: rank 0 is the chief, all others are workers
that stream input data. All tasks run the same command; programs find their part in TF_CONFIG and CSRUN_*.

The first argument that is not a flag starts the command; everything after it is passed on unchanged. With S
single-task nodes of N nodes the job has S + (N - S) * T tasks.

The output of the tasks appears line by line with the name of the task in front, and without the name in one
log file per task. Tasks have no standard input. A worker whose process dies is restarted, and the run waits
for it (--max-restarts). Any other task that fails ends the job, and its exit code becomes that of csrun_wse.

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
  --max-restarts={restarts} ('csrun config show' shows where they come from)
"""


def main() -> NoReturn:
    """Run the command as a console script."""
    run_main(PROGRAM, lambda: build_command(command_site(build_command, sys.argv[1:]).site))


def build_command(site: Site) -> click.Command:
    """Build the command line; the site's settings are the defaults."""
    epilog = _EPILOG.format(
        nodes=site.def_nodes,
        tasks=site.def_tasks_per_node,
        cpus=site.def_cpus_per_task or "(open: tasks share the CPUs)",
        restarts=site.max_restarts,
    )

    @click.command(
        PROGRAM, context_settings=context_settings(), help=_HELP, epilog=epilog, options_metavar="[FLAGS]"
    )
    @_layout_options
    @mount_dirs_option
    @scheduler_flags(
        "Where the tasks run: inside a job of the scheduler on its nodes, otherwise on separate nodes.",
        queue=True,
    )
    @_job_options
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
        requested: RequestedLayout,
        mount_dirs: tuple[Path, ...],
        where: Where,
        job: JobOptions,
        dry_run: bool,
        command: tuple[str, ...],
    ) -> int:
        environment = dict(os.environ)
        if job.recommendation is not None:
            requested = requested.complete_from(read_recommendation(job.recommendation))
        scheduler, queue = where.scheduler(site, environment), where.queue
        queue.check(scheduler, environment)
        foreign = where.foreign(scheduler)
        _say([foreign] if foreign is not None else [])
        asked = where.asked(site, environment, total_nodes=requested.total_nodes, dry_run=dry_run)
        with SignOfLife(PROGRAM) as sign:
            if scheduler.has_nodes:
                sign.doing(f"asking {scheduler.title} for its nodes")
            survey = scheduler.survey(asked)
        _say(survey.notices)
        layout = requested.resolve(survey.defaults, survey.node_cpus)
        arguments = require_command(command, context)
        require_unlocked_command(site, arguments, mount_dirs)
        if job.max_restarts is not None:
            require_unlocked(site, "max_restarts", "--max-restarts", job.max_restarts, site.max_restarts)
        job_id, cwd = queue.job_id or new_job_id(scheduler.name), working_directory()
        log_dir = job.log_dir or Path("csrun_logs", job_id)
        directories = [*(path.absolute() for path in mount_dirs), cwd / log_dir]
        request = LaunchRequest(
            command=arguments,
            executed=containerize(arguments, site, cwd, directories),
            layout=layout,
            log_dir=log_dir,
            mount_dirs=mount_dirs,
            grace_s=job.grace_period,
            wind_down_s=job.wind_down,
            wait=job.wait,
            requeue=queue.requeue,
            warn_before_s=queue.warn_before_s,
            allow_input_change=job.allow_input_change,
            input_order=_absolute_order(job.input_order),
            max_restarts=site.max_restarts if job.max_restarts is None else job.max_restarts,
        )
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        launch_context = LaunchContext(job_id, cwd, environment, this_toolkit(), site, cpus)
        return _launch(scheduler, request, launch_context, survey, queue, dry_run=dry_run)

    return csrun_wse


@dataclass(frozen=True, slots=True)
class RequestedLayout:
    """The layout of a job as the user requests it; None where the command line leaves it open."""

    total_nodes: int | None
    tasks_per_node: int | None
    cpus_per_task: int | None
    single_task_nodes: int
    cyclic: bool

    def complete_from(self, recommendation: Recommendation) -> RequestedLayout:
        """Fill in flags that the user has not given from a recommendation."""
        return replace(
            self,
            total_nodes=self.total_nodes or recommendation.nodes,
            tasks_per_node=self.tasks_per_node or recommendation.tasks_per_node,
            cpus_per_task=self.cpus_per_task or recommendation.cpus_per_task,
        )

    def resolve(self, site: Site, node_cpus: int) -> JobLayout:
        """Complete the layout from the site's defaults, for nodes with `node_cpus` CPUs."""
        return resolve_layout(
            site,
            node_cpus,
            total_nodes=self.total_nodes,
            tasks_per_node=self.tasks_per_node,
            cpus_per_task=self.cpus_per_task,
            single_task_nodes=self.single_task_nodes,
            cyclic=self.cyclic,
        )


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of a job other than its layout and its scheduler; times in seconds."""

    recommendation: Path | None
    log_dir: Path | None
    grace_period: float
    wind_down: float
    max_restarts: int | None
    wait: bool
    allow_input_change: bool
    input_order: str | None


def _layout_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of the layout; the command gets them as one argument, `requested`."""

    @click.option("--total-nodes", "--nodes", callback=count(), metavar="N", help="Nodes of the job.")
    @click.option(
        "--tasks-per-node",
        callback=count(),
        metavar="T",
        help="Tasks on each node. Default: the site's; with only --cpus-per-task, as many as fit on a node.",
    )
    @click.option(
        "--cpus-per-task",
        callback=count(),
        metavar="C",
        help="CPUs of each task. Tasks are pinned to them if the machine has enough for all.",
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
        "--cyclic", is_flag=True, help="Distribute workers round robin over the nodes. Default: node by node."
    )
    @wraps(function)
    def command(
        *arguments: Any,
        total_nodes: int | None,
        tasks_per_node: int | None,
        cpus_per_task: int | None,
        single_task_nodes: int,
        cyclic: bool,
        **values: Any,
    ) -> Any:
        layout = RequestedLayout(total_nodes, tasks_per_node, cpus_per_task, single_task_nodes, cyclic)
        return function(*arguments, requested=layout, **values)

    return command


def _job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare the options of `JobOptions`; the command gets them as one argument, `job`."""

    @click.option(
        "--recommendation",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Take nodes, tasks and CPUs from a file that 'cs_input_analyzer --json FILE' has written.",
    )
    @click.option(
        "--log-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Directory of the logs. Default: ./csrun_logs/<job id>",
    )
    @click.option(
        "--grace-period",
        callback=seconds,
        metavar="SECONDS",
        default=str(DEFAULT_GRACE_S),
        show_default=True,
        help="Time from asking the tasks to end until they are killed.",
    )
    @click.option(
        "--wind-down",
        callback=seconds,
        metavar="SECONDS",
        default=str(DEFAULT_WIND_DOWN_S),
        show_default=True,
        help="How long workers may continue after the chief has finished.",
    )
    @click.option(
        "--max-restarts",
        callback=count(0),
        metavar="N",
        help="How often each worker whose process dies is restarted; 0 never. Default: the site's.",
    )
    @click.option("--wait", is_flag=True, help="Wait for a CS system that is busy instead of failing.")
    @click.option(
        "--input-order",
        metavar="ORDER",
        help="Order in which the batches of the workers are used: fixed, first-ready, or the file of an "
        "earlier first-ready run, which is replayed.",
    )
    @click.option(
        "--allow-input-change",
        is_flag=True,
        help="Resume with another number of workers although samples are then repeated and lost.",
    )
    @wraps(function)
    def command(
        *arguments: Any,
        recommendation: Path | None,
        log_dir: Path | None,
        grace_period: float,
        wind_down: float,
        max_restarts: int | None,
        wait: bool,
        input_order: str | None,
        allow_input_change: bool,
        **values: Any,
    ) -> Any:
        job = JobOptions(
            recommendation,
            log_dir,
            grace_period,
            wind_down,
            max_restarts,
            wait,
            allow_input_change,
            input_order,
        )
        return function(*arguments, job=job, **values)

    return command


def _absolute_order(order: str | None) -> str | None:
    """Return the order with the path of its file made absolute: tasks may start in another directory."""
    return order if order in (None, "fixed", "first-ready") else str(Path(str(order)).absolute())


def _launch(
    scheduler: Scheduler[Any, Any],
    request: LaunchRequest,
    context: LaunchContext,
    survey: Survey,
    queue: Queueing,
    *,
    dry_run: bool,
) -> int:
    """Plan a job and print, run or submit it; return the exit code."""
    plan = scheduler.plan(request, context, survey)  # refuses a job that can never run
    _say(plan.notices)
    if dry_run:
        text = scheduler.script(request, context, survey) if queue.submit else scheduler.describe(plan)
        write_text(STDOUT, text)
        return 0
    with SignOfLife(PROGRAM) as sign:
        _check_system(scheduler, request, context, sign, submit=queue.submit)
    if not queue.submit:
        launch = () if queue.job_id else (PROGRAM, *sys.argv[1:])
        return scheduler.run(replace(plan, launch=launch), context.environment)
    script = scheduler.script(request, context, survey)
    return submit(scheduler, script, plan, context.environment, follow=queue.follow)


def _check_system(
    scheduler: Scheduler[Any, Any],
    request: LaunchRequest,
    context: LaunchContext,
    sign: SignOfLife,
    *,
    submit: bool,
) -> None:
    from csrun.system_status import check_system  # only here: --help starts no process

    here = scheduler.job_here(context.environment)
    notice = check_system(
        request.command,
        context.site.system_addresses,
        context.toolkit,
        wait=request.wait,
        # The tasks find the system as this process does only if they start here, now.
        certain=not submit and (not scheduler.has_nodes or (here is not None and here.on_node)),
        variable=context.environment.get(SYSTEM_VARIABLE, ""),
        certs=context.site.certs,
        doing=sign.doing,
    )
    _say([notice] if notice else [])


def _say(notices: Iterable[str]) -> None:
    for notice in notices:
        say(PROGRAM, notice)


def submit(
    scheduler: Scheduler[Any, Any],
    script: str,
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    follow: bool,
) -> int:
    """Write the script into the log directory of the job, submit it, and register the job.

    Args:
        scheduler: owner of the queue.
        script: text of the batch script.
        plan: of the job.
        environment: of the launcher; the job inherits it.
        follow: follow the output until the job has ended.

    Returns:
        The exit code of the job if it was followed to its end, else 0.

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
    with SignOfLife(PROGRAM) as sign:
        sign.doing(f"submitting the job to {scheduler.title}")
        job = replace(known_job(plan), scheduler_job_id=scheduler.submit(path, environment))
    register(job, environment)
    # The line that sbatch prints: scripts that parse it work with csrun_wse, too.
    write_text(STDOUT, f"Submitted batch job {job.scheduler_job_id}\n")
    say(PROGRAM, f"job {job.job_id}, script {path}")
    return _follow(job, scheduler.output_file(job)) if follow else 0


def _follow(job: KnownJob, output: Path) -> int:
    """Print the output of a submitted job until it has ended; return its exit code.

    Ctrl-C stops the printing, not the job.
    """
    from csrun.commands.jobs import follow_log  # only here: nothing else follows a log

    number = job.scheduler_job_id
    try:
        return follow_log(job, output, lines=WHOLE_FILE_LINES)
    except KeyboardInterrupt:
        say(
            PROGRAM,
            f"job {number} continues: check it with 'csrun status {number}', follow it with 'csrun logs "
            f"--follow {number}', end it with 'csrun cancel {number}'",
        )
        return EXIT_CTRL_C

"""Plan of a job whose tasks are started by agents, and the text of --dry-run. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from csrun.schedulers.base import LaunchContext, LaunchPlan, LaunchRequest
from csrun.schedulers.tasks import plural
from csrun.tasks.environment import program_environment, unset_notice
from csrun.tasks.place import PlaceReader, reader_arguments


@dataclass(frozen=True)  # no slots: a scheduler adds its own fields in a class below
class AgentPlan(LaunchPlan):
    """A job on nodes of a scheduler.

    Attributes:
        start: command line of the scheduler that starts the agents.
        files: text files in the log directory that it reads, by name.
        outer_job_id: the scheduler's id of the job that the launcher runs in; "" if `start` gets new nodes.
        restarts: how often that job was put back into the queue.
        cpus_of_tasks: number of CPUs to which the launcher pins each task, by rank; None not to pin it.
        ports: range in which the launcher may listen; None for any port.
        ports_setting: setting of the scheduler with that range, for messages; "" for none.
        loopback: nodes reach the launcher through the loopback of this machine.
    """

    start: tuple[str, ...]
    files: Mapping[str, str]
    outer_job_id: str
    restarts: int
    cpus_of_tasks: tuple[int | None, ...]
    ports: tuple[int, int] | None
    ports_setting: str
    loopback: bool


def agent_command(read_place: PlaceReader) -> tuple[str, ...]:
    """Return the command line of an agent, isolated from the user's Python settings.

    Args:
        read_place: as for `csrun.tasks.place.reader_arguments`.
    """
    # The interpreter is not resolved: that of a virtual environment is a symbolic link.
    agent = Path(__file__).resolve().with_name("__main__.py")
    python = str(Path(sys.executable).absolute())
    return (python, "-I", "-S", str(agent), *reader_arguments(read_place))


def describe(plan: AgentPlan, lines: Sequence[str] = ()) -> str:
    """Return the text of --dry-run: exactly what would be started.

    Args:
        plan: of the job.
        lines: on further inputs of the scheduler's command.
    """
    where = f"in the allocation of job {plan.outer_job_id}" if plan.outer_job_id else "on separate nodes"
    text = [
        f"job {plan.job_id} (launcher {plan.launcher}), nothing is started: "
        f"{plural(len(plan.tasks), 'task')} {where}",
        f"working directory: {quote(str(plan.cwd))}",
        f"{plan.start[0]}: {join(plan.start)}",
        *lines,
        f"unset for every task: {' '.join(plan.change.unset) or '(nothing)'}",
        "set for every task:",
        *(f"  {name}={quote(value)}" for name, value in plan.change.values.items()),
        "  CSRUN_JOB_TOKEN=(random, drawn at the start, never shown)",
        "  CSRUN_NODE=(name of its node)",
        "  TF_CONFIG=(set when the nodes are known)",
    ]
    for task in plan.tasks:
        text += [
            f"{task.label}: rank {task.rank}, node {task.node}",
            *(f"  {name}={quote(value)}" for name, value in task.values.items()),
            f"  log:     {quote(str(task.log_path))}",
            f"  command: {join(plan.executed)}",
        ]
    return "\n".join(text) + "\n"


def plan_notices(request: LaunchRequest, context: LaunchContext) -> tuple[str, ...]:
    """Return notices about settings that have no effect and variables that tasks do not get."""
    change = program_environment(context.environment, context.toolkit, context.site)
    notices = [unset_notice(context.environment, change)]
    if request.mount_dirs and context.site.container == "none":
        notices.append("--mount-dirs has no effect here: without a container the tasks see all directories")
    return tuple(filter(None, notices))

"""One program on a whole node of its own, or on a node of the allocation that we are in."""

from __future__ import annotations

from pathlib import Path

from csrun.schedulers.base import Asked, ProgramPlan, ProgramRequest
from csrun.schedulers.slurm.allocation import read_allocation
from csrun.schedulers.slurm.arguments import srun_cpu, srun_cpu_step
from csrun.schedulers.slurm.attended import on_terminal, run_attended, step_name
from csrun.schedulers.slurm.client import SlurmClient, submission_environment
from csrun.schedulers.slurm.errors import SlurmError
from csrun.schedulers.slurm.facts import look_around, whole_node_cpus
from csrun.schedulers.slurm.names import subject
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.tasks.command import find_command


def plan_program(request: ProgramRequest, asked: Asked) -> ProgramPlan:
    """The srun that runs it.

    Raises:
        ToolkitError: there is no such command, no such partition, or no cluster.
    """
    options = SlurmOptions.of_site(asked.site, asked.flags)
    about = options.job_name or subject(request.command, Path.cwd())
    name, terminal = step_name(about), on_terminal()
    allocation = read_allocation(asked.environment) if request.inside else None
    if allocation is not None:
        avoided = options.gres_node if request.avoid_system else ""
        words = srun_cpu_step(name, allocation, request.command, avoided_node=avoided, terminal=terminal)
        return _planned(request, words, f"on a node of job {allocation.job_id}", name, terminal)
    if asked.site.container == "none" and not asked.dry_run:  # a container's runtime only the nodes need
        # A typing error is not worth a wait in the queue.
        find_command(request.command[0], request.environment["PATH"])
    words = srun_cpu(
        name,
        options,
        request.command,
        exclude_gres=request.avoid_system,
        terminal=terminal,
        cpus=_node_cpus(asked, options),
    )
    return _planned(request, words, "on a node of its own", name, terminal)


def run_program(plan: ProgramPlan) -> int:
    """Runs srun to its end and passes our signals on; the program's exit code.

    Raises:
        ToolkitError: srun cannot be started.
    """
    return run_attended(
        plan.words, plan.environment, plan.name, terminal=plan.terminal, limit_s=plan.leaving_s
    )


def _planned(
    request: ProgramRequest, words: tuple[str, ...], where: str, name: str, terminal: bool
) -> ProgramPlan:
    # srun would take the variables of an enclosing job for options.
    cleared = submission_environment(request.environment)
    return ProgramPlan(words, cleared, where, name, terminal, request.leaving_s)


def _node_cpus(asked: Asked, options: SlurmOptions) -> int | None:
    client = SlurmClient(asked.environment)
    try:
        return whole_node_cpus(client, options, look_around(client, options).partition)
    except SlurmError:
        if not asked.dry_run:
            raise
        return None

"""Registry of schedulers: the built-in ones, and those that packages of a site add with an entry point.

A package registers one in the group `csrun.schedulers` (pyproject.toml):

    [project.entry-points."csrun.schedulers"]
    mine = "my_package.scheduler:MyScheduler"

The object is called without arguments and returns a `csrun.schedulers.base.Scheduler` of that name.
"""

# For a fast start, a scheduler's module is imported at its first use, and its methods import their code when
# they run.

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from cs_toolkit.errors import UsageError
from csrun.errors import CsrunError

if TYPE_CHECKING:
    from csrun.schedulers.base import Scheduler
    from csrun.site import Site
    from csrun.tasks.place import TaskPlace

GROUP = "csrun.schedulers"

# The scheduler of a job if no other one is selected.
LOCAL = "local"

# The schedulers of the toolkit, in the order in which they are asked whether they are wanted.
BUILT_IN: Mapping[str, str] = {
    LOCAL: "csrun.schedulers.local.scheduler:LocalScheduler",
    "slurm": "csrun.schedulers.slurm.scheduler:SlurmScheduler",
}


class SchedulerLoadError(CsrunError):
    """The package of a scheduler cannot be imported."""


def names() -> tuple[str, ...]:
    """Return the names of all schedulers, the built-in ones first."""
    return tuple(_entries())


def check_name(name: str) -> str:
    """Return the name if a scheduler has it.

    Raises:
        ValueError: no scheduler has it; the message lists the names.
    """
    if name not in names():
        raise ValueError(f"expected one of: {', '.join(names())}")
    return name


@cache
def scheduler(name: str) -> Scheduler[Any, Any]:
    """Return the scheduler of this name.

    Raises:
        UsageError: no scheduler has it.
        SchedulerLoadError: its package cannot be imported.
    """
    if name not in names():
        raise UsageError(
            f"unknown scheduler {name!r}; expected one of: {', '.join(names())}: install the package "
            f"that provides it (entry point {GROUP})"
        )
    entry = _entries()[name]
    try:
        loaded: Scheduler[Any, Any] = entry.load()()
    except Exception as error:
        if name in BUILT_IN:
            raise
        package = f" of {entry.dist.name}" if entry.dist else ""
        raise SchedulerLoadError(
            f"the scheduler {name!r} cannot be loaded: {entry.value}{package} raises {error!r}; expected a "
            f"class of a scheduler: correct or remove that package, or name another launcher"
        ) from error
    return loaded


def schedulers() -> Iterator[Scheduler[Any, Any]]:
    """Yield all schedulers that can be loaded; a broken package does not affect the others."""
    for name in names():
        try:
            yield scheduler(name)
        except SchedulerLoadError:
            continue


def choose(flag: str | None, site: Site, environment: Mapping[str, str]) -> Scheduler[Any, Any]:
    """Choose a scheduler: the flag, the site's launcher, the first that is wanted, or else this machine.

    Raises:
        UsageError: no scheduler has that name.
        SchedulerLoadError: it cannot be loaded, or none is named and one that may be wanted cannot be.
    """
    if name := flag or site.launcher:
        return scheduler(name)
    every = map(scheduler, names())
    wanted = (each for each in every if each.presence(site, environment) == "wanted")
    return next(wanted, None) or scheduler(LOCAL)


def task_place(environment: Mapping[str, str]) -> TaskPlace | None:
    """Return the place of this process, if a scheduler has started it as a task without csrun.

    Raises:
        RoleError: a variable of the scheduler is missing or invalid.
    """
    return next(filter(None, (each.task_place(environment) for each in schedulers())), None)


def node_name(environment: Mapping[str, str]) -> str:
    """Return the name of this machine, as a scheduler knows it if this process is in one of its jobs."""
    jobs = (each.job_here(environment) for each in schedulers())
    return next((job.node for job in jobs if job and job.node), "") or socket.gethostname()


def granted_cpus(environment: Mapping[str, str]) -> int | None:
    """Return the number of CPUs of this process's job on this node; None if no scheduler reports it."""
    jobs = (each.job_here(environment) for each in schedulers())
    return next((job.cpus_on_node for job in jobs if job and job.cpus_on_node), None)


def task_variables(
    environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
) -> dict[str, str]:
    """Return the environment variables that the scheduler of this process sets for a task."""
    variables: dict[str, str] = {}
    for each in schedulers():
        variables |= each.task_variables(environment, rank, tasks, cpus)
    return variables


@cache
def _entries() -> Mapping[str, EntryPoint]:
    ours = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {**ours, **{entry.name: entry for entry in found if entry.name not in BUILT_IN}}

"""All schedulers by name: ours, and those that packages of a site bring with an entry point.

A package registers one in the group `csrun.schedulers` (pyproject.toml):

    [project.entry-points."csrun.schedulers"]
    mine = "my_package.scheduler:MyScheduler"

The object is called without arguments and gives a `csrun.schedulers.base.Scheduler` of that name. Modules of
schedulers are imported when they are asked for, and import what a duty needs only when it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from cs_toolkit.errors import UsageError
from csrun.errors import CsrunError

if TYPE_CHECKING:
    from csrun.schedulers.base import Scheduler
    from csrun.site.model import Site

GROUP = "csrun.schedulers"

LOCAL = "local"
"""Where jobs run if nothing speaks for another scheduler."""

BUILT_IN: Mapping[str, str] = {
    LOCAL: "csrun.schedulers.local.scheduler:LocalScheduler",
    "slurm": "csrun.schedulers.slurm.scheduler:SlurmScheduler",
}
"""The schedulers that come with the toolkit, in the order in which they are asked whether they are wanted."""


class SchedulerLoadError(CsrunError):
    """The package that brings a scheduler is broken."""


def names() -> tuple[str, ...]:
    """The names of all schedulers, ours first."""
    return tuple(_entries())


def check_name(name: str) -> str:
    """The name, if it is that of a scheduler.

    Raises:
        ValueError: it is not; the message says which there are.
    """
    if name not in names():
        raise ValueError(f"expected one of: {', '.join(names())}")
    return name


@cache
def scheduler(name: str) -> Scheduler[Any, Any]:
    """The scheduler of this name.

    Raises:
        UsageError: there is none.
        SchedulerLoadError: the package that brings it cannot be imported.
    """
    if name not in names():
        raise UsageError(
            f"there is no scheduler {name!r} here; expected one of: {', '.join(names())}: install the "
            f"package that brings it (entry point {GROUP})"
        )
    entry = _entries()[name]
    try:
        made: Scheduler[Any, Any] = entry.load()()
    except Exception as error:
        if name in BUILT_IN:
            raise
        brought = f" of {entry.dist.name}" if entry.dist else ""
        raise SchedulerLoadError(
            f"the scheduler {name!r} cannot be loaded: {entry.value}{brought} raises {error!r}; expected a "
            f"class of a scheduler: correct or remove that package, or name another launcher"
        ) from error
    return made


def schedulers() -> Iterator[Scheduler[Any, Any]]:
    """All schedulers that can be loaded: a broken package does not stand in the way of the others."""
    for name in names():
        try:
            yield scheduler(name)
        except SchedulerLoadError:
            continue


def choose(flag: str | None, site: Site, environment: Mapping[str, str]) -> Scheduler[Any, Any]:
    """Where a job runs: the flag, else the site's launcher, else the first that is wanted, else this machine.

    Raises:
        UsageError: there is no scheduler of that name.
        SchedulerLoadError: it cannot be loaded, or none is named and one that cannot be loaded may be wanted.
    """
    if name := flag or site.launcher:
        return scheduler(name)
    every = map(scheduler, names())
    wanted = (each for each in every if each.presence(site, environment) == "wanted")
    return next(wanted, None) or scheduler(LOCAL)


def task_variables(
    environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
) -> dict[str, str]:
    """What the scheduler that has started this process tells a task, see `Scheduler.task_variables`."""
    told: dict[str, str] = {}
    for each in schedulers():
        told |= each.task_variables(environment, rank, tasks, cpus)
    return told


@cache
def _entries() -> Mapping[str, EntryPoint]:
    ours = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return {**ours, **{entry.name: entry for entry in found if entry.name not in BUILT_IN}}

"""Flags that select where something runs: --launcher, the flags of the schedulers, the flags of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click

from cs_toolkit.errors import UsageError
from csrun.commands.flags import flag_name, require_unlocked, seconds
from csrun.schedulers.base import Asked, Flag, Scheduler
from csrun.schedulers.registry import BUILT_IN, check_name, choose, schedulers
from csrun.site import Site

SUBMIT = "--submit"


@dataclass(frozen=True, slots=True)
class Queueing:
    """The flags of a queue.

    Attributes:
        submit: submit the job to the queue instead of running it from here.
        follow: after submitting, follow the job until it has ended.
        requeue: put the job back into the queue instead of ending unfinished.
        warn_before_s: seconds before its time limit at which the job is asked for a checkpoint; None if not
            given.
        job_id: the id that a submitted job has already.
    """

    submit: bool = False
    follow: bool = True
    requeue: bool = False
    warn_before_s: float | None = None
    job_id: str | None = None

    def check(self, where: Scheduler[Any, Any], environment: Mapping[str, str]) -> None:
        """Refuse flags of a submitted job for one that is not submitted.

        Raises:
            UsageError: such a flag is given.
        """
        if self.submit:
            return
        submit_flag = where.submit_flag or SUBMIT
        given = {"--no-follow": not self.follow, "--warn-before": self.warn_before_s is not None}
        for flag in (name for name, is_given in given.items() if is_given):
            raise UsageError(
                f"{flag} without {submit_flag}: only batch jobs have it; expected both: add {submit_flag}, "
                f"or leave {flag} out"
            )
        if self.requeue and where.job_here(environment) is None:
            raise UsageError(
                f"--requeue without {submit_flag}: only a batch job can be put back into the queue; expected "
                f"both: add {submit_flag}"
            )


@dataclass(frozen=True, slots=True)
class Where:
    """Where something runs, from the command line.

    Attributes:
        launcher: name of the scheduler; None for the site's.
        flags: values of the given flags of schedulers, by name.
        queue: flags of the queue.
    """

    launcher: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    queue: Queueing = Queueing()

    def scheduler(self, site: Site, environment: Mapping[str, str]) -> Scheduler[Any, Any]:
        """Choose the scheduler.

        Raises:
            UsageError: --launcher names another one than a site file that locks it.
        """
        chosen = choose(self.launcher, site, environment)
        if self.launcher is not None and "launcher" in site.locked:
            own = choose(None, site, environment).name
            require_unlocked(site, "launcher", "--launcher", chosen.name, own)
        return chosen

    def foreign(self, chosen: Scheduler[Any, Any]) -> str | None:
        """Return a notice about given flags of other schedulers; None if there are none."""
        own = {flag.name for flag in chosen.flags}
        names = ", ".join(name for name in self.flags if name not in own)
        return f"{names}: no effect with the launcher '{chosen.name}'" if names else None

    def asked(
        self,
        site: Site,
        environment: Mapping[str, str],
        *,
        total_nodes: int | None = None,
        dry_run: bool = False,
    ) -> Asked:
        """Return the request for a survey.

        Raises:
            UsageError: a flag would change a setting that a site file locks.
        """
        for each in schedulers():
            prefix = "" if each.name in BUILT_IN else f"{each.name}."
            for flag in each.flags:
                if flag.setting and flag.name in self.flags:
                    own = site.sections.get(each.name, {}).get(flag.setting, "")
                    key = f"{prefix}{flag.setting}"
                    require_unlocked(site, key, flag.name, self.flags[flag.name], own)
        return Asked(site, environment, self.flags, total_nodes, self.queue.submit, dry_run)


def launcher_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare --launcher; `text` starts its help."""
    places = "; ".join(f"{each.name}: {each.about}" for each in schedulers())
    return click.option(
        "--launcher", metavar="NAME", callback=_launcher, help=f"{text} {places}. Default: the site's."
    )


def scheduler_flags(text: str, *, queue: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare all flags that select where something runs; the command gets them as one argument, `where`.

    Args:
        text: start of the help of --launcher.
        queue: declare the flags of a queue, too.
    """
    # Several schedulers may have the same flag: its help and check are those of the first (`Flag.name`).
    own: dict[str, Flag] = {}
    for flag in (flag for each in schedulers() for flag in each.flags):
        own.setdefault(_parameter(flag.name), flag)
    submit_flags = {_parameter(each.submit_flag): each for each in schedulers() if each.submit_flag}
    options = [launcher_option(text), *(_option(flag) for flag in own.values())]
    options += _queue_options(submit_flags.values()) if queue else []

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(*arguments: Any, launcher: str | None, **values: Any) -> Any:
            flags = {flag.name: text for name, flag in own.items() if (text := values.pop(name))}
            queueing = Queueing()
            if queue:
                named = [each for name, each in submit_flags.items() if values.pop(name)]
                launcher = _merge_launchers(launcher, named)
                queueing = Queueing(
                    submit=values.pop("submit") or bool(named),
                    follow=values.pop("follow"),
                    requeue=values.pop("requeue"),
                    warn_before_s=values.pop("warn_before_s"),
                    job_id=values.pop("job_id"),
                )
            return function(*arguments, where=Where(launcher, flags, queueing), **values)

        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _parameter(flag: str) -> str:
    """Return the parameter name of a scheduler's flag; no other parameter of a command has it."""
    return f"scheduler_{flag.lstrip('-').replace('-', '_')}"


def _launcher(context: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Parse the name of a scheduler."""
    if text is None:
        return None
    flag = flag_name(param)
    try:
        return check_name(text)
    except ValueError as error:
        raise UsageError(
            f"{flag}: got {text!r}, {error}; write {flag}=local to run the tasks as processes of this machine"
        ) from None


def _option(flag: Flag) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def check(context: click.Context, param: click.Parameter, given: str | tuple[str, ...]) -> str:
        texts = given if isinstance(given, tuple) else (given,)
        return "\n".join(map(checked, texts))

    def checked(text: str) -> str:
        try:
            return flag.check(text)
        except ValueError as error:
            raise UsageError(f"{flag.name}: got {text!r}, {error}") from None

    return click.option(
        flag.name,
        _parameter(flag.name),
        default=() if flag.repeated else "",
        multiple=flag.repeated,
        hidden=flag.hidden,
        metavar=flag.metavar,
        help=flag.help,
        callback=check,
    )


def _queue_options(
    with_submit_flag: Iterable[Scheduler[Any, Any]],
) -> list[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return the flags of batch jobs."""
    return [
        click.option(
            SUBMIT,
            is_flag=True,
            help="Put the job into the scheduler's queue, print its number and follow its output.",
        ),
        *(
            click.option(
                each.submit_flag,
                _parameter(each.submit_flag),
                is_flag=True,
                help=f"The same as --launcher={each.name} {SUBMIT}.",
            )
            for each in with_submit_flag
        ),
        click.option(
            "--follow/--no-follow",
            default=True,
            help=f"With {SUBMIT}: wait until the job has ended, or return immediately. Default: wait.",
        ),
        click.option(
            "--requeue",
            is_flag=True,
            help=f"With {SUBMIT}: near its time limit the job writes a checkpoint and goes back into the "
            "queue, as it does when a node is lost; it then resumes from its last checkpoint.",
        ),
        click.option(
            "--warn-before",
            "warn_before_s",
            callback=seconds,
            metavar="SECONDS",
            help=f"With {SUBMIT}: time before its time limit at which the job is asked for a checkpoint "
            "(SIGUSR1); the scheduler may send it up to a minute early. 0: never. Default: 120, at most "
            "half of the time limit.",
        ),
        click.option("--job-id", hidden=True),
    ]


def _merge_launchers(launcher: str | None, named: Iterable[Scheduler[Any, Any]]) -> str | None:
    """Return the scheduler that --launcher and the submit flags name.

    Raises:
        UsageError: they name different ones.
    """
    for each in named:
        if launcher not in (None, each.name):
            raise UsageError(
                f"{each.submit_flag} with --launcher={launcher}: got both, expected one: {each.submit_flag} "
                f"puts a job into the queue of {each.title}; leave one of them out"
            )
        launcher = each.name
    return launcher

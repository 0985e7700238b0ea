"""The flags that say where something runs: --launcher, those of the schedulers, those of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click

from cs_toolkit.errors import UsageError
from csrun.commands.flags import flag_name, seconds
from csrun.schedulers.base import Asked, Flag, Scheduler
from csrun.schedulers.registry import check_name, choose, schedulers
from csrun.site.model import Site

SUBMIT = "--submit"


@dataclass(frozen=True, slots=True)
class Queueing:
    """What a command was told about the queue.

    Attributes:
        submit: hand the job to the queue instead of running it from here.
        follow: then stay until it has ended.
        requeue: it goes back into the queue instead of ending unfinished.
        warn_before_s: seconds before its time limit at which it is asked for a checkpoint; None: not said.
        job_id: the identity that a submitted job has got already.
    """

    submit: bool = False
    follow: bool = True
    requeue: bool = False
    warn_before_s: float | None = None
    job_id: str | None = None

    def check(self, where: Scheduler[Any, Any], environment: Mapping[str, str]) -> None:
        """Refuses flags about a submitted job where there is none.

        Raises:
            UsageError: one is given.
        """
        if self.submit:
            return
        word = where.submit_flag or SUBMIT
        given = {"--no-follow": not self.follow, "--warn-before": self.warn_before_s is not None}
        for flag in (name for name, is_given in given.items() if is_given):
            raise UsageError(
                f"{flag} without {word}: it is about batch jobs; expected both: add {word}, or leave {flag} "
                f"out"
            )
        if self.requeue and where.job_here(environment) is None:
            raise UsageError(
                f"--requeue without {word}: only a batch job can be put back into the queue; expected both: "
                f"add {word}"
            )


@dataclass(frozen=True, slots=True)
class Where:
    """Where something runs, as far as the command line says it.

    Attributes:
        launcher: name of the scheduler; None: the site's.
        flags: those of schedulers that were given, by name.
        queue: what was said about the queue.
    """

    launcher: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    queue: Queueing = Queueing()

    def scheduler(self, site: Site, environment: Mapping[str, str]) -> Scheduler[Any, Any]:
        """The scheduler that is meant."""
        return choose(self.launcher, site, environment)

    def foreign(self, chosen: Scheduler[Any, Any]) -> str | None:
        """What to say of flags that are another scheduler's; None where there are none."""
        own = {flag.name for flag in chosen.flags}
        names = ", ".join(name for name in self.flags if name not in own)
        return f"{names}: not of the launcher '{chosen.name}', without effect here" if names else None

    def asked(
        self,
        site: Site,
        environment: Mapping[str, str],
        *,
        total_nodes: int | None = None,
        dry_run: bool = False,
    ) -> Asked:
        """What a scheduler is asked for."""
        return Asked(site, environment, self.flags, total_nodes, self.queue.submit, dry_run)


def launcher_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares --launcher; `text` says what it chooses for."""
    places = "; ".join(f"{each.name}: {each.about}" for each in schedulers())
    return click.option(
        "--launcher", metavar="NAME", callback=_launcher, help=f"{text} {places}. Default: the site's."
    )


def scheduler_flags(text: str, *, queue: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares everything that says where something runs; the command gets it as one argument, `where`.

    Args:
        text: for the help of --launcher.
        queue: the command can hand a job to a queue.
    """
    own: dict[str, Flag] = {}
    for flag in (flag for each in schedulers() for flag in each.flags):
        own.setdefault(_parameter(flag.name), flag)
    words = {_parameter(each.submit_flag): each for each in schedulers() if each.submit_flag}
    options = [launcher_option(text), *(_option(flag) for flag in own.values())]
    options += _queue_options(words.values()) if queue else []

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(*arguments: Any, launcher: str | None, **values: Any) -> Any:
            flags = {flag.name: text for name, flag in own.items() if (text := values.pop(name))}
            queueing = Queueing()
            if queue:
                meant = [each for name, each in words.items() if values.pop(name)]
                launcher = _same(launcher, meant)
                queueing = Queueing(
                    submit=values.pop("submit") or bool(meant),
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
    """The argument for a flag of a scheduler's, by a name that no argument of a command has."""
    return f"scheduler_{flag.lstrip('-').replace('-', '_')}"


def _launcher(context: click.Context, param: click.Parameter, text: str | None) -> str | None:
    """Parses the name of a scheduler."""
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
    words: Iterable[Scheduler[Any, Any]],
) -> list[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """How a job becomes a batch job, and how it may go on after its time limit."""
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
            for each in words
        ),
        click.option(
            "--follow/--no-follow",
            default=True,
            help=f"With {SUBMIT}: stay until the job has ended, or leave at once. Default: stay.",
        ),
        click.option(
            "--requeue",
            is_flag=True,
            help=f"With {SUBMIT}: near its time limit the job writes a checkpoint and goes back into the "
            "queue, and so it does when a node is lost; it then goes on from its last checkpoint.",
        ),
        click.option(
            "--warn-before",
            "warn_before_s",
            callback=seconds,
            metavar="SECONDS",
            help=f"With {SUBMIT}: so long before its time limit the job is asked for a checkpoint (SIGUSR1); "
            "the scheduler may be up to a minute early. 0: never. Default: 120, and half of the time limit "
            "at most.",
        ),
        click.option("--job-id", hidden=True),
    ]


def _same(launcher: str | None, meant: Iterable[Scheduler[Any, Any]]) -> str | None:
    """The scheduler of all flags that name one.

    Raises:
        UsageError: they name several.
    """
    for each in meant:
        if launcher not in (None, each.name):
            raise UsageError(
                f"{each.submit_flag} with --launcher={launcher}: got both, expected one: {each.submit_flag} "
                f"puts a job into the queue of {each.title}; leave one of them out"
            )
        launcher = each.name
    return launcher

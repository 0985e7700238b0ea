"""The commands that ask a CS system: `status`, `top`, `release`, `drain`, `resume`, `mode` and `usage`."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import click

from cs_system.address import SystemAddress, parse_address, parse_addresses
from cs_system.command_line import certs_option, reporting
from cs_system.errors import CsSystemError, NoSuchJobError
from cs_system.usage import GROUPINGS, GroupBy

if TYPE_CHECKING:
    from cs_system.client import SystemClient
    from cs_system.status import SystemInfo

_BOTH = "both"
_MODES = ("pipelined", "weight_streaming", _BOTH)


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command to parse its addresses, and to exit with the message of an expected failure."""

    @reporting
    @functools.wraps(command)
    def run(*, addresses: str | None, **arguments: Any) -> None:
        if addresses is None:
            raise click.UsageError(
                "no address of a CS system: give --cs_ip=IP:PORT, CS_IP or the site's cs_ip or systems"
            )
        command(parse_addresses(addresses), **arguments)

    return run


_address_option = click.option(
    "--cs_ip",
    "--cs-ip",
    "addresses",
    envvar="CS_IP",
    metavar="IP[:PORT],...",
    help="Address of the system, or of several.  [default: CS_IP, else the site's cs_ip or systems]",
)
_certs_option = certs_option()
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")


@contextmanager
def _only_system(addresses: Sequence[SystemAddress]) -> Iterator[SystemClient]:
    """Connect to the system of a command that changes one."""
    from cs_system.client import SystemClient

    if len(addresses) > 1:
        names = ", ".join(map(str, addresses))
        raise click.UsageError(f"there are {len(addresses)} systems ({names}); name one with --cs_ip")
    with SystemClient(addresses[0]) as client:
        yield client


@click.command()
@_address_option
@_certs_option
@_json_option
@click.option("--watch", is_flag=True, help="Print again every second until Ctrl-C.")
@_asking
def status(addresses: tuple[SystemAddress, ...], as_json: bool, watch: bool) -> None:
    """Show the status of a CS system, or of all systems of a pool."""
    again = False
    while True:
        infos = read_pool(addresses)
        if as_json:
            for info in infos:
                click.echo(json.dumps(info.to_json()))
        else:
            if again:
                # Clears a terminal, so that the display stays in place; in a file the blocks are appended.
                click.clear()
                click.echo()
            click.echo(_render(infos, len(addresses) > 1))
        if not watch:
            return
        again = True
        time.sleep(1.0)


def read_pool(addresses: Sequence[SystemAddress]) -> list[SystemInfo]:
    """Return the status of the systems that answer, with a warning on stderr for each of the others.

    Raises:
        CsSystemError: none answers.
    """
    from cs_system.client.pool import read_statuses

    found, errors = [], []
    for _, answer in read_statuses(addresses):
        if isinstance(answer, CsSystemError):
            errors.append(answer)
        else:
            found.append(answer)
    if not found:
        raise errors[0]
    for error in errors:
        click.echo(f"cs_system: warning: {error}", err=True)
    return found


def _render(infos: Sequence[SystemInfo], is_pool: bool) -> str:
    from cs_system.status import render, render_table

    now_s = time.time()
    return render_table(infos, now_s) if is_pool else render(infos[0], now_s)


@click.command()
@_address_option
@_certs_option
@_json_option
@click.option("--once", is_flag=True, help="Print the figures once, and end.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two updates.",
)
@_asking
def top(addresses: tuple[SystemAddress, ...], as_json: bool, once: bool, interval: float) -> None:
    """Show the live figures of a CS system in the terminal; q or Ctrl-C ends it.

    Without a terminal it prints a table for each update, with a line for each system.
    """
    from cs_system.monitoring.top import show

    show(lambda: read_pool(addresses), as_json=as_json, once=once, interval_s=interval)


@click.command()
@_address_option
@_certs_option
@click.option(
    "--job", default="", metavar="JOB", help="Name of the job.  [default: the one that holds the system]"
)
@_asking
def release(addresses: tuple[SystemAddress, ...], job: str) -> None:
    """End the reservation of a job, or its place in the queue.

    A user may release his own jobs, an administrator any. The job ends with an error; the same command
    continues it from its last checkpoint. In a pool, --job finds the systems of the job.
    """
    places = [addresses]
    if job and len(addresses) > 1:
        infos = read_pool(addresses)
        names = [(info, {info.run and info.run.job, *(one.job for one in info.queue)}) for info in infos]
        places = [(parse_address(info.address),) for info, jobs in names if job in jobs]
        if not places:
            raise NoSuchJobError(f"job {job} neither holds one of {len(infos)} CS systems nor waits for one")
    for place in places:
        with _only_system(place) as client:
            name, owner = client.release(job)
            click.echo(f"released job {name}{owner and ' of '}{owner} at {client.address}")


@click.command()
@_address_option
@_certs_option
@_asking
def drain(addresses: tuple[SystemAddress, ...]) -> None:
    """Take no new jobs; the running one ends normally, waiting ones keep their places."""
    with _only_system(addresses) as client:
        client.set_admission(drained=True)
        run = client.info().run
        rest = "it is idle" if run is None else f"job {run.job} is still running"
        click.echo(f"{client.address} takes no new jobs; {rest}. `cs_system resume` ends this.")


@click.command()
@_address_option
@_certs_option
@_asking
def resume(addresses: tuple[SystemAddress, ...]) -> None:
    """Take new jobs again after `drain`."""
    with _only_system(addresses) as client:
        client.set_admission(drained=False)
        click.echo(f"{client.address} takes new jobs")


@click.command()
@_address_option
@_certs_option
@click.argument("mode", required=False, type=click.Choice(_MODES))
@_asking
def mode(addresses: tuple[SystemAddress, ...], mode: str | None) -> None:
    """Show or set the execution modes of the programs that a system takes.

    A site may reserve a system for models that fit the wafer (pipelined), or for larger ones
    (weight_streaming). The running job is not affected.
    """
    with _only_system(addresses) as client:
        if mode is not None:
            client.set_admission(modes=_MODES[:2] if mode == _BOTH else (mode,))
        modes = client.info().admission.modes
        click.echo(f"{client.address} takes programs of execution {' and '.join(modes)}")


@click.command()
@_address_option
@_certs_option
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m"]),
    help="Start of the period, in local time.  [default: the first day of this month]",
)
@click.option(
    "--until",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m"]),
    help="End of the period, not included.  [default: now]",
)
@click.option("--by", type=click.Choice(GROUPINGS), default="user", show_default=True, help="What to sum by.")
@_json_option
@_asking
def usage(
    addresses: tuple[SystemAddress, ...],
    since: datetime | None,
    until: datetime | None,
    by: str,
    as_json: bool,
) -> None:
    """Show the wafer-hours that users or jobs have used, with the running job until now.

    \b
    Example, October by user:
      cs_system usage --since=2026-10 --until=2026-11
    """
    from cs_system.client import SystemClient
    from cs_system.usage import merge_sums

    now = datetime.now().astimezone()
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = first if since is None else since.astimezone()
    end = now if until is None else until.astimezone()
    sums = []
    for address in addresses:
        with SystemClient(address) as client:
            sums += client.usage(begin.timestamp(), end.timestamp(), cast(GroupBy, by))
    merged = merge_sums(sums)
    if as_json:
        for one in merged:
            click.echo(json.dumps(one.to_json()))
        return
    rows = [
        (
            one.name,
            f"{one.reservations}",
            f"{one.wafer_s / 3600:,.2f}",
            f"{one.steps:,}",
            f"{one.samples:,}",
            one.owner,
        )
        for one in merged
    ]
    total = f"{sum(one.wafer_s for one in merged) / 3600:,.2f}"
    click.echo(f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, {total} wafer-hours")
    if rows:
        from cs_system.status import format_table

        owner = "OWNER" if by == "job" else ""
        header = (by.upper(), "RESERVATIONS", "WAFER-HOURS", "STEPS", "SAMPLES", owner)
        click.echo(format_table([header, *rows], right={1, 2, 3, 4}))

"""The command line `cs_system certs`: the certificates of a site."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cs_system.command_line import reporting
from cs_toolkit.command_group import CommandGroup
from cs_toolkit.security.identity import CA_FILE, CERTIFICATE_FILE, CERTS_VARIABLE, Identity, Role

if TYPE_CHECKING:
    from cs_toolkit.security.certificates import Certificate

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_FORCE = click.option("--force", is_flag=True, help="Replace existing files.")


@click.group(cls=CommandGroup)
def certs() -> None:
    """Certificates for TLS between CS systems and their users.

    \b
    Example, a site with one system and one user:
      cs_system certs init ca --name=lab
      cs_system certs issue ca --system=cs1.lab.example,10.0.0.7
      cs_system certs issue ca --user=alice
      cs_system serve --host=0.0.0.0 --certs=ca/cs1.lab.example     # on the system's host
      export CS_CERTS=~/alice                                       # alice's copy of ca/alice
    """


@certs.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--name", default="cs-site", show_default=True, metavar="SITE", help="Name of the site.")
@click.option("--days", type=click.IntRange(1, 36500), default=3650, show_default=True, help="Validity.")
@_FORCE
@reporting
def init(directory: Path, name: str, days: int, force: bool) -> None:
    """Create the authority of a site in DIRECTORY: ca.pem for everybody, ca-key.pem for its administrator.

    \b
    Example:
      cs_system certs init ca --name=lab
    """
    from cs_toolkit.security.certificates import create_authority

    created = create_authority(directory, name, days, force)
    click.echo(f"authority of {name} until {created.not_after:%Y-%m-%d}: {directory / CA_FILE}")


@certs.command()
@click.argument("directory", type=_DIRECTORY)
@click.option(
    "--system",
    metavar="HOST[,HOST...]",
    help="Host names and IP addresses by which a CS system is reached; loopback is added.",
)
@click.option("--user", metavar="NAME", help="Name of a user.")
@click.option("--admin", is_flag=True, help="The user may administrate the systems of the site.")
@click.option("--days", type=click.IntRange(1, 36500), default=365, show_default=True, help="Validity.")
@click.option(
    "--out",
    type=_DIRECTORY,
    help="Directory for ca.pem, cert.pem and key.pem.  [default: DIRECTORY/HOST or DIRECTORY/NAME]",
)
@_FORCE
@reporting
def issue(
    directory: Path,
    system: str | None,
    user: str | None,
    admin: bool,
    days: int,
    out: Path | None,
    force: bool,
) -> None:
    """Issue a certificate for a CS system or a user, with the authority in DIRECTORY.

    \b
    Examples:
      cs_system certs issue ca --system=cs1.lab.example,10.0.0.7
      cs_system certs issue ca --user=alice
      cs_system certs issue ca --user=root --admin --days=90
    """
    from cs_toolkit.security.certificates import Authority

    if (system is None) == (user is None):
        raise click.UsageError("expected either --system=HOST[,HOST...] or --user=NAME")
    if admin and user is None:
        raise click.UsageError("--admin: expected with --user=NAME")
    hosts = [host.strip() for host in (system or "").split(",") if host.strip()]
    if user is None and not hosts:
        raise click.UsageError("--system: expected at least one host name or IP address")
    role: Role = "system" if user is None else "admin" if admin else "user"
    name = user or hosts[0].strip("[]").replace(":", ".")
    identity = Identity(name, role)
    target = out or directory / name
    issued = Authority(directory).issue(target, identity, hosts, days, force)
    of = f" for {', '.join(issued.hosts)}" if issued.hosts else ""
    click.echo(f"certificate of {identity}{of} until {issued.not_after:%Y-%m-%d}: {target}")


@certs.command()
@click.argument("directory", type=_DIRECTORY, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@reporting
def show(directory: Path | None, as_json: bool) -> None:
    """Show the certificate in DIRECTORY, by default that of CS_CERTS; exit code 1 if it cannot be used.

    \b
    Example:
      cs_system certs show ~/alice
    """
    from cs_toolkit.security.certificates import check_issuer, read_certificate

    named = os.environ.get(CERTS_VARIABLE, "")
    if directory is None and not named:
        raise click.UsageError(f"no certificate: give its directory, or set {CERTS_VARIABLE}")
    directory = directory or Path(named).expanduser()
    is_authority = not (directory / CERTIFICATE_FILE).exists() and (directory / CA_FILE).exists()
    file = directory / (CA_FILE if is_authority else CERTIFICATE_FILE)
    certificate = read_certificate(file)
    problem = check_issuer(file, directory / CA_FILE) or _period_problem(certificate)
    if as_json:
        click.echo(json.dumps(_to_json(certificate, file, problem)))
    else:
        who = "authority" if is_authority else str(certificate.identity)
        click.echo(f"{file}: {who} of the site {certificate.site}")
        if certificate.hosts:
            click.echo(f"  hosts: {', '.join(certificate.hosts)}")
        days = max(0, int(certificate.days_left()))
        first, last = certificate.not_before, certificate.not_after
        click.echo(f"  valid: {first:%Y-%m-%d} to {last:%Y-%m-%d}, {days} days left")
        click.echo(f"  cannot be used: {problem}" if problem else f"  chain: issued by {CA_FILE}")
    raise SystemExit(1 if problem else 0)


def _period_problem(certificate: Certificate) -> str:
    now = datetime.now(UTC)
    if now < certificate.not_before:
        return f"it is valid only from {certificate.not_before:%Y-%m-%d %H:%M} UTC on: compare the clocks"
    if now > certificate.not_after:
        return "it has expired: issue it again with --force, unless the clock of this machine is wrong"
    return ""


def _to_json(certificate: Certificate, file: Path, problem: str) -> dict[str, Any]:
    return {
        "file": str(file),
        "name": certificate.identity.name,
        "role": "authority" if certificate.is_authority else certificate.identity.role,
        "site": certificate.site,
        "hosts": list(certificate.hosts),
        "not_before": certificate.not_before.isoformat(),
        "not_after": certificate.not_after.isoformat(),
        "days_left": int(certificate.days_left()),
        "problem": problem,
    }

"""Checks of this machine: site file, Python environment, container, CS system, ports."""

from __future__ import annotations

import reprlib
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join

from cs_toolkit import __version__
from cs_toolkit.errors import ToolkitError
from cs_toolkit.files import parse_json
from csrun.doctor import Finding
from csrun.site import Site
from csrun.site.loading import LoadedSite
from csrun.system_status import SystemQueryError, ask_systems
from csrun.tasks.command import containerize, require_container
from csrun.tasks.environment import Toolkit, program_environment, program_python

ANSWER_LIMIT_S = 60.0
FRONT_ENDS = ("tensorflow", "torch")

# For the interpreter of programs, which may be that of an image: it needs only the standard library.
# tensorflow-cpu is the distribution of the same modules as tensorflow.
_LIST_PACKAGES = (
    "import importlib.metadata as m, json, sys\n"
    "def version(name):\n"
    "    for one in (name, name + '-cpu'):\n"
    "        try: return m.version(one)\n"
    "        except m.PackageNotFoundError: pass\n"
    "print(json.dumps({'python': sys.version.split()[0], **{n: version(n) for n in sys.argv[1:]}}))\n"
)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How a check runs a command on a node instead of this machine.

    Attributes:
        prefix: command line in front of the command.
        is_busy: returns True if an error message only means that no node is free.
        summary: text in messages of the scheduler, which are less specific than those of the command.
    """

    prefix: tuple[str, ...]
    is_busy: Callable[[str], bool]
    summary: str


def site_finding(loaded: LoadedSite, launcher: str, installed: Sequence[tuple[str, str]] = ()) -> Finding:
    """Report the origin of the settings and the launcher of jobs.

    Args:
        loaded: the settings.
        launcher: of jobs.
        installed: title and name of other installed schedulers if the site has not chosen one.
    """
    source = ", ".join(str(one.path) for one in loaded.files) or "no site file, only the environment"
    text = f"{source}; jobs run on the launcher {launcher}"
    for title, name in installed:
        text += f" ({title} is installed here: 'launcher: {name}' would make them use it)"
    if loaded.notes:
        return Finding("site", "note", text, "; ".join(loaded.notes))
    return Finding("site", "ok", text)


def python_finding(
    environment: Mapping[str, str], toolkit: Toolkit, site: Site, cwd: Path, node: Elsewhere | None = None
) -> Finding:
    """Check that `python` in a job is an interpreter with at least one front end.

    Args:
        environment: of the caller; with `node`, without the variables of an enclosing job.
        toolkit: with the interpreter that is used without a container.
        site: with the settings of the container.
        cwd: working directory.
        node: where the command runs; None for this machine.
    """
    command = _node_prefix(node) + containerize(("python", "-c", _LIST_PACKAGES, *FRONT_ENDS), site, cwd)
    env = program_environment(environment, toolkit, site).apply(environment)
    where = "the container" if site.container != "none" else str(program_python(site, toolkit).parent)
    advice = _IMAGE if site.container != "none" else _OWN if site.python else _SETUP
    try:
        done = subprocess.run(
            command, env=env, cwd=cwd, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("python", "fail", f"python of {where} cannot be run: {error}", advice)
    if done.returncode and node and node.is_busy(done.stderr):
        return Finding("python", "note", "not checked: no node was free", "run it again later")
    if done.returncode:
        return Finding("python", "fail", f"python of {where} fails: {_last_line(done.stderr, node)}", advice)
    try:
        versions = parse_json(done.stdout.splitlines()[-1])
        version, front_ends = versions["python"], [f"{n} {versions[n]}" for n in FRONT_ENDS if versions[n]]
    except (ValueError, LookupError, TypeError):
        text = f"python of {where} does not list its packages, but prints {reprlib.repr(done.stdout)}"
        return Finding("python", "fail", text, advice)
    if not front_ends:
        return Finding("python", "fail", f"Python {version} of {where} has no front end", advice)
    return Finding("python", "ok", f"Python {version} of {where} with {', '.join(front_ends)}")


_SETUP = "install the toolkit with a front end: 'make setup', or pip install 'cs-toolkit[tf]'"
_OWN = "install the toolkit there: PYTHON -m pip install 'cs-toolkit[tf]', or correct python of the site"
_IMAGE = "use an image with Python and TensorFlow or PyTorch: container_image of the site"


def _node_prefix(node: Elsewhere | None) -> tuple[str, ...]:
    return node.prefix if node else ()


def _last_line(stderr: str, node: Elsewhere | None = None) -> str:
    """Return the last line of stderr, preferably not a summary of the scheduler."""
    lines = stderr.strip().splitlines()
    own = [line for line in lines if node is None or node.summary not in line]
    return (own or lines or ["no message"])[-1]


def container_finding(
    environment: Mapping[str, str], toolkit: Toolkit, site: Site, cwd: Path, node: Elsewhere | None = None
) -> Finding:
    """Check that the site's container starts a program; the arguments are those of `python_finding`."""
    if site.container == "none":
        return Finding("container", "ok", "none: programs run in the toolkit's own environment")
    try:
        if node is None:
            require_container(site, environment.get("PATH", ""))
        arguments = _node_prefix(node) + containerize(("true",), site, cwd)
        env = program_environment(environment, toolkit, site).apply(environment)
        done = subprocess.run(
            arguments, env=env, cwd=cwd, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (ToolkitError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("container", "fail", str(error), "correct container and container_image of the site")
    if done.returncode and node and node.is_busy(done.stderr):
        return Finding("container", "note", "not checked: no node was free", "run it again later")
    if done.returncode:
        message = _last_line(done.stderr, node)
        text = f"{site.container} does not start a program in {site.container_image}: {message}"
        return Finding("container", "fail", text, f"try it by hand: {join(arguments)}")
    where = ", on a node" if node else ""
    return Finding("container", "ok", f"{site.container}, {site.container_image}{where}")


def system_findings(addresses: str, toolkit: Toolkit, certs: str) -> Iterator[Finding]:
    """Check that each CS system answers and has this version; `addresses` are separated by commas.

    `certs` is the directory of a certificate.
    """
    if not addresses:
        text = "no address is configured; programs get it with --cs_ip"
        yield Finding("CS system", "note", text, "set cs_ip of the site, or check one with --cs-ip")
    for address in filter(None, addresses.split(",")):
        try:
            (status,) = ask_systems(address, toolkit, certs)
        except SystemQueryError as error:
            yield Finding("CS system", "fail", str(error), _START)
            continue
        system = f"{status['name']} {status['version']}"
        text = f"{address} answers: {system}, {status['state']}, fabric {status['fabric']}"
        if status["version"] != __version__:
            advice = f"this toolkit is {__version__}: use the same on both sides"
            yield Finding("CS system", "note", text, advice)
        else:
            yield Finding("CS system", "ok", text)


def certificate_findings(directory: str) -> Iterator[Finding]:
    """Check the user's certificate, if the site has any: it must be readable, and not end soon."""
    if not directory:
        return
    from cs_toolkit.security.certificates import EXPIRY_NOTICE_DAYS, check_issuer, read_certificate
    from cs_toolkit.security.tls import Credentials

    try:
        credentials = Credentials(Path(directory))
        certificate = read_certificate(credentials.certificate)
        problem = check_issuer(credentials.certificate, credentials.ca)
    except ToolkitError as error:
        text, _, advice = str(error).partition("; expected ")
        yield Finding("certificate", "fail", text, f"expected {advice}" if advice else _ISSUE)
        return
    days, end = certificate.days_left(), f"{certificate.not_after:%Y-%m-%d}"
    who = f"{certificate.identity} in {directory}"
    if problem or days < 0:
        yield Finding("certificate", "fail", f"{who}: {problem or f'ended on {end}'}", _ISSUE)
    elif days < EXPIRY_NOTICE_DAYS:
        yield Finding("certificate", "note", f"{who} ends on {end}, in {days:.0f} days", _ISSUE)
    else:
        yield Finding("certificate", "ok", f"{who}, until {end}")


_ISSUE = "ask the administrator for a new one (cs_system certs issue CA --user=NAME --force)"

_START = "start it ('cs_system serve'), or correct cs_ip of the site"


def port_finding(ports: tuple[int, int] | None, source: str = "") -> Finding:
    """Check that there is a free port for the connections of a job's tasks.

    Args:
        ports: first and last port that may be used; None for any.
        source: setting with these ports.
    """
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            where = f"in {source} {first}-{last}" if ports else "any"
            return Finding("ports", "ok", f"a free port for the tasks' connections: {where}")
    advice = "wait until other jobs have ended, or ask the administrator for a wider range"
    return Finding("ports", "fail", f"no free port in {source} {first}-{last}", advice)


def logs_finding(cwd: Path) -> Iterator[Finding]:
    """Check that a job can write its logs into the default directory."""
    probe = cwd / f".csrun-doctor-{socket.gethostname()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        text = f"{cwd} cannot be written: {error.strerror}"
        yield Finding("logs", "fail", text, "work in a writable directory, or give --log-dir to csrun_wse")
        return
    yield Finding("logs", "ok", f"{cwd} can be written")

"""Checks of this machine: site file, Python environment, container, CS system, ports."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join

from cs_toolkit.errors import ToolkitError
from cs_toolkit.version import __version__
from csrun.doctor.findings import Finding
from csrun.site.loading import LoadedSite
from csrun.site.model import Site
from csrun.system_status import SystemQueryError, ask_system
from csrun.tasks.command import containerize, require_container
from csrun.tasks.environment import Toolkit, program_environment, program_python

ANSWER_LIMIT_S = 60.0
FRONT_ENDS = ("tensorflow", "torch")

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
    """How a check runs a command on a node instead of on this machine.

    Attributes:
        words: what stands in front of the command.
        is_busy: whether a complaint only means that no node was free.
        summary: a text that is in lines of the scheduler's own, which say less than the command's.
    """

    words: tuple[str, ...]
    is_busy: Callable[[str], bool]
    summary: str


def site_finding(loaded: LoadedSite, launcher: str, installed: Sequence[tuple[str, str]] = ()) -> Finding:
    """Which settings count, and where jobs run.

    Args:
        loaded: the settings.
        launcher: where jobs run.
        installed: title and name of other schedulers that are there, where the site has chosen none.
    """
    source = str(loaded.path) if loaded.path else "no site file, only the environment"
    text = f"{source}; jobs run on the launcher {launcher}"
    for title, name in installed:
        text += f" ({title} is installed here: 'launcher: {name}' would make them use it)"
    if loaded.notes:
        return Finding("site", "note", text, "; ".join(loaded.notes))
    return Finding("site", "ok", text)


def python_finding(
    environment: Mapping[str, str], toolkit: Toolkit, site: Site, cwd: Path, node: Elsewhere | None = None
) -> Finding:
    """Whether `python` in a job is an interpreter with at least one front end.

    Args:
        environment: of the caller; where `node` is given, without the variables of an enclosing job.
        toolkit: whose interpreter it is where the site has no container.
        site: container settings.
        cwd: working directory.
        node: where the command runs; None: on this machine.
    """
    words = _before(node) + containerize(("python", "-c", _LIST_PACKAGES, *FRONT_ENDS), site, cwd)
    env = program_environment(environment, toolkit, site).apply(environment)
    where = "the container" if site.container != "none" else str(program_python(site, toolkit).parent)
    advice = _IMAGE if site.container != "none" else _OWN if site.python else _SETUP
    try:
        done = subprocess.run(
            words, env=env, cwd=cwd, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("python", "fail", f"python of {where} cannot be run: {error}", advice)
    if done.returncode and node and node.is_busy(done.stderr):
        return Finding("python", "note", "not checked: no node was free", "run it again later")
    if done.returncode:
        return Finding("python", "fail", f"python of {where} fails: {_last_words(done.stderr, node)}", advice)
    versions = json.loads(done.stdout.splitlines()[-1])
    there = [f"{name} {versions[name]}" for name in FRONT_ENDS if versions[name]]
    if not there:
        return Finding("python", "fail", f"Python {versions['python']} of {where} has no front end", advice)
    return Finding("python", "ok", f"Python {versions['python']} of {where} with {', '.join(there)}")


_SETUP = "install the toolkit with a front end: 'make setup', or pip install 'cs-toolkit[tf]'"
_OWN = "install the toolkit there: PYTHON -m pip install 'cs-toolkit[tf]', or correct python of the site"
_IMAGE = "use an image with Python and TensorFlow or PyTorch: container_image of the site"


def _before(node: Elsewhere | None) -> tuple[str, ...]:
    return node.words if node else ()


def _last_words(stderr: str, node: Elsewhere | None = None) -> str:
    """What a command has said last; the scheduler's own summary only where there is nothing else."""
    lines = stderr.strip().splitlines()
    own = [line for line in lines if node is None or node.summary not in line]
    return (own or lines or ["without a word"])[-1]


def container_finding(
    environment: Mapping[str, str], toolkit: Toolkit, site: Site, cwd: Path, node: Elsewhere | None = None
) -> Finding:
    """Whether the site's container runtime starts a program in its image; arguments as above."""
    if site.container == "none":
        return Finding("container", "ok", "none: programs run in the toolkit's own environment")
    try:
        if node is None:
            require_container(site, environment.get("PATH", ""))
        words = _before(node) + containerize(("true",), site, cwd)
        env = program_environment(environment, toolkit, site).apply(environment)
        done = subprocess.run(
            words, env=env, cwd=cwd, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False
        )
    except (ToolkitError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("container", "fail", str(error), "correct container and container_image of the site")
    if done.returncode and node and node.is_busy(done.stderr):
        return Finding("container", "note", "not checked: no node was free", "run it again later")
    if done.returncode:
        said = _last_words(done.stderr, node)
        text = f"{site.container} does not start a program in {site.container_image}: {said}"
        return Finding("container", "fail", text, f"try it by hand: {join(words)}")
    where = ", on a node" if node else ""
    return Finding("container", "ok", f"{site.container}, {site.container_image}{where}")


def system_finding(address: str, toolkit: Toolkit) -> Finding:
    """Whether the CS system answers, and which version it is."""
    if not address:
        text = "no address is configured; programs get it with --cs_ip"
        return Finding("CS system", "note", text, "set cs_ip of the site, or check one with --cs-ip")
    try:
        status = ask_system(address, toolkit)
    except SystemQueryError as error:
        return Finding("CS system", "fail", str(error), _START)
    who = f"{status['name']} {status['version']}"
    text = f"{address} answers: {who}, {status['state']}, fabric {status['fabric']}"
    if status["version"] != __version__:
        return Finding(
            "CS system", "note", text, f"this toolkit is {__version__}: use the same on both sides"
        )
    return Finding("CS system", "ok", text)


_START = "start it ('cs_system serve'), or correct cs_ip of the site"


def port_finding(ports: tuple[int, int] | None, source: str = "") -> Finding:
    """Whether a launcher finds a port that the tasks of a job can connect to.

    Args:
        ports: first and last one that may be used; None: any.
        source: which setting says so.
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
    """Whether a job can write its logs where it would."""
    probe = cwd / f".csrun-doctor-{socket.gethostname()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        text = f"{cwd} cannot be written: {error.strerror}"
        yield Finding("logs", "fail", text, "work in a directory of your own, or give --log-dir to csrun_wse")
        return
    yield Finding("logs", "ok", f"{cwd} can be written")

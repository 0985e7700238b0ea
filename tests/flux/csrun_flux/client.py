"""Flux's commands as functions. Only this module runs `flux`, except for the jobs themselves."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csrun.errors import CsrunError
from csrun.schedulers.hostlist import expand_hostlist
from csrun_flux.place import ascii_id

COMMAND_LIMIT_S = 20.0
_RESOURCE_FORMAT = "{state}|{nnodes}|{ncores}|{nodelist}"
_JOB_PREFIXES = ("FLUX_JOB_", "FLUX_TASK_", "FLUX_KVS_NAMESPACE", "FLUX_PMI_")
_UNITS_S = {"": 60.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class FluxError(CsrunError):
    """Flux has refused a request, or one of its commands has failed."""

    exit_code = 1


class FluxRequestError(FluxError):
    """The requested resource does not exist or does not fit this instance."""

    exit_code = 2


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without variables of an enclosing job."""
    return {name: text for name, text in environment.items() if not name.startswith(_JOB_PREFIXES)}


@dataclass(frozen=True, slots=True)
class FluxJob:
    """A job as `flux jobs` shows it.

    Attributes:
        state: DEPEND, PRIORITY, SCHED, RUN, CLEANUP or INACTIVE.
        result: COMPLETED, FAILED, CANCELED or TIMEOUT; "" before the end.
        nodes: host list; "" while it waits.
        dependencies: that it still waits for.
        urgency: 0 for a job on hold.
        exception: type and note of the exception that has ended it; "" for none.
        start_s: expected start, seconds since 1970; 0 if unknown.
    """

    job_id: str
    name: str
    user: str
    state: str
    result: str
    nodes: str
    num_nodes: int
    dependencies: tuple[str, ...]
    urgency: int
    priority: int
    submitted_s: float
    exception: str
    start_s: float

    @property
    def waiting(self) -> bool:
        """Whether the job has no nodes yet."""
        return self.state in ("NEW", "DEPEND", "PRIORITY", "SCHED")


@dataclass(frozen=True, slots=True)
class Resources:
    """Nodes in one state ("up", "down", "free"), and the number of their cores together."""

    nodes: tuple[str, ...]
    cores: int

    @property
    def node_cores(self) -> int:
        """Number of cores of each node, if all are alike."""
        return self.cores // len(self.nodes) if self.nodes else 0


class FluxClient:
    """Runs commands on the instance that the environment selects.

    Args:
        environment: of the commands; its FLUX_URI selects the instance.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**submission_environment(environment), "LC_ALL": "C.UTF-8"}

    def run(self, *arguments: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Run `flux` and return its output.

        Raises:
            FluxError: it is missing, has failed or does not answer.
        """
        try:
            done = subprocess.run(
                ("flux", *arguments),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise FluxError(
                "flux is not installed on this machine; expected Flux's commands in PATH: install "
                "flux-core, or use --launcher=local"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise FluxError(
                f"flux {arguments[0]} has not answered within {limit_s:g} s; expected a running broker: "
                f"check 'flux uptime'"
            ) from error
        if done.returncode:
            raise explain(arguments[0], done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="surrogateescape")

    def jobs(self, ids: Collection[str] = (), *, limit_s: float = COMMAND_LIMIT_S) -> list[FluxJob]:
        """Return these jobs, without those that Flux does not know, or all waiting and running jobs."""
        if not ids:
            chosen = ["--user=all", "--count=0"]
            return parse_jobs(self.run("jobs", "--json", *chosen, limit_s=limit_s))
        found = []
        for job_id in ids:  # one unknown id would hide all others
            try:
                found += parse_jobs(self.run("jobs", "--json", job_id, limit_s=limit_s))
            except FluxError as error:
                if " unknown" not in str(error):
                    raise
        return found

    def resources(self) -> dict[str, Resources]:
        """Return the nodes by state."""
        text = self.run("resource", "list", "--states=up,down,free", "-no", _RESOURCE_FORMAT)
        return parse_resources(text)

    def queues(self) -> tuple[str, ...]:
        """Return the names of the queues; empty if the instance has only the anonymous one."""
        names = self.run("queue", "list", "-no", "{queue}").split()
        return tuple(name.rstrip("*") for name in names)

    def is_local(self) -> bool:
        """Return True if all brokers run on this machine."""
        try:
            return self.run("getattr", "tbon.endpoint").startswith("ipc://")
        except FluxError:  # a single broker has no endpoint
            return self.run("getattr", "size").strip() == "1"

    def version(self) -> str:
        """Return the version of the commands."""
        found = re.search(r"commands:\s+(\S+)", self.run("version"))
        return found[1] if found else "of unknown version"

    def cancel(self, job_id: str, limit_s: float = COMMAND_LIMIT_S) -> None:
        """Cancel a job that waits or runs."""
        self.run("cancel", job_id, limit_s=limit_s)

    def signal(self, job_id: str, signum: int) -> None:
        """Send a signal to all tasks of a running job."""
        self.run("job", "kill", f"--signal={int(signum)}", job_id)

    def submit(self, script: Path) -> str:
        """Submit a batch script and return the id of the job."""
        return ascii_id(self.run("batch", str(script)).strip())


def parse_jobs(text: str) -> list[FluxJob]:
    """Parse the output of `flux jobs --json`: a list of jobs, or the one that was named."""
    data = json.loads(text or "{}")
    return [_parse_job(each) for each in data.get("jobs", [data] if "jobid" in data else [])]


def _parse_job(data: Mapping[str, Any]) -> FluxJob:
    exception = data.get("exception", {})
    words = (exception.get("type", ""), exception.get("note", ""))
    start_s = data.get("annotations", {}).get("sched", {}).get("t_estimate") or 0
    return FluxJob(
        job_id=ascii_id(data["jobid"]),
        name=data.get("name", ""),
        user=data.get("username", ""),
        state=data["state"],
        result=data.get("result", ""),
        nodes=data.get("nodelist", ""),
        num_nodes=int(data.get("nnodes") or 0),
        dependencies=tuple(map(ascii_id, data.get("dependencies", ()))),
        urgency=int(data.get("urgency", 16)),
        priority=int(data.get("priority") or 0),
        submitted_s=float(data.get("t_submit", 0)),
        exception=": ".join(filter(None, words)) if exception.get("occurred") else "",
        start_s=float(start_s),
    )


def parse_resources(text: str) -> dict[str, Resources]:
    """Parse the output of `flux resource list` with `_RESOURCE_FORMAT`, a line for each kind of nodes."""
    found: dict[str, Resources] = {}
    for line in text.splitlines():
        state, _, cores, nodes = line.split("|")
        before = found.get(state, Resources((), 0))
        names = tuple(expand_hostlist(nodes)) if nodes.strip() else ()
        found[state] = Resources(before.nodes + names, before.cores + int(cores))
    return found


_UNAVAILABLE = re.compile(r"flux_open|broker|Unable to connect|No such file or directory.*local://")
_REQUESTS: Mapping[str, str] = {
    r"is not a valid queue|Invalid queue": (
        "unknown queue; expected one that 'flux queue list' shows: correct --queue or 'queue' of the site's "
        "section 'flux'"
    ),
    r"unsatisfiable|infeasible|exceeds policy limit|job duration": (
        "no nodes of this instance can ever provide that; expected nodes and a time that 'flux resource "
        "list' and 'flux queue list' show: request less"
    ),
}


def explain(command: str, complaint: str) -> FluxError:
    """Return the error for the stderr of `flux COMMAND`, which it quotes."""
    summary = shorten_error(complaint)
    for pattern, text in _REQUESTS.items():
        if re.search(pattern, complaint):
            return FluxRequestError(f"{text} (flux {command} says: {summary})")
    if _UNAVAILABLE.search(complaint):
        return FluxError(
            f"Flux does not answer; expected a running instance: start csrun_wse on a node of one, or set "
            f"FLUX_URI (flux {command} says: {summary})"
        )
    return FluxError(
        f"flux {command} failed: {summary or 'no message'}; expected no error of Flux here: correct the "
        f"request, or ask the administrator of the cluster"
    )


def shorten_error(complaint: str) -> str:
    """Return the last two lines of a message without the name of the command."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    plain = (re.sub(r"^([\d.]+s: )?(flux-?\S*: )?(ERROR: |FATAL: )?", "", line) for line in lines)
    return "; ".join([line for line in plain if not line.startswith("jobid: ")][-2:])


def duration_seconds(text: str) -> float | None:
    """Parse a Flux standard duration, or minutes without a unit; infinity for "", None for other texts."""
    if text in ("", "inf", "0"):
        return float("inf")
    found = re.fullmatch(r"(\d+(?:\.\d*)?)(ms|s|m|h|d|)", text)
    return float(found[1]) * _UNITS_S[found[2]] if found else None

"""Slurm's commands as functions. Only this module runs squeue, scontrol, sinfo, sbatch and the like.

Accounting is not needed: `accounting_state` asks sacct only for jobs that the controller has forgotten.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import join

from csrun.errors import CsrunError

COMMAND_LIMIT_S = 20.0  # clients retry for much longer if the controller is down

INPUT_PREFIXES = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_")
# Variables with Slurm's prefix that select the cluster and are not options of a job.
CONFIGURATION_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")

ENDED_STATES = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)

_UNUSABLE = ("down", "drained", "draining", "fail", "failing", "not_responding", "powered_down", "unknown")

# Explicit formats are the same from Slurm 22.05 to 26.05; the JSON output differs between releases.
_SEPARATOR = "\x1f"
_QUEUE_FORMAT = _SEPARATOR.join(
    ("%i", "%T", "%r", "%N", "%u", "%j", "%b", "%W", "%S", "%L", "%P", "%Q", "%D")
)
_NODE_FORMAT = _SEPARATOR.join(("%N", "%c", "%m", "%G", "%P", "%T", "%E"))
_PARTITION_FORMAT = _SEPARATOR.join(("%P", "%a", "%l", "%D"))


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without the variables of an enclosing job."""
    # Slurm's commands would take them as options of the new job.
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(INPUT_PREFIXES) or name in CONFIGURATION_VARIABLES
    }


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job, or one component of a heterogeneous job, as squeue shows it.

    Attributes:
        job_id: number of the job; of a heterogeneous job that of its leader.
        component: number of the component; 0 for a job that has only one.
        state: PENDING, RUNNING, COMPLETING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, ...
        reason: Slurm's keyword for why it waits or has failed; "" for none.
        nodes: host list; "" while it waits.
        resources: generic resources for each node such as "cs:1"; "" for none.
        licences: "" for none.
        start: expected or actual start, ISO local time; "" if unknown.
        time_left: until the time limit, as [days-]hours:minutes:seconds or UNLIMITED.
        priority: jobs with a higher priority start earlier.
        num_nodes: number of nodes that it has or needs; 0 if unknown.
    """

    job_id: str
    component: int
    state: str
    reason: str
    nodes: str
    user: str
    name: str
    resources: str
    licences: str
    start: str
    time_left: str
    partition: str
    priority: int
    num_nodes: int = 0

    @property
    def pending(self) -> bool:
        """True if the job waits to start."""
        return self.state == "PENDING"

    @property
    def active(self) -> bool:
        """True if the job waits, runs or is completing."""
        return self.state not in ENDED_STATES


@dataclass(frozen=True, slots=True)
class Node:
    """A node in one of its partitions; memory in MiB, `resources` as "cs:1,gpu:4" or "".

    `reason` is the administrator's reason for taking it out of use; "" for none.
    """

    name: str
    cpus: int
    memory_mib: int
    resources: str
    partition: str
    state: str
    reason: str = ""

    @property
    def usable(self) -> bool:
        """True if jobs can start on the node."""
        return not any(bad in self.state.lower() for bad in _UNUSABLE)

    @property
    def trouble(self) -> str:
        """State and reason in a few words: `cs-node1 is drained (power supply, since Monday)`."""
        return f"{self.name} is {self.state.lower()}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition; `time_limit` in Slurm's format, "infinite" for none."""

    name: str
    default: bool
    up: bool
    time_limit: str
    num_nodes: int


class SlurmClient:
    """Runs commands on the cluster that the environment selects.

    Args:
        environment: of the commands; its SLURM_CONF selects the cluster.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = submission_environment(environment)

    def run(self, *argv: str, limit_s: float = COMMAND_LIMIT_S) -> str:
        """Run one of Slurm's commands and return its output.

        Raises:
            SlurmError: the command is missing, has failed or does not answer.
        """
        # Without the file Slurm's commands wait for a minute and then report less than this.
        named = self._environment.get("SLURM_CONF")
        if named and not Path(named).is_file():
            raise SlurmUnavailableError(
                f"SLURM_CONF is {named!r}, which does not exist; expected slurm.conf of the cluster: correct "
                f"the variable, or unset it if Slurm finds its configuration by itself"
            )
        try:
            done = subprocess.run(
                argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise SlurmUnavailableError(
                f"{argv[0]} is not installed on this machine; expected Slurm's commands in PATH: install "
                f"them (Debian: apt-get install slurm-client), or use --launcher=local"
            ) from error
        except subprocess.TimeoutExpired as error:
            complaint = (error.stderr or b"").decode(errors="replace")
            raise explain(
                argv[0], complaint or f"no answer within {limit_s:g} s from: {join(argv)}"
            ) from error
        output = done.stdout.decode(errors="surrogateescape")
        if done.returncode != 0:
            raise explain(argv[0], done.stderr.decode(errors="replace") or output)
        return output

    def jobs(
        self, job_id: str | None = None, name: str | None = None, limit_s: float = COMMAND_LIMIT_S
    ) -> list[QueuedJob]:
        """Return the jobs that the controller remembers, in all states; components of a job in order.

        Args:
            job_id: only this job; none if the controller has forgotten it.
            name: only jobs with this name.
            limit_s: timeout of the query.
        """
        chosen = [f"--jobs={job_id}"] if job_id else []
        chosen += [f"--name={name}"] if name else []
        try:
            text = self.run(
                *("squeue", "--noheader", "--states=all", f"--format={_QUEUE_FORMAT}", *chosen),
                limit_s=limit_s,
            )
        except NoSuchJobError:
            return []
        return parse_queue(text)

    def queue(self) -> list[QueuedJob]:
        """Return all waiting and running jobs, in the order of their priority."""
        text = self.run(
            "squeue", "--noheader", "--states=PD,R,CF,CG,S", "--sort=-p,i", f"--format={_QUEUE_FORMAT}"
        )
        return parse_queue(text)

    def nodes(self) -> list[Node]:
        """Return every node, once for each of its partitions."""
        return parse_nodes(self.run("sinfo", "--noheader", "--Node", f"--format={_NODE_FORMAT}"))

    def cpus_for_jobs(self) -> dict[str, int]:
        """Return the number of CPUs for jobs of every node, without CPUs reserved for the system."""
        return parse_cpus_for_jobs(self.run("scontrol", "--oneliner", "show", "nodes"))

    def partitions(self) -> list[Partition]:
        """Return all partitions."""
        return parse_partitions(self.run("sinfo", "--noheader", f"--format={_PARTITION_FORMAT}"))

    def configuration(self) -> dict[str, str]:
        """Return the controller's configuration, by the names of slurm.conf."""
        pairs = (
            line.split("=", 1) for line in self.run("scontrol", "show", "config").splitlines() if "=" in line
        )
        return {name.strip(): value.strip() for name, value in pairs}

    def licences(self) -> dict[str, tuple[int, int]]:
        """Return (total, used) of every license, by name."""
        return parse_licences(self.run("scontrol", "--oneliner", "show", "lic"))

    def accounting_state(self, job_id: str) -> tuple[str, str] | None:
        """Return state and exit code ("code:signal") of a job from accounting; None without accounting."""
        try:
            text = self.run("sacct", "-n", "-P", "-X", "-j", job_id, "-o", "State,ExitCode")
        except SlurmError:  # "Slurm accounting storage is disabled", or its database is down
            return None
        for line in text.splitlines():
            state, _, code = line.partition("|")
            return state.split()[0], code  # "CANCELLED by 1000" is CANCELLED
        return None

    def submit(self, script: Path) -> str:
        """Submit a batch script and return the id of the job.

        Raises:
            SlurmError: Slurm refuses it; nothing was submitted.
        """
        # With several clusters the answer is "id;cluster".
        return self.run("sbatch", "--parsable", str(script)).strip().partition(";")[0]

    def cancel(self, job_id: str) -> None:
        """Cancel a job."""
        self.run("scancel", job_id)

    def step_of(self, name: str, limit_s: float = COMMAND_LIMIT_S) -> str | None:
        """Return "JOB.STEP" of the user's running step with this name; None if there is none."""
        form = f"--format=%i{_SEPARATOR}%j"
        text = self.run("squeue", "--noheader", "--steps", f"--user={os.getuid()}", form, limit_s=limit_s)
        steps = (line.partition(_SEPARATOR) for line in text.splitlines())
        return next((step_id.strip() for step_id, _, other in steps if other.strip() == name), None)

    def signal_step(self, step_id: str, signum: int, limit_s: float = COMMAND_LIMIT_S) -> None:
        """Send a signal to all processes of a step ("JOB.STEP")."""
        self.run("scancel", f"--signal={signum:d}", step_id, limit_s=limit_s)

    def requeue(self, job_id: str) -> None:
        """Put a batch job back into the queue; it restarts with the same id."""
        self.run("scontrol", "requeue", job_id)


def parse_queue(text: str) -> list[QueuedJob]:
    """Parse the output of `squeue --format` with `_QUEUE_FORMAT`."""
    jobs = []
    for line in text.splitlines():
        fields = line.split(_SEPARATOR)
        if len(fields) != 13:
            continue  # part of a job name with a line break
        (
            identity,
            state,
            reason,
            nodes,
            user,
            name,
            gres,
            licences,
            start,
            left,
            partition,
            priority,
            num_nodes,
        ) = fields
        job_id, _, component = identity.partition("+")
        jobs.append(
            QueuedJob(
                job_id=job_id,
                component=_count(component),
                state=state,
                reason=_or_empty(reason),
                nodes=nodes,
                user=user,
                name=name,
                resources=plain_resources(gres),
                licences=_or_empty(licences),
                start=_or_empty(start),
                time_left=left,
                partition=partition,
                priority=_count(priority),
                num_nodes=_count(num_nodes),
            )
        )
    return jobs


def parse_nodes(text: str) -> list[Node]:
    """Parse the output of `sinfo --Node` with `_NODE_FORMAT`."""
    nodes = []
    for line in text.splitlines():
        fields = line.split(_SEPARATOR)
        if len(fields) != 7:
            continue  # part of a reason with a line break
        name, cpus, memory, gres, partition, state, reason = fields
        nodes.append(
            Node(
                name,
                _count(cpus),
                _count(memory),
                plain_resources(gres),
                partition.rstrip("*"),
                state.rstrip("*"),
                _or_empty(reason),
            )
        )
    return nodes


def parse_cpus_for_jobs(text: str) -> dict[str, int]:
    """Parse the output of `scontrol --oneliner show nodes`."""
    # CPUEfctv, the CPUs without those reserved for the system, exists since Slurm 21.08.
    found = {}
    for line in text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        count = _count(fields.get("CPUEfctv") or fields.get("CPUTot", ""))
        if count and "NodeName" in fields:
            found[fields["NodeName"]] = count
    return found


def parse_partitions(text: str) -> list[Partition]:
    """Parse the output of `sinfo` with `_PARTITION_FORMAT`: a line for each kind of nodes in a partition."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.split(_SEPARATOR)
        if len(fields) != 4:
            continue
        name, up, limit, count = fields
        plain = name.rstrip("*")
        before = found[plain].num_nodes if plain in found else 0
        found[plain] = Partition(plain, name.endswith("*"), up == "up", limit, before + _count(count))
    return list(found.values())


def parse_licences(text: str) -> dict[str, tuple[int, int]]:
    """Parse the output of `scontrol --oneliner show lic`."""
    licences = {}
    for line in text.splitlines():
        values = _pairs(line)
        if "LicenseName" in values:
            licences[values["LicenseName"]] = _count(values.get("Total", "")), _count(values.get("Used", ""))
    return licences


def plain_resources(text: str) -> str:
    """Normalize generic resources: "gres:cs:1", "gres/cs:1" and "cs:1(S:0)" are all "cs:1"; "" for none."""
    plain = (
        item.removeprefix("gres:").removeprefix("gres/").partition("(")[0]
        for item in _or_empty(text).split(",")
    )
    return ",".join(item for item in plain if item)


def _pairs(line: str) -> dict[str, str]:
    """Parse Name=value pairs; words without a name belong to the previous value."""
    pairs: dict[str, str] = {}
    last = ""
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals and name.replace("/", "").replace(":", "").isalnum():
            last = name
            pairs[name] = value
        elif last:
            pairs[last] += f" {word}"
    return pairs


def _count(text: str) -> int:
    """Return a number in the output of a command; 0 for N/A and the like."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _or_empty(text: str) -> str:
    return "" if text in ("(null)", "N/A", "None", "none", "Unknown", "n/a") else text


class SlurmError(CsrunError):
    """Slurm has refused a request, or one of its commands has failed."""

    exit_code = 1


class SlurmUnavailableError(SlurmError):
    """Slurm is unavailable: no commands, no controller, or no authentication."""


class SlurmRequestError(SlurmError):
    """The requested resource does not exist or does not fit this cluster."""

    exit_code = 2


class NoSuchJobError(SlurmError):
    """Slurm does not know a job with this id (any more)."""


_UNAVAILABLE: Mapping[str, str] = {
    r"[Mm]unge|authentication error|auth_g_": (
        "Slurm's authentication does not work on this machine; expected a running munged with the "
        "cluster's key: ask the administrator to start it (systemctl start munge)"
    ),
    r"Unable to contact slurm controller|slurm_persist_conn|Connection refused": (
        "the Slurm controller does not answer; expected a running slurmctld: check 'scontrol ping' and "
        "the file that SLURM_CONF names"
    ),
    r"cannot stat file|Could not establish a configuration source|s_p_parse_file": (
        "Slurm finds no configuration; expected slurm.conf in /etc/slurm or the file that SLURM_CONF "
        "names: correct SLURM_CONF"
    ),
}
_REQUEST: Mapping[str, str] = {
    r"[Ii]nvalid partition": (
        "unknown partition; expected one that 'sinfo' lists: correct --partition or 'partition' "
        "of the site configuration"
    ),
    r"Invalid generic resource|Invalid GRES|TRES gres": (
        "the cluster has no such generic resource; expected one that 'sinfo -o %G' lists: correct "
        "'gres_resource' of the site configuration"
    ),
    r"Invalid license": (
        "the cluster has no such license, or too few; expected one that 'scontrol show lic' lists: "
        "correct 'licence' of the site configuration"
    ),
    r"Invalid account|Invalid qos|[Ii]nvalid account or account/partition": (
        "the account or QOS is not valid for you; expected one that 'sacctmgr show associations "
        "user=$USER' lists: correct --account or --qos"
    ),
    r"Invalid --time|Invalid time limit|Requested time limit": (
        "the time limit cannot be used; expected MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS within the "
        "partition's limit ('sinfo -o %P,%l'): correct --time"
    ),
    r"dependency": (
        "the dependency cannot be used; expected TYPE:JOBID such as afterok:1234 with a job that exists: "
        "correct --dependency"
    ),
    r"Invalid node name": (
        "unknown node; expected one that 'sinfo -N' lists: correct 'gres_node' of the site "
        "configuration or your --nodelist"
    ),
    (
        r"CPU count per node can not be satisfied|Requested node configuration is not available|"
        r"Node count specification invalid|More processors requested|Memory specification"
    ): (
        "no nodes of this cluster can ever provide that; expected nodes, tasks, CPUs and resources that "
        "'sinfo -N -o %N,%c,%m,%G' shows: request less"
    ),
}
_NO_JOB = r"Invalid job id"


def explain(command: str, complaint: str) -> SlurmError:
    """Return the error for the stderr of `command` (srun, sbatch, squeue ...), which it quotes."""
    summary = shorten_error(complaint)
    for pattern, text in _UNAVAILABLE.items():
        if re.search(pattern, complaint):
            return SlurmUnavailableError(f"{text} ({command} says: {summary})")
    if re.search(_NO_JOB, complaint):
        return NoSuchJobError(
            f"Slurm knows no such job; expected the id of a job that waits, runs or has ended within the "
            f"last minutes: see 'squeue' ({command} says: {summary})"
        )
    for pattern, text in _REQUEST.items():
        if re.search(pattern, complaint):
            return SlurmRequestError(f"{text} ({command} says: {summary})")
    return SlurmError(
        f"{command} failed: {summary or 'no message'}; expected no error of Slurm here: correct "
        f"the request, or ask the administrator of the cluster"
    )


def shorten_error(complaint: str) -> str:
    """Return the last two lines of a message, without the name of the command."""
    # Slurm's commands write what has failed first, and the reason last.
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    return "; ".join(re.sub(r"^(s\w+|scontrol): (error: |fatal: )?", "", line) for line in lines[-2:])


_UNLIMITED = ("infinite", "unlimited", "invalid", "n/a", "")
_FORMS = re.compile(
    r"(?:(?P<days>\d+)-(?P<day_hours>\d+)(?::(?P<day_minutes>\d+)(?::(?P<day_seconds>\d+))?)?)"
    r"|(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"
    r"|(?P<only_minutes>\d+)(?::(?P<only_seconds>\d+))?"
)


def limit_seconds(text: str) -> float | None:
    """Parse a time limit into seconds; infinity for no limit, None for an invalid text.

    The formats are MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES and
    DAYS-HOURS:MINUTES:SECONDS (sbatch(1), --time).
    """
    plain = text.strip()
    if plain.lower() in _UNLIMITED:
        return float("inf")
    found = _FORMS.fullmatch(plain)
    if found is None:
        return None
    part = {name: int(value) for name, value in found.groupdict(default="0").items()}
    minutes = part["day_minutes"] + part["minutes"] + part["only_minutes"]
    hours = 24 * part["days"] + part["day_hours"] + part["hours"]
    return float(3600 * hours + 60 * minutes + part["day_seconds"] + part["seconds"] + part["only_seconds"])

"""Checks of `csrun doctor` on a cluster: its configuration, and its nodes by means of a probe job."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from csrun.doctor import Finding, machine
from csrun.schedulers.base import Examination
from csrun.schedulers.slurm.allocation import compress_hostlist
from csrun.schedulers.slurm.arguments import STEP_ARGUMENTS
from csrun.schedulers.slurm.client import (
    Node,
    Partition,
    SlurmClient,
    SlurmError,
    limit_seconds,
    shorten_error,
    submission_environment,
)
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.queue import amount_of, owners_out_of_use
from csrun.schedulers.slurm.survey import port_range
from csrun.site import Site
from csrun.tasks.environment import Toolkit

START_LIMIT_S = 20
ANSWER_LIMIT_S = 20.0
SKEW_LIMIT_S = 2.0  # logs of several nodes are compared; munge fails from 300 s
SUMMARY = "Exited with exit code"  # in srun's line about a failed task
_LINE_BYTES = 65_536


def checks(examination: Examination) -> Iterator[Finding]:
    """Check whether jobs of the site would run on its cluster."""
    site, client = examination.site, SlurmClient(examination.environment)
    try:
        configuration = client.configuration()
        partitions, everything, licences = client.partitions(), client.nodes(), client.licences()
    except SlurmError as error:
        text, _, advice = str(error).partition("; expected ")
        yield Finding("Slurm", "fail", text, f"expected {advice}")
        return
    version = configuration.get("SLURM_VERSION", "of unknown version")
    yield Finding("Slurm", "ok", f"{version}, cluster {configuration.get('ClusterName', '')}")
    yield from partition_findings(site, partitions)
    partition = job_partition(site, partitions)
    members = [node for node in everything if partition and node.partition == partition.name]
    if members:
        yield from node_findings(site, members)
        yield from resource_findings(site, members, licences)
    ports = port_range(configuration.get("SrunPortRange", ""))
    yield machine.port_finding(ports, "Slurm's SrunPortRange")
    if examination.probe and members:
        yield from _probe(examination, members, ports)
    elif site.container != "none":
        text = "not checked: only the nodes need runtime and image"
        yield Finding("container", "note", text, "omit --no-probe")


def _probe(
    examination: Examination, members: Sequence[Node], ports: tuple[int, int] | None
) -> Iterator[Finding]:
    site, toolkit, cwd = examination.site, examination.toolkit, examination.cwd
    count = min(examination.nodes or site.def_nodes, len(members))
    needed = [str(toolkit.python), *site.mount_dirs]
    needed += [site.container_image] if site.container_image else []
    options = SlurmOptions.of_site(site)
    own = submission_environment(examination.environment)
    if site.container != "none":
        node = machine.Elsewhere(srun_prefix(1, options), is_busy, SUMMARY)
        yield machine.container_finding(own, toolkit, site, cwd, node)
        yield machine.python_finding(own, toolkit, site, cwd, node)
    run = probe_nodes(count, options, own, toolkit, cwd, needed, ports)
    yield from probe_findings(run, count)


def job_partition(site: Site, partitions: Sequence[Partition]) -> Partition | None:
    """Return the partition of the site's jobs; None if it does not exist."""
    wanted = site.partition.partition(",")[0]
    for partition in partitions:
        if partition.name == wanted or (not wanted and partition.default):
            return partition
    return None


def partition_findings(site: Site, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check that the partition exists, is up, and allows the site's time limit."""
    names = ", ".join(partition.name for partition in partitions)
    partition = job_partition(site, partitions)
    if partition is None:
        text = f"unknown partition {site.partition!r}" if site.partition else "there is no default partition"
        yield Finding("partition", "fail", text, f"set 'partition' of the site to one of: {names}")
        return
    if not partition.up:
        advice = "ask the administrator, or set 'partition' of the site to another one"
        yield Finding("partition", "fail", f"{partition.name} starts no jobs (it is down)", advice)
        return
    yield Finding("partition", "ok", f"{partition.name}, {partition.num_nodes} nodes")
    limit_s, asked_s = limit_seconds(partition.time_limit), limit_seconds(site.time_limit)
    if site.time_limit and asked_s is None:
        text = f"time_limit of the site is {site.time_limit!r}, which is not a time"
        yield Finding("time limit", "fail", text, "set it as for sbatch --time, for example '4:00:00'")
    elif site.time_limit and limit_s is not None and asked_s is not None and asked_s > limit_s:
        above = f"above the {partition.time_limit} of {partition.name}"
        text = f"time_limit of the site is {site.time_limit}, {above}"
        yield Finding("time limit", "fail", text, "lower time_limit, or choose another partition")
    else:
        text = f"{site.time_limit or 'none configured'}; {partition.name} allows {partition.time_limit}"
        yield Finding("time limit", "ok", text)


def node_findings(site: Site, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Check that a job with the site's default layout fits on the usable nodes.

    Args:
        site: with the defaults.
        nodes: of the partition.
    """
    names = {node.name for node in nodes}
    usable = [node for node in nodes if node.usable]
    out = sorted(names - {node.name for node in usable})
    if out:
        troubles = "; ".join(dict.fromkeys(node.trouble for node in nodes if node.name in out))
        text = f"{len(out)} of {len(names)} cannot be used: {compress_hostlist(out)}"
        yield Finding("nodes", "note", text, f"{troubles}; jobs run on the others")
    else:
        yield Finding("nodes", "ok", f"all {len(names)} can be used")
    if site.def_nodes > len(usable):
        text = f"def_nodes is {site.def_nodes}, and {len(usable)} nodes can be used"
        yield Finding("default job", "fail", text, "lower def_nodes of the site, or return nodes to service")
        return
    per_node = sorted((node.cpus for node in usable), reverse=True)[site.def_nodes - 1]
    wanted = site.def_tasks_per_node * (site.def_cpus_per_task or 1)
    each = f" x {site.def_cpus_per_task} CPUs" if site.def_cpus_per_task else ""
    size = f"{site.def_nodes} nodes x {site.def_tasks_per_node} tasks{each}"
    if wanted > per_node:
        text = f"{size} needs {wanted} CPUs on a node, and the nodes have {per_node}"
        yield Finding(
            "default job", "fail", text, "lower def_tasks_per_node or def_cpus_per_task of the site"
        )
    else:
        yield Finding("default job", "ok", f"{size} fits")


def resource_findings(
    site: Site, nodes: Sequence[Node], licences: Mapping[str, tuple[int, int]]
) -> Iterator[Finding]:
    """Check that the generic resource or license of the CS system exists."""
    if site.gres_resource:
        yield _gres_finding(site, nodes)
    if site.licence:
        name, _, count = site.licence.partition(":")
        total, used = licences.get(name, (0, 0))
        if total < int(count or 1):
            existing = ", ".join(sorted(licences)) or "none"
            text = f"the license {site.licence!r} does not exist ({name}: {total}; all: {existing})"
            yield Finding(
                "licence", "fail", text, "correct 'licence' of the site: 'scontrol show lic' lists them"
            )
        else:
            yield Finding("licence", "ok", f"{site.licence}, {used} of {total} in use")
    if not site.gres_resource and not site.licence:
        text = "neither gres_resource nor licence is configured: two jobs may get the CS system at once"
        yield Finding("CS resource", "note", text, "set one of them, so that Slurm queues for the system")


def _gres_finding(site: Site, nodes: Sequence[Node]) -> Finding:
    parts = site.gres_resource.split(":")  # name[:type][:count]
    name, wanted = parts[0], int(parts[-1]) if parts[-1].isdigit() else 1
    owners = {node.name: amount for node in nodes if (amount := amount_of(node, name))}
    if not owners:
        text = f"no node of the partition has the generic resource {name!r}"
        return Finding(
            "gres", "fail", text, "correct gres_resource of the site: 'sinfo -N -o %N,%G' lists them"
        )
    if max(owners.values()) < wanted:
        text = f"{site.gres_resource} is more than any node has ({max(owners.values())})"
        return Finding("gres", "fail", text, "lower the count in gres_resource of the site")
    where = compress_hostlist(sorted(owners))
    if out := owners_out_of_use(nodes, site.gres_resource, site.gres_node):
        text = f"no job can run: {out}, and holds the CS system"
        advice = "have the administrator return it to service: scontrol update nodename=NODE state=resume"
        return Finding("gres", "fail", text, advice)
    if site.gres_node and site.gres_node not in owners:
        text = f"{name!r} is on {where}, and gres_node of the site is {site.gres_node}"
        return Finding("gres", "fail", text, f"set gres_node to {sorted(owners)[0]}")
    return Finding("gres", "ok", f"{site.gres_resource} on {where}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a probe.

    Attributes:
        shared: the doctor's file is visible under the same path.
        missing: paths that a job needs and that do not exist.
        skew_s: clock of the node minus that of this machine, plus the latency of the message.
    """

    node: str
    shared: bool
    missing: tuple[str, ...]
    skew_s: float


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """The result of the probe job: the answers of the nodes, and the error message of srun."""

    answers: tuple[Answer, ...]
    complaint: str


def srun_prefix(count: int, options: SlurmOptions) -> tuple[str, ...]:
    """Return the srun that runs a command on `count` nodes, and fails if the cluster is busy."""
    return (
        "srun",
        *STEP_ARGUMENTS,
        "--job-name=csrun-doctor",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--immediate={START_LIMIT_S}",
        *options.arguments,
    )


def probe_nodes(
    count: int,
    options: SlurmOptions,
    environment: Mapping[str, str],
    toolkit: Toolkit,
    cwd: Path,
    needed: Sequence[str],
    ports: tuple[int, int] | None,
) -> ProbeRun:
    """Run the probe on `count` nodes, without waiting for a busy cluster.

    Args:
        count: number of nodes.
        options: partition, account and so on of the site's jobs.
        environment: of the caller, without the variables of an enclosing job.
        toolkit: with the interpreter of the probe.
        cwd: directory that must be visible on all nodes.
        needed: further paths that every node must have.
        ports: Slurm's SrunPortRange; None for any port.
    """
    secret = token_hex(8)
    token_file = cwd / f".csrun-doctor-{secret}"
    token_file.touch()
    try:
        with _listen(ports) as listener:
            script = Path(__file__).with_name("probe.py")
            arguments = [
                *srun_prefix(count, options),
                *[str(toolkit.python), "-I", "-S", str(script)],
                *[str(token_file), str(listener.getsockname()[1]), secret, *needed],
            ]
            return _gather(arguments, listener, environment, secret, count)
    finally:
        with suppress(OSError):
            token_file.unlink()


def is_busy(complaint: str) -> bool:
    """Return True if srun has failed because no node was free, which is not a problem for a run."""
    return "nodes are busy" in complaint or "Immediate execution" in complaint


def probe_findings(run: ProbeRun, count: int) -> Iterator[Finding]:
    """Evaluate the answers. Pure."""
    if not run.answers:
        error = shorten_error(run.complaint) or "no node has answered"
        if is_busy(run.complaint):
            text = f"not checked: {count} nodes were not free within {START_LIMIT_S} s"
            yield Finding("on the nodes", "note", text, "run it again later, or with fewer --nodes")
            return
        advice = "try 'srun --nodes=1 hostname'; nodes must reach the ports of this machine"
        yield Finding("on the nodes", "fail", f"the probe did not run: {error}", advice)
        return
    nodes = compress_hostlist(sorted(answer.node for answer in run.answers))
    if len(run.answers) < count:
        text = f"only {nodes} of {count} nodes connected back to this machine"
        advice = "let the nodes reach this machine's ports (SrunPortRange of slurm.conf names them)"
        yield Finding("connections", "fail", text, advice)
    else:
        yield Finding("connections", "ok", f"{nodes} connected back to this machine")
    blind = sorted(answer.node for answer in run.answers if not answer.shared)
    if blind:
        text = f"this directory is not the same on {compress_hostlist(blind)}"
        yield Finding("shared files", "fail", text, "work in a directory that all nodes share (see df -h .)")
    else:
        yield Finding("shared files", "ok", "all of them see this directory")
    yield from _missing_findings(run.answers)
    worst = max(run.answers, key=lambda answer: abs(answer.skew_s))
    if abs(worst.skew_s) > SKEW_LIMIT_S:
        text = f"the clock of {worst.node} is {worst.skew_s:+.1f} s off this machine's"
        yield Finding("clocks", "fail" if abs(worst.skew_s) > 60 else "note", text, "set up NTP on the nodes")
    else:
        yield Finding("clocks", "ok", f"at most {abs(worst.skew_s):.1f} s apart")


def _missing_findings(answers: Sequence[Answer]) -> Iterator[Finding]:
    missing = sorted({path for answer in answers for path in answer.missing})
    for path in missing:
        nodes = compress_hostlist(sorted(answer.node for answer in answers if path in answer.missing))
        yield Finding(
            "on the nodes", "fail", f"{path} does not exist on {nodes}", "put it where all nodes see it"
        )
    if not missing:
        yield Finding("on the nodes", "ok", "toolkit, image and mounted directories exist")


def _listen(ports: tuple[int, int] | None) -> socket.socket:
    first, last = ports or (0, 0)
    for port in range(first, last + 1):
        listener = socket.socket()
        try:
            listener.bind(("", port))
        except OSError:
            listener.close()
            continue
        listener.listen(128)
        return listener
    raise OSError(f"no free port in {first}-{last}")


def _gather(
    arguments: Sequence[str], listener: socket.socket, environment: Mapping[str, str], secret: str, count: int
) -> ProbeRun:
    listener.settimeout(0.1)
    answers: list[Answer] = []
    with subprocess.Popen(
        arguments, env=environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as srun:
        try:
            deadline_s = time.monotonic() + START_LIMIT_S + ANSWER_LIMIT_S
            while len(answers) < count and time.monotonic() < deadline_s:
                ended = srun.poll() is not None
                answer = _accept(listener, secret)
                if answer:
                    answers.append(answer)
                elif ended:
                    break
        finally:
            with suppress(subprocess.TimeoutExpired):
                srun.wait(5)
            if srun.poll() is None:
                srun.terminate()
        complaint = srun.stderr.read() if srun.stderr else ""
    return ProbeRun(tuple(answers), complaint)


def _accept(listener: socket.socket, secret: str) -> Answer | None:
    """Return the answer of the next probe; None if none has connected."""
    try:
        connection, _ = listener.accept()
    except TimeoutError:
        return None
    arrived_s = time.time()
    with connection:
        connection.settimeout(5)
        data = b""
        try:
            while not data.endswith(b"\n") and len(data) < _LINE_BYTES:
                piece = connection.recv(_LINE_BYTES)
                if not piece:
                    break
                data += piece
            result = json.loads(data)
            if result["secret"] != secret:
                return None
            skew_s = result["time_s"] - arrived_s
            return Answer(result["node"], result["shared"], tuple(result["missing"]), skew_s)
        except (OSError, ValueError, KeyError, TypeError):
            return None

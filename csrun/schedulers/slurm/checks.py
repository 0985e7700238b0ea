"""Checks of `csrun doctor` on a cluster: its configuration, and its nodes by means of a probe job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from csrun.doctor import Finding, machine
from csrun.doctor.nodes import START_LIMIT_S, NodeAccess, probe_findings, probe_nodes
from csrun.schedulers.base import Examination
from csrun.schedulers.hostlist import compress_hostlist
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
from csrun.schedulers.slurm.options import SlurmOptions, SlurmSettings
from csrun.schedulers.slurm.place import read_place
from csrun.schedulers.slurm.queue import amount_of, owners_out_of_use
from csrun.schedulers.slurm.survey import port_range
from csrun.site import Site

SUMMARY = "Exited with exit code"  # in srun's line about a failed task


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
    access = NodeAccess(
        prefix=srun_prefix(count, options),
        count=count,
        environment=own,
        read_place=read_place,
        ports=ports,
        ports_setting="SrunPortRange of slurm.conf",
        is_busy=is_busy,
        shorten=shorten_error,
        example="srun --nodes=1 hostname",
    )
    if site.container != "none":
        node = machine.Elsewhere(srun_prefix(1, options), is_busy, SUMMARY)
        yield machine.container_finding(own, toolkit, site, cwd, node)
        yield machine.python_finding(own, toolkit, site, cwd, node)
    yield from probe_findings(probe_nodes(access, toolkit, cwd, needed), access)


def job_partition(site: Site, partitions: Sequence[Partition]) -> Partition | None:
    """Return the partition of the site's jobs; None if it does not exist."""
    settings = SlurmSettings.of_site(site)
    wanted = settings.partition.partition(",")[0]
    for partition in partitions:
        if partition.name == wanted or (not wanted and partition.default):
            return partition
    return None


def partition_findings(site: Site, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check that the partition exists, is up, and allows the site's time limit."""
    settings = SlurmSettings.of_site(site)
    names = ", ".join(partition.name for partition in partitions)
    partition = job_partition(site, partitions)
    if partition is None:
        named = settings.partition
        text = f"unknown partition {named!r}" if named else "there is no default partition"
        yield Finding("partition", "fail", text, f"set 'partition' of the site to one of: {names}")
        return
    if not partition.up:
        advice = "ask the administrator, or set 'partition' of the site to another one"
        yield Finding("partition", "fail", f"{partition.name} starts no jobs (it is down)", advice)
        return
    yield Finding("partition", "ok", f"{partition.name}, {partition.num_nodes} nodes")
    limit_s, asked_s = limit_seconds(partition.time_limit), limit_seconds(settings.time_limit)
    if settings.time_limit and asked_s is None:
        text = f"time_limit of the site is {settings.time_limit!r}, which is not a time"
        yield Finding("time limit", "fail", text, "set it as for sbatch --time, for example '4:00:00'")
    elif settings.time_limit and limit_s is not None and asked_s is not None and asked_s > limit_s:
        above = f"above the {partition.time_limit} of {partition.name}"
        text = f"time_limit of the site is {settings.time_limit}, {above}"
        yield Finding("time limit", "fail", text, "lower time_limit, or choose another partition")
    else:
        text = f"{settings.time_limit or 'none configured'}; {partition.name} allows {partition.time_limit}"
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
    settings = SlurmSettings.of_site(site)
    if settings.gres_resource:
        yield _gres_finding(site, nodes)
    if settings.licence:
        name, _, count = settings.licence.partition(":")
        total, used = licences.get(name, (0, 0))
        if total < int(count or 1):
            existing = ", ".join(sorted(licences)) or "none"
            text = f"the license {settings.licence!r} does not exist ({name}: {total}; all: {existing})"
            yield Finding(
                "licence", "fail", text, "correct 'licence' of the site: 'scontrol show lic' lists them"
            )
        else:
            yield Finding("licence", "ok", f"{settings.licence}, {used} of {total} in use")
    if not settings.gres_resource and not settings.licence:
        text = "neither gres_resource nor licence is configured: two jobs may get the CS system at once"
        yield Finding("CS resource", "note", text, "set one of them, so that Slurm queues for the system")


def _gres_finding(site: Site, nodes: Sequence[Node]) -> Finding:
    settings = SlurmSettings.of_site(site)
    parts = settings.gres_resource.split(":")  # name[:type][:count]
    name, wanted = parts[0], int(parts[-1]) if parts[-1].isdigit() else 1
    owners = {node.name: amount for node in nodes if (amount := amount_of(node, name))}
    if not owners:
        text = f"no node of the partition has the generic resource {name!r}"
        return Finding(
            "gres", "fail", text, "correct gres_resource of the site: 'sinfo -N -o %N,%G' lists them"
        )
    if max(owners.values()) < wanted:
        text = f"{settings.gres_resource} is more than any node has ({max(owners.values())})"
        return Finding("gres", "fail", text, "lower the count in gres_resource of the site")
    where = compress_hostlist(sorted(owners))
    if out := owners_out_of_use(nodes, settings.gres_resource, settings.gres_node):
        text = f"no job can run: {out}, and holds the CS system"
        advice = "have the administrator return it to service: scontrol update nodename=NODE state=resume"
        return Finding("gres", "fail", text, advice)
    if settings.gres_node and settings.gres_node not in owners:
        text = f"{name!r} is on {where}, and gres_node of the site is {settings.gres_node}"
        return Finding("gres", "fail", text, f"set gres_node to {sorted(owners)[0]}")
    return Finding("gres", "ok", f"{settings.gres_resource} on {where}")


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


def is_busy(complaint: str) -> bool:
    """Return True if srun has failed because no node was free, which is not a problem for a run."""
    return "nodes are busy" in complaint or "Immediate execution" in complaint

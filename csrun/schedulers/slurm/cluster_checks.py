"""Checks of what Slurm says of itself against what the site's jobs ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from csrun.doctor.findings import Finding
from csrun.schedulers.slurm.client import Node, Partition
from csrun.schedulers.slurm.hostlist import compress_hostlist
from csrun.schedulers.slurm.owners import amount_of, owners_out_of_use
from csrun.schedulers.slurm.times import limit_seconds
from csrun.site.model import Site


def job_partition(site: Site, partitions: Sequence[Partition]) -> Partition | None:
    """The partition that the site's jobs get into; None if there is none of that name, or no default."""
    wanted = site.partition.partition(",")[0]
    for partition in partitions:
        if partition.name == wanted or (not wanted and partition.default):
            return partition
    return None


def partition_findings(site: Site, partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Whether the partition is there, up, and allows the site's time limit."""
    names = ", ".join(partition.name for partition in partitions)
    partition = job_partition(site, partitions)
    if partition is None:
        text = (
            f"there is no partition {site.partition!r}" if site.partition else "there is no default partition"
        )
        yield Finding("partition", "fail", text, f"set 'partition' of the site to one of: {names}")
        return
    if not partition.up:
        advice = "ask the administrator, or set 'partition' of the site to another one"
        yield Finding("partition", "fail", f"{partition.name} starts no jobs (it is down)", advice)
        return
    yield Finding("partition", "ok", f"{partition.name}, {partition.num_nodes} nodes")
    limit_s, asked_s = limit_seconds(partition.time_limit), limit_seconds(site.time_limit)
    if site.time_limit and asked_s is None:
        text = f"time_limit of the site is {site.time_limit!r}, which is no time"
        yield Finding("time limit", "fail", text, "set it as for sbatch --time, for example '4:00:00'")
    elif site.time_limit and limit_s is not None and asked_s is not None and asked_s > limit_s:
        above = f"above the {partition.time_limit} of {partition.name}"
        text = f"time_limit of the site is {site.time_limit}, {above}"
        yield Finding("time limit", "fail", text, "lower time_limit, or choose another partition")
    else:
        text = f"{site.time_limit or 'none configured'}; {partition.name} allows {partition.time_limit}"
        yield Finding("time limit", "ok", text)


def node_findings(site: Site, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Whether a job of the site's default size fits on the nodes that work.

    Args:
        site: its defaults.
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
        yield Finding("default job", "fail", text, "lower def_nodes of the site, or bring nodes back")
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
    """Whether what stands for the CS system in the queue is there."""
    if site.gres_resource:
        yield _gres_finding(site, nodes)
    if site.licence:
        name, _, count = site.licence.partition(":")
        total, used = licences.get(name, (0, 0))
        if total < int(count or 1):
            there = ", ".join(sorted(licences)) or "none"
            text = f"the licence {site.licence!r} is not there ({name}: {total}; all: {there})"
            yield Finding(
                "licence", "fail", text, "correct 'licence' of the site: 'scontrol show lic' lists them"
            )
        else:
            yield Finding("licence", "ok", f"{site.licence}, {used} of {total} in use")
    if not site.gres_resource and not site.licence:
        text = "neither gres_resource nor licence is configured: two jobs may get the CS system at a time"
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
        advice = "have the administrator bring it back: scontrol update nodename=NODE state=resume"
        return Finding("gres", "fail", text, advice)
    if site.gres_node and site.gres_node not in owners:
        text = f"{name!r} is on {where}, and gres_node of the site is {site.gres_node}"
        return Finding("gres", "fail", text, f"set gres_node to {sorted(owners)[0]}")
    return Finding("gres", "ok", f"{site.gres_resource} on {where}")

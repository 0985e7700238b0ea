"""Slurm's queue: why a job waits, the state of jobs, and their cancellation."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csrun.jobs.registry import KnownJob, scheduler_number
from csrun.jobs.state import end_launcher
from csrun.schedulers.base import QueueView, State
from csrun.schedulers.slurm.client import Node, QueuedJob, SlurmClient
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.site.loading import load_site

_REASONS = {
    "": "Slurm has not looked at it yet",
    "Resources": "it waits for free nodes, CPUs or resources",
    "Priority": "jobs of higher priority precede it",
    "Licenses": "it waits for a license that a running job holds",
    "Dependency": "it waits for the job that it depends on",
    "BeginTime": "its start time has not come yet; a job put back into the queue waits about two minutes",
    "Cleaning": "its previous run is still being cleaned up",
    "Prolog": "the site is preparing its nodes",
    "Reservation": "it waits for its reservation",
    "ReqNodeNotAvail": "a node that it must have is down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "NodesRequired": "nodes that it needs are down, drained or reserved for jobs of higher priority",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition does not start jobs at present",
    "JobArrayTaskLimit": "the limit of its job array is reached",
    "MaxMemPerLimit": "it asks for more memory than the partition allows",
    "JobHoldMaxRequeue": "it was put back into the queue too often and is held: 'scontrol release' frees it",
    "JobLaunchFailure": "it could not be started on its nodes",
}
_NEVER = {
    "DependencyNeverSatisfied": "the job that it depends on did not end as required",
    "PartitionNodeLimit": "it asks for more nodes than its partition has or allows",
    "PartitionTimeLimit": "its time limit is above that of its partition",
    "BadConstraints": "no nodes of this cluster can provide what it requests",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its account may not use its partition",
    "QOSNotAllowed": "its QOS may not use its partition",
    "JobHeldUser": "its owner has put it on hold: 'scontrol release' continues it",
    "JobHeldAdmin": "an administrator has put it on hold",
}

# Reasons that may be caused by a node that is out of use.
_FOR_NODES = ("", "Resources", "ReqNodeNotAvail", "NodeDown", "NodesRequired")
_SHOWN = 3  # nodes and jobs that a sentence names

_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")
_ACTIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_ENDS: Mapping[str, State] = {
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
}
_CAUSES = ("TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE")


def reason_sentence(reason: str) -> str:
    """Describe Slurm's reason in a clause about "it", the job."""
    keyword, detail = _split_reason(reason)
    if keyword in _REASONS:
        sentence = _REASONS[keyword]
    elif keyword in _NEVER:
        sentence = _NEVER[keyword]
    elif keyword.startswith("QOS"):
        sentence = f"a limit of its QOS is reached ({keyword})"
    elif keyword.startswith(("Assoc", "Max")):
        sentence = f"a limit of its account or user is reached ({keyword})"
    else:
        return f"Slurm's reason is {reason!r}"
    return f"{sentence} ({detail})" if detail else sentence


def _split_reason(reason: str) -> tuple[str, str]:
    """Return keyword and detail: "ReqNodeNotAvail, UnavailableNodes:cs-node3" has both."""
    # One reason has a sentence instead of a keyword, in squeue with blanks and in scontrol with underscores:
    # "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions".
    if reason.replace("_", " ").startswith("Nodes required for job"):
        return "NodesRequired", ""
    keyword, _, detail = reason.partition(",")
    return keyword.strip(), detail.strip()


def will_never_start(reason: str) -> bool:
    """Return True if the job cannot start without intervention."""
    return _split_reason(reason)[0] in _NEVER


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one job waits.

    Attributes:
        before: waiting jobs of its partition that precede it, the next one first.
        reason: Slurm's keyword.
        holders: the running jobs that have the CS system.
        start: expected start of all its components, ISO local time; "" if unknown.
        trouble: why the node that holds the CS system is out of use; "" if it is not.
        out_of_use: state of other nodes of its partition that it may be waiting for.
        needed: number of nodes that it needs; 0 if unknown.
        usable, all_nodes: number of nodes of its partition on which jobs can start, and of all its nodes.
    """

    job: QueuedJob
    before: tuple[QueuedJob, ...]
    reason: str
    holders: tuple[QueuedJob, ...]
    start: str
    trouble: str = ""
    out_of_use: tuple[str, ...] = ()
    needed: int = 0
    usable: int = 0
    all_nodes: int = 0

    @property
    def place(self) -> int:
        """Place in the queue of its partition, from 1."""
        return len(self.before) + 1

    @property
    def missing_nodes(self) -> int:
        """Number of nodes that must return to service before the job can start."""
        return max(0, self.needed - self.usable) if self.out_of_use else 0

    def sentence(self) -> str:
        """Describe in one line why the job waits."""
        reason = reason_sentence(self.reason)
        if self.reason == "Resources" and self.place == 1 and not self.missing_nodes:
            reason = f"it is next and {reason.removeprefix('it ')}"
        parts = [
            f"job {self.job.job_id} waits in partition {self.job.partition}, place {self.place}: {reason}"
        ]
        if self.before:
            verb = "jobs precede" if len(self.before) > 1 else "job precedes"
            named = _shorten([f"job {job.job_id} of {job.user}" for job in self.before], "squeue")
            parts.append(f"{len(self.before)} waiting {verb} it: {named}")
        if self.trouble:
            parts.append(
                f"no job can run: {self.trouble}, and holds the CS system; it continues when the "
                f"administrator has returned the node to service"
            )
        elif self.holders:
            held = []
            for job in self.holders:
                left = "" if job.time_left in ("UNLIMITED", "INVALID", "") else f", {job.time_left} left"
                held.append(f"job {job.job_id} of {job.user} ({job.name}{left})")
            parts.append(f"the CS system is held by {' and '.join(held)}")
        elif self.job.resources or self.job.licences:
            parts.append("no job holds the CS system")
        if self.missing_nodes and not self.trouble:
            parts.append(missing_nodes_sentence(self.needed, self.usable, self.all_nodes, self.out_of_use))
        elif self.out_of_use and not self.trouble:
            parts.append(f"out of use: {_shorten(self.out_of_use, 'sinfo -R')}")
        if will_never_start(self.reason):
            parts.append(f"it will not start by itself: 'scancel {self.job.job_id}' removes it")
        else:
            parts.append(f"expected start {self.start.replace('T', ' ') or 'not known'}")
        return "; ".join(parts)


def missing_nodes_sentence(needed: int, usable: int, all_nodes: int, out_of_use: Sequence[str]) -> str:
    """Describe a job that needs more nodes of its partition than can be used at present.

    Args:
        needed: number of nodes that the job needs.
        usable: number of nodes of the partition on which jobs can start.
        all_nodes: number of all its nodes.
        out_of_use: state of the others.
    """
    missing = needed - usable
    return (
        f"it needs {needed} nodes and only {usable} of the partition's {all_nodes} can be used, so it cannot "
        f"start before {missing} more {'return' if missing > 1 else 'returns'} to service: "
        f"{_shorten(out_of_use, 'sinfo -R')}"
    )


def _shorten(items: Sequence[str], command: str) -> str:
    more = len(items) - _SHOWN
    others = f", and {more} more ('{command}' lists them)" if more > 0 else ""
    return ", ".join(items[:_SHOWN]) + others


def news(sentence: str) -> str:
    """Return the sentence without the expected start."""
    # Slurm recomputes the expected start all the time: a change of it is no news.
    return re.sub(r"; expected start [^;]*", "", sentence)


def waiting(
    components: Sequence[QueuedJob],
    queue: Iterable[QueuedJob],
    resource: str,
    nodes: Sequence[Node] = (),
    owner: str = "",
) -> Waiting | None:
    """Return why a job waits; None if it does not.

    Args:
        components: entries of the job in the queue, its leader first.
        queue: all waiting and running jobs.
        resource: the generic resource ("cs:1") or license of the CS system; "" for none.
        nodes: of the cluster.
        owner: the node that holds the CS system, if the site names it.
    """
    pending = [component for component in components if component.pending]
    if not pending:
        return None
    leader = pending[0]
    jobs = list(queue)

    def order(job: QueuedJob) -> tuple[int, int]:
        # Of equal priority, Slurm starts the job with the lower number first.
        return -job.priority, _number(job.job_id)

    # A heterogeneous job counts once, with its first component.
    before = {
        job.job_id: job
        for job in sorted(jobs, key=order, reverse=True)
        if job.pending and job.partition == leader.partition and job.job_id != leader.job_id
        if order(job) < order(leader)
    }
    reason = next((component.reason for component in pending if component.reason), "")
    starts = [component.start for component in pending]
    partitions = leader.partition.split(",")
    there = {node.name: node for node in nodes if node.partition in partitions}
    out = [node.trouble for node in there.values() if not node.usable]
    return Waiting(
        leader,
        tuple(reversed(before.values())),
        reason,
        holders(jobs, resource),
        # Slurm may know the start of one component only, before which the job cannot start either.
        max(starts) if all(starts) else "",
        owners_out_of_use(nodes, resource, owner),
        tuple(out) if _split_reason(reason)[0] in _FOR_NODES else (),
        # The components of a job get separate nodes.
        sum(part.num_nodes for part in pending) if all(part.num_nodes for part in pending) else 0,
        len(there) - len(out),
        len(there),
    )


def holders(queue: Iterable[QueuedJob], resource: str) -> tuple[QueuedJob, ...]:
    """Return the running jobs that have a generic resource or license ("cs:1", "cs:cerebras:1", "cs")."""
    wanted = resource.partition(":")[0]
    if not wanted:
        return ()

    def has_resource(job: QueuedJob) -> bool:
        held = f"{job.resources},{job.licences}".split(",")
        return wanted in (item.partition(":")[0] for item in held)

    return tuple(job for job in queue if job.active and not job.pending and has_resource(job))


def _number(job_id: str) -> int:
    digits = job_id.partition("_")[0]  # 12_3 is an element of a job array
    return int(digits) if digits.isdigit() else 0


def owners_out_of_use(nodes: Iterable[Node], resource: str, node_name: str = "") -> str:
    """Return the state of the nodes that hold the CS system if none of them is usable, else "".

    Args:
        nodes: of the cluster.
        resource: the generic resource of the system; "" for none.
        node_name: its owner, if the site names it.
    """
    name = resource.partition(":")[0]
    owners = [
        node for node in nodes if (node.name == node_name if node_name else name and amount_of(node, name))
    ]
    if not owners or any(node.usable for node in owners):
        return ""
    return "; ".join(dict.fromkeys(node.trouble for node in owners))


def amount_of(node: Node, name: str) -> int:
    """Return the amount of a generic resource on a node."""
    amounts = [item.split(":") for item in node.resources.split(",") if item.partition(":")[0] == name]
    return sum(int(parts[-1]) if parts[-1].isdigit() else 1 for parts in amounts)


def view_of(keyword: str, nodes: str = "", sentence: str = "") -> QueueView:
    """Translate a state of Slurm. Pure.

    Args:
        keyword: state of the job, such as RUNNING or TIMEOUT.
        nodes: host list; "" for none yet.
        sentence: why it waits; "" if it does not.
    """
    if keyword in _WAITING:
        return QueueView("waiting", sentence, news(sentence), nodes=nodes)
    reported = f"Slurm says {keyword}"
    if keyword in _ACTIVE:
        return QueueView("running", "" if keyword == "RUNNING" else reported, nodes=nodes)
    cause = reported if keyword in _CAUSES else ""
    return QueueView(_ENDS.get(keyword, "failed"), reported, cause=cause, nodes=nodes)


def views(numbers: Collection[str], environment: Mapping[str, str]) -> dict[str, QueueView]:
    """Return Slurm's views of jobs, by number.

    Raises:
        SlurmError: the cluster does not answer.
    """
    client = SlurmClient(environment)
    jobs = client.jobs()
    options = SlurmOptions.of_site(load_site(environment).site)
    nodes: list[Node] = []
    found = {}
    for number in numbers:
        components = [job for job in jobs if job.job_id == number]
        if components:
            if not nodes and any(component.pending for component in components):
                nodes = client.nodes()
            why = waiting(components, jobs, options.resource, nodes, options.gres_node)
            hosts = ",".join(component.nodes for component in components if component.nodes)
            found[number] = view_of(components[0].state, hosts, why.sentence() if why else "")
        elif ended := client.accounting_state(number):
            found[number] = view_of(ended[0])
    return found


def cancel(job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Ask Slurm to end a job, or its launcher if the job has no number.

    Raises:
        CsrunError: the cluster does not answer, or the launcher is on another machine.
    """
    number, step = scheduler_number(job, record), record.get("scheduler_step_id")
    if not number:
        end_launcher(job, record)
    # A batch job is csrun's as a whole; other steps run in an allocation that existed before.
    elif step and not job.scheduler_job_id:
        SlurmClient(environment).signal_step(step, signal.SIGTERM)
    else:
        SlurmClient(environment).cancel(number)

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
    "Resources": "it is next and waits for free nodes, CPUs or resources",
    "Priority": "jobs of higher priority precede it",
    "Licenses": "it waits for a license that a running job holds",
    "Dependency": "it waits for the job that it depends on",
    "BeginTime": "its start time has not come yet; a job put back into the queue waits about two minutes",
    "Cleaning": "its previous run is still being cleaned up",
    "Prolog": "the site is preparing its nodes",
    "Reservation": "it waits for its reservation",
    "ReqNodeNotAvail": "a node that it must have is down, drained or reserved",
    "NodeDown": "a node that it needs is down",
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
_FOR_NODES = ("", "Resources", "ReqNodeNotAvail", "NodeDown")
_SHOWN_NODES = 3

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
    keyword = reason.partition(",")[0].strip()  # "ReqNodeNotAvail, UnavailableNodes:cs-node3"
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
    detail = reason.partition(",")[2].strip()
    return f"{sentence} ({detail})" if detail else sentence


def will_never_start(reason: str) -> bool:
    """Return True if the job cannot start without intervention."""
    return reason.partition(",")[0].strip() in _NEVER


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one job waits.

    Attributes:
        place: in the queue of its partition, from 1.
        reason: Slurm's keyword.
        holders: the running jobs that have the CS system.
        start: expected start, ISO local time; "" if unknown.
        trouble: why the node that holds the CS system is out of use; "" if it is not.
        out_of_use: state of other nodes of its partition that it may be waiting for.
    """

    job: QueuedJob
    place: int
    reason: str
    holders: tuple[QueuedJob, ...]
    start: str
    trouble: str = ""
    out_of_use: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Describe in one line why the job waits."""
        parts = [
            f"job {self.job.job_id} waits in partition {self.job.partition}, place {self.place}: "
            f"{reason_sentence(self.reason)}"
        ]
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
        if self.out_of_use and not self.trouble:
            more = len(self.out_of_use) - _SHOWN_NODES
            others = f", and {more} more ('sinfo -R' lists them)" if more > 0 else ""
            parts.append(f"out of use: {', '.join(self.out_of_use[:_SHOWN_NODES])}{others}")
        if self.start:
            parts.append(f"expected start {self.start.replace('T', ' ')}")
        if will_never_start(self.reason):
            parts.append(f"it will not start by itself: 'scancel {self.job.job_id}' removes it")
        return "; ".join(parts)


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
    place = (-leader.priority, _number(leader.job_id))
    before = {
        job.job_id
        for job in jobs
        if job.pending and job.partition == leader.partition and job.job_id != leader.job_id
        # Of equal priority, Slurm starts the job with the lower number first.
        if (-job.priority, _number(job.job_id)) < place
    }
    reason = next((component.reason for component in pending if component.reason), "")
    starts = [component.start for component in pending if component.start]
    partitions = leader.partition.split(",")
    out = [node.trouble for node in nodes if node.partition in partitions and not node.usable]
    return Waiting(
        leader,
        len(before) + 1,
        reason,
        holders(jobs, resource),
        max(starts, default=""),
        owners_out_of_use(nodes, resource, owner),
        tuple(dict.fromkeys(out)) if reason.partition(",")[0] in _FOR_NODES else (),
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

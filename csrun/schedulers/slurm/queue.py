"""What a waiting user wants to know: his place, why he waits, and who holds the CS system. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from csrun.schedulers.slurm.client import Node, QueuedJob
from csrun.schedulers.slurm.owners import owners_out_of_use

_REASONS = {
    "": "Slurm has not looked at it yet",
    "Resources": "it is next, and waits for free nodes, CPUs or resources",
    "Priority": "jobs of higher priority are before it",
    "Licenses": "it waits for a licence that a running job holds",
    "Dependency": "it waits for the job that it depends on",
    "BeginTime": "its start time has not come yet; a job put back into the queue waits about two minutes",
    "Cleaning": "its previous run is still being cleaned up after",
    "Prolog": "the site's preparation of its nodes is running",
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
    "DependencyNeverSatisfied": "the job that it depends on did not end as was asked for",
    "PartitionNodeLimit": "it asks for more nodes than its partition has or allows",
    "PartitionTimeLimit": "its time limit is above that of its partition",
    "BadConstraints": "no nodes of this cluster can give what it asks for",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its account may not use its partition",
    "QOSNotAllowed": "its QOS may not use its partition",
    "JobHeldUser": "its owner has put it on hold: 'scontrol release' lets it go on",
    "JobHeldAdmin": "an administrator has put it on hold",
}

_FOR_NODES = ("", "Resources", "ReqNodeNotAvail", "NodeDown")
"""Reasons that a node which is out of use may be behind."""
_SHOWN_NODES = 3


def reason_sentence(reason: str) -> str:
    """Slurm's reason in words: half a sentence about "it", the job."""
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
    """Whether the job stays where it is until somebody does something about it."""
    return reason.partition(",")[0].strip() in _NEVER


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one job waits.

    Attributes:
        place: 1 for the job that Slurm looks at first among those that wait in its partition.
        reason: Slurm's keyword.
        holders: the running jobs that have the CS system.
        start: expected start, ISO local time; "" where Slurm does not know it.
        trouble: why the node that holds the CS system is out of use; "" for nothing.
        out_of_use: what is wrong with other nodes of its partition that it may be waiting for.
    """

    job: QueuedJob
    place: int
    reason: str
    holders: tuple[QueuedJob, ...]
    start: str
    trouble: str = ""
    out_of_use: tuple[str, ...] = ()

    def sentence(self) -> str:
        """One line for the user."""
        parts = [
            f"job {self.job.job_id} waits in partition {self.job.partition}, place {self.place}: "
            f"{reason_sentence(self.reason)}"
        ]
        if self.trouble:
            parts.append(
                f"no job can run: {self.trouble}, and holds the CS system; it goes on when the administrator "
                f"has brought the node back"
            )
        elif self.holders:
            held = " and ".join(_holder_text(holder) for holder in self.holders)
            parts.append(f"the CS system is held by {held}")
        elif self.job.resources or self.job.licences:
            parts.append("nobody holds the CS system")
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
    """What of a sentence is news when it changes: all but the start, which Slurm keeps computing again."""
    return re.sub(r"; expected start [^;]*", "", sentence)


def waiting(
    components: Sequence[QueuedJob],
    queue: Iterable[QueuedJob],
    resource: str,
    nodes: Sequence[Node] = (),
    owner: str = "",
) -> Waiting | None:
    """Why a job waits; None if it does not.

    Args:
        components: the job's entries in the queue, its leader first.
        queue: all jobs that wait or run.
        resource: the generic resource ("cs:1") or licence that stands for the CS system; "" for none.
        nodes: of the cluster.
        owner: the node that holds the CS system, where the site says so.
    """
    pending = [component for component in components if component.pending]
    if not pending:
        return None
    leader = pending[0]
    jobs = list(queue)
    before = {
        job.job_id
        for job in jobs
        if job.pending and job.partition == leader.partition and _sooner(job, leader)
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
    """The running jobs that have the generic resource or licence ("cs:1", "cs:cerebras:1", "cs")."""
    wanted = resource.partition(":")[0]
    if not wanted:
        return ()
    return tuple(
        job
        for job in queue
        if job.active and not job.pending and wanted in _names(f"{job.resources},{job.licences}")
    )


def _names(resources: str) -> set[str]:
    return {item.partition(":")[0] for item in resources.split(",") if item}


def _sooner(job: QueuedJob, than: QueuedJob) -> bool:
    if job.job_id == than.job_id:
        return False
    if job.priority != than.priority:
        return job.priority > than.priority
    return _number(job.job_id) < _number(than.job_id)


def _number(job_id: str) -> int:
    digits = job_id.partition("_")[0]  # of an array: 12_3
    return int(digits) if digits.isdigit() else 0


def _holder_text(job: QueuedJob) -> str:
    left = "" if job.time_left in ("UNLIMITED", "INVALID", "") else f", {job.time_left} left"
    return f"job {job.job_id} of {job.user} ({job.name}{left})"

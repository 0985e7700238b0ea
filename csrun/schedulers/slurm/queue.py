"""Slurm's queue: why a job waits, how it fares, and how it is ended."""

from __future__ import annotations

import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from csrun.jobs.registry import KnownJob, scheduler_number
from csrun.jobs.state import WaitLines, end_launcher
from csrun.schedulers.base import QueueView, State
from csrun.schedulers.slurm.client import Node, QueuedJob, SlurmClient, SlurmError
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.site.loading import load_site

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


def owners_out_of_use(nodes: Iterable[Node], resource: str, node_name: str = "") -> str:
    """What is wrong with the nodes that hold the CS system, where none of them can be used; else "".

    Args:
        nodes: of the cluster.
        resource: the generic resource that stands for the system; "" for none.
        node_name: the one that owns it, where the site says so.
    """
    name = resource.partition(":")[0]
    owners = [
        node for node in nodes if (node.name == node_name if node_name else name and amount_of(node, name))
    ]
    if not owners or any(node.usable for node in owners):
        return ""
    return "; ".join(dict.fromkeys(node.trouble for node in owners))


def amount_of(node: Node, name: str) -> int:
    """How many of a generic resource a node has."""
    amounts = [item.split(":") for item in node.resources.split(",") if item.partition(":")[0] == name]
    return sum(int(parts[-1]) if parts[-1].isdigit() else 1 for parts in amounts)


FIRST_LOOK_S = 1.0
LOOK_INTERVAL_S = 5.0


class QueueWatch:
    """Asks every few seconds why a job waits, and keeps a line for every change, and one every ten seconds.

    Args:
        client: the cluster.
        name: the job's name; it need not be submitted yet.
        number: the job's number, by which it is told from others of its name; "" while it is not known.
        owner: the node that holds the CS system, where the site says so.
        resource: what stands for the CS system, as for `csrun.schedulers.slurm.queue.waiting`.
    """

    def __init__(
        self, client: SlurmClient, name: str, resource: str, number: Callable[[], str] = str, owner: str = ""
    ) -> None:
        self._client = client
        self._number = number
        self._owner = owner
        self._name = name
        self._resource = resource
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._job: QueuedJob | None = None
        self._thread = threading.Thread(target=self._look, name="queue watch", daemon=True)
        self._thread.start()

    @property
    def job(self) -> QueuedJob | None:
        """The job's leader as last seen; None while Slurm does not know the name."""
        return self._job

    def lines(self) -> list[str]:
        """What is new since the last call, one line each."""
        found = []
        while True:
            try:
                found.append(self._lines.get_nowait())
            except queue.Empty:
                return found

    def stop(self) -> None:
        """Ends the watch; a question on its way is not waited for."""
        self._ended.set()

    def _look(self) -> None:
        due = WaitLines()
        pause_s = FIRST_LOOK_S
        while not self._ended.wait(pause_s):
            pause_s = LOOK_INTERVAL_S
            try:
                line = self._line()
            except SlurmError as error:
                line = str(error)
            if told := due.line(line, news(line), time.monotonic()):
                self._lines.put(told)

    def _line(self) -> str:
        number = self._number()
        named = [job for job in self._client.jobs(name=self._name) if job.active]
        components = [job for job in named if number in ("", job.job_id)]
        self._job = components[0] if components else self._job
        if not any(component.pending for component in components):
            return ""
        nodes = self._client.nodes()
        found = waiting(components, self._client.queue(), self._resource, nodes, self._owner)
        return found.sentence() if found else ""


_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")
_ACTIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_ENDS: Mapping[str, State] = {
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
}
_CAUSES = ("TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE")


def view_of(keyword: str, nodes: str = "", sentence: str = "") -> QueueView:
    """What a state of Slurm's means; pure.

    Args:
        keyword: the state, such as RUNNING or TIMEOUT.
        nodes: host list; "" for none yet.
        sentence: why it waits; "" if it does not.
    """
    if keyword in _WAITING:
        return QueueView("waiting", sentence, news(sentence), nodes=nodes)
    said = f"Slurm says {keyword}"
    if keyword in _ACTIVE:
        return QueueView("running", "" if keyword == "RUNNING" else said, nodes=nodes)
    cause = said if keyword in _CAUSES else ""
    return QueueView(_ENDS.get(keyword, "failed"), said, cause=cause, nodes=nodes)


def views(numbers: Collection[str], environment: Mapping[str, str]) -> dict[str, QueueView]:
    """What Slurm knows of its jobs, by their number.

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
        elif ended := client.ended_state(number):
            found[number] = view_of(ended[0])
    return found


def cancel(job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Asks Slurm to end the job, or its launcher where Slurm has no number for it.

    Raises:
        CsrunError: the cluster does not answer, or the launcher is on another machine.
    """
    number, step = scheduler_number(job, record), record.get("scheduler_step_id")
    if not number:
        end_launcher(job, record)
    # A batch job is ours as a whole; other steps run in an allocation that somebody else has made.
    elif step and not job.scheduler_job_id:
        SlurmClient(environment).signal_step(step, signal.SIGTERM)
    else:
        SlurmClient(environment).cancel(number)

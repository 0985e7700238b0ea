"""How jobs fare in Slurm's queue, and how they are told to end."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from typing import Any

from csrun.jobs.registry import KnownJob, scheduler_number
from csrun.jobs.state import QueueView, State
from csrun.jobs.status import end_launcher
from csrun.schedulers.slurm.client import Node, SlurmClient
from csrun.schedulers.slurm.options import SlurmOptions
from csrun.schedulers.slurm.queue import news, waiting
from csrun.site.loading import load_site

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

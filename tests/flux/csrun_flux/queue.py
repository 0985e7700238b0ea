"""Flux's queue: why a job waits, the state of jobs, and their cancellation."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from csrun.jobs.registry import KnownJob, scheduler_number
from csrun.jobs.state import end_launcher
from csrun.schedulers.base import QueueView, State
from csrun_flux.client import FluxClient, FluxJob

_REASONS = {
    "NEW": "Flux has not looked at it yet",
    "DEPEND": "it waits for the job that it depends on",
    "PRIORITY": "Flux is computing its priority",
    "SCHED": "it waits for free nodes",
}
_ENDS: Mapping[str, State] = {"COMPLETED": "done", "CANCELED": "cancelled"}


def wait_sentence(job_id: str, queue: Sequence[FluxJob]) -> str:
    """Return in one line why a job waits; "" if it does not. Pure."""
    job = next((each for each in queue if each.job_id == job_id and each.waiting), None)
    if job is None:
        return ""
    before = [
        each
        for each in queue
        if each.waiting and (-each.priority, each.submitted_s) < (-job.priority, job.submitted_s)
    ]
    held = job.urgency == 0
    reason = "its owner has put it on hold: 'flux job urgency' continues it" if held else _REASONS[job.state]
    if job.dependencies:
        reason += f" ({', '.join(job.dependencies)})"
    parts = [f"job {job_id} waits, place {len(before) + 1}: {reason}"]
    if running := [each for each in queue if each.state == "RUN"]:
        parts.append(f"{sum(each.num_nodes for each in running)} nodes are in use by {len(running)} jobs")
    if job.start_s:
        start = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.start_s))
        parts.append(f"expected start {start}")
    return "; ".join(parts)


def news(sentence: str) -> str:
    """Return the sentence without the expected start, which changes all the time."""
    return re.sub(r"; expected start [^;]*", "", sentence)


def view_of(job: FluxJob, queue: Sequence[FluxJob] = ()) -> QueueView:
    """Translate a state of Flux. Pure.

    Args:
        job: as Flux shows it.
        queue: all waiting and running jobs.
    """
    if job.waiting:
        sentence = wait_sentence(job.job_id, queue)
        return QueueView("waiting", sentence, news(sentence))
    if job.state in ("RUN", "CLEANUP"):
        return QueueView("running", "" if job.state == "RUN" else "Flux says CLEANUP", nodes=job.nodes)
    reported = f"Flux says {job.result}" + (f" ({job.exception})" if job.exception else "")
    ended_by_flux = job.result == "TIMEOUT" or job.exception.startswith("node-failure")
    cause = reported if ended_by_flux else ""
    return QueueView(_ENDS.get(job.result, "failed"), reported, cause=cause, nodes=job.nodes)


def views(numbers: Collection[str], environment: Mapping[str, str]) -> dict[str, QueueView]:
    """Return Flux's views of jobs, by id.

    Raises:
        FluxError: the instance does not answer.
    """
    client = FluxClient(environment)
    jobs = client.jobs(numbers)
    queue = client.jobs() if any(job.waiting for job in jobs) else []
    return {job.job_id: view_of(job, queue) for job in jobs}


def cancel(job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Ask Flux to end a job, or its launcher if the job has no id.

    Raises:
        CsrunError: Flux does not answer, or the launcher is on another machine.
    """
    number, step = scheduler_number(job, record), str(record.get("scheduler_step_id") or "")
    client = FluxClient(environment)
    if not number:
        end_launcher(job, record)
    elif step and not job.scheduler_job_id:  # in an instance that existed before
        client.signal(step.rpartition(".")[2], signal.SIGTERM)
    else:
        client.cancel(number)

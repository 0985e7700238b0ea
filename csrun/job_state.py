"""How a job fares, from its own record, from Slurm's queue and from whether its launcher lives. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from csrun.job_registry import KnownJob

State = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]

_SLURM_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING")
_SLURM_ACTIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_SLURM_ENDS: Mapping[str, State] = {
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "PREEMPTED": "cancelled",
    "REVOKED": "cancelled",
}
_ENDED_BY_USER = {128 + signum for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


@dataclass(frozen=True, slots=True)
class SlurmView:
    """What Slurm says of a job.

    Attributes:
        state: its keyword such as RUNNING or TIMEOUT.
        nodes: host list; "" for none yet.
        waiting: a sentence why it waits; "" if it does not.
    """

    state: str
    nodes: str = ""
    waiting: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What `csrun status` shows.

    Attributes:
        detail: one sentence that explains the state; "" where there is nothing to explain.
        exit_code: of the launcher, once the job has ended.
        tasks: the entries of the record; empty before the start.
    """

    job: KnownJob
    state: State
    detail: str
    exit_code: int | None
    started: str | None
    ended: str | None
    slurm_job_id: str
    nodes: str
    tasks: tuple[Mapping[str, Any], ...]

    @property
    def over(self) -> bool:
        """Whether nothing of the job will change any more."""
        return self.state not in ("waiting", "running")

    def to_json(self) -> dict[str, Any]:
        """The output of --json."""
        return {
            "job_id": self.job.job_id,
            "launcher": self.job.launcher,
            "slurm_job_id": self.slurm_job_id or None,
            "state": self.state,
            "detail": self.detail or None,
            "exit_code": self.exit_code,
            "started": self.started,
            "ended": self.ended,
            "nodes": self.nodes or None,
            "command": list(self.job.command),
            "log_dir": self.job.log_dir,
            "tasks": [dict(task) for task in self.tasks],
        }


def job_status(
    job: KnownJob, record: Mapping[str, Any] | None, slurm: SlurmView | None, launcher_lives: bool | None
) -> JobStatus:
    """Puts together what is known of a job.

    Args:
        job: its entry in the registry.
        record: its job.json; None before its start.
        slurm: what Slurm says; None where it was not asked or has forgotten the job.
        launcher_lives: whether the launcher's process is there; None where that cannot be seen from here.
    """
    record = record or {}
    state, detail = _state(record, slurm, launcher_lives, is_batch=bool(job.slurm_job_id))
    tasks: Sequence[Mapping[str, Any]] = record.get("tasks") or ()
    return JobStatus(
        job=job,
        state=state,
        detail=detail,
        exit_code=record.get("exit_code"),
        started=record.get("started"),
        ended=record.get("ended"),
        slurm_job_id=str(record.get("slurm_job_id") or job.slurm_job_id),
        nodes=slurm.nodes if slurm else "",
        tasks=tuple(tasks),
    )


def _state(
    record: Mapping[str, Any], slurm: SlurmView | None, launcher_lives: bool | None, *, is_batch: bool
) -> tuple[State, str]:
    active = slurm is not None and slurm.state in _SLURM_ACTIVE
    if slurm and slurm.state in _SLURM_WAITING:
        return "waiting", slurm.waiting  # a requeued job has a record, of its run before
    # A batch job whose record has ended may be on its way back into the queue.
    if record.get("ended") and not (active and is_batch):
        return _ended(int(record.get("exit_code") or 0), slurm)
    if slurm and active:
        return "running", "" if slurm.state == "RUNNING" else f"Slurm says {slurm.state}"
    if slurm:
        return _SLURM_ENDS.get(slurm.state, "failed"), f"Slurm says {slurm.state}"
    if launcher_lives:
        return "running" if record else "waiting", ""
    if not record:
        return "lost", "it never started, and nothing is known of it any more"
    if launcher_lives is None:
        return (
            "running",
            "as its record says; its launcher is on another machine, which cannot be seen from here",
        )
    return "lost", "its launcher has ended without a word: it was killed, or the machine went down"


def _ended(exit_code: int, slurm: SlurmView | None) -> tuple[State, str]:
    reason = ""
    if slurm and slurm.state in ("TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"):
        reason = f"Slurm says {slurm.state}"
    if exit_code == 0:
        return "done", reason
    if exit_code in _ENDED_BY_USER or (slurm and slurm.state in ("CANCELLED", "PREEMPTED")):
        return "cancelled", reason
    return "failed", reason

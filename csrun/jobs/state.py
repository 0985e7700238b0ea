"""How a job fares, from its record, what its scheduler says, and whether its launcher lives. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from csrun.jobs.progress import TrainingProgress
from csrun.jobs.registry import KnownJob

State = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]

_ENDED_BY_USER = {128 + signum for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a scheduler says of a job.

    Attributes:
        state: never "lost": a job that is forgotten has no view.
        detail: one sentence that explains the state, why it waits for instance; "" where there is nothing to.
        news: what of that is worth saying again when it changes.
        cause: the same for a job that the scheduler itself has ended: a time limit, a lost node; else "".
        nodes: their names; "" for none yet.
    """

    state: State
    detail: str = ""
    news: str = ""
    cause: str = ""
    nodes: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What `csrun status` shows.

    Attributes:
        detail: one sentence that explains the state; "" where there is nothing to explain.
        news: what of that is worth saying again when it changes.
        exit_code: of the launcher, once the job has ended.
        tasks: the entries of the record; empty before the start.
        progress: of the training; None where there is none, or none yet.
    """

    job: KnownJob
    state: State
    detail: str
    news: str
    exit_code: int | None
    started: str | None
    ended: str | None
    scheduler_job_id: str
    nodes: str
    tasks: tuple[Mapping[str, Any], ...]
    progress: TrainingProgress | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of the job will change any more."""
        return self.state not in ("waiting", "running")

    def to_json(self) -> dict[str, Any]:
        """The output of --json."""
        return {
            "job_id": self.job.job_id,
            "launcher": self.job.launcher,
            "scheduler_job_id": self.scheduler_job_id or None,
            "state": self.state,
            "detail": self.detail or None,
            "exit_code": self.exit_code,
            "started": self.started,
            "ended": self.ended,
            "nodes": self.nodes or None,
            "command": list(self.job.command),
            "log_dir": self.job.log_dir,
            "training": self.progress.to_json() if self.progress else None,
            "tasks": [dict(task) for task in self.tasks],
        }


def job_status(
    job: KnownJob,
    record: Mapping[str, Any] | None,
    view: QueueView | None,
    launcher_lives: bool | None,
    progress: TrainingProgress | None = None,
) -> JobStatus:
    """Puts together what is known of a job.

    Args:
        job: its entry in the registry.
        record: its job.json; None before its start.
        view: what the scheduler says; None where it was not asked or has forgotten the job.
        launcher_lives: whether the launcher's process is there; None where that cannot be seen from here.
        progress: what the chief has noted of its training.
    """
    record = record or {}
    state, detail = _state(record, view, launcher_lives, submitted=bool(job.scheduler_job_id))
    tasks: Sequence[Mapping[str, Any]] = record.get("tasks") or ()
    return JobStatus(
        job=job,
        state=state,
        detail=detail,
        news=view.news if view else "",
        exit_code=record.get("exit_code"),
        started=record.get("started"),
        ended=record.get("ended"),
        scheduler_job_id=str(record.get("scheduler_job_id") or job.scheduler_job_id),
        nodes=view.nodes if view else "",
        tasks=tuple(tasks),
        progress=progress,
    )


def _state(
    record: Mapping[str, Any], view: QueueView | None, launcher_lives: bool | None, *, submitted: bool
) -> tuple[State, str]:
    if view and view.state == "waiting":
        return "waiting", view.detail  # a requeued job has a record, of its run before
    # A submitted job whose record has ended may be on its way back into the queue.
    if record.get("ended") and not (view and view.state == "running" and submitted):
        return _ended(int(record.get("exit_code") or 0), view)
    if view:
        return view.state, view.detail
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


def _ended(exit_code: int, view: QueueView | None) -> tuple[State, str]:
    reason = view.cause if view else ""
    if exit_code == 0:
        return "done", reason
    if exit_code in _ENDED_BY_USER or (view and view.state == "cancelled"):
        return "cancelled", reason
    return "failed", reason

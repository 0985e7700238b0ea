"""A scheduler of a site's own: this machine runs one job after the other, in the order of a queue folder.

SPOOL_DIR names the folder. It holds NUMBER.job for every submitted job, NUMBER.state once it has begun, and
the file `turn`, whose lock is held by whatever runs. `python -m spool_scheduler` is the daemon that starts
the jobs.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote
from typing import Any

from cs_toolkit.errors import UsageError
from csrun.doctor import Finding
from csrun.doctor.machine import port_finding
from csrun.jobs.registry import KnownJob, scheduler_number
from csrun.jobs.state import end_launcher
from csrun.schedulers.base import (
    Asked,
    Examination,
    Flag,
    JobHere,
    LaunchContext,
    LaunchPlan,
    LaunchRequest,
    Presence,
    ProgramPlan,
    ProgramRequest,
    QueueView,
    Survey,
)
from csrun.schedulers.local import plan as local_plan
from csrun.schedulers.local import program as local_program
from csrun.schedulers.local.run import run_job
from csrun.schedulers.tasks import launcher_arguments
from csrun.site import Site

FOLDER_VARIABLE = "SPOOL_DIR"
JOB_VARIABLE = "SPOOL_JOB"
LOOK_S = 0.05


def _priority(text: str) -> str:
    if text and not text.isdigit():
        raise ValueError("expected a whole number: the higher the sooner")
    return text


@dataclass(frozen=True)
class SpoolSurvey(Survey):
    """Return the state of the queue: the priority of the new job."""

    priority: str = "0"


class SpoolScheduler:
    """Runs jobs of this machine one at a time."""

    name = "spool"
    title = "Spool"
    about = "this machine, one job at a time"
    flags = (Flag("--priority", "N", "The higher the sooner it is its turn in the spool.", _priority),)
    settings = None
    submit_flag = ""
    has_nodes = True

    def presence(self, site: Site, environment: Mapping[str, str]) -> Presence:
        return "wanted" if environment.get(FOLDER_VARIABLE) else "absent"

    def job_here(self, environment: Mapping[str, str]) -> JobHere | None:
        return JobHere(1, True) if environment.get(JOB_VARIABLE) else None

    def task_place(self, environment: Mapping[str, str]) -> None:
        """None: only csrun starts tasks here."""

    def task_variables(
        self, environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
    ) -> Mapping[str, str]:
        return {"SPOOL_TASK": f"{rank} of {tasks}"} if environment.get(JOB_VARIABLE) else {}

    def survey(self, asked: Asked) -> SpoolSurvey:
        _folder(asked.environment)
        cpus = len(os.sched_getaffinity(0))
        return SpoolSurvey(asked.site, cpus, priority=asked.flags.get("--priority", "0"))

    def plan(self, request: LaunchRequest, context: LaunchContext, survey: SpoolSurvey) -> LaunchPlan:
        if request.layout.total_nodes > 1:
            raise UsageError("--total-nodes: the spool has one node; expected 1: leave it out")
        return local_plan.make_plan(request, context, self.name)

    def describe(self, plan: LaunchPlan) -> str:
        return f"in turn with the other jobs of the spool\n{local_plan.describe(plan)}"

    def run(self, plan: LaunchPlan, environment: Mapping[str, str]) -> int:
        if self.job_here(environment):  # it is our turn
            return run_job(plan, environment)
        with _lock(_folder(environment) / "turn"):
            return run_job(plan, environment)

    def script(self, request: LaunchRequest, context: LaunchContext, survey: SpoolSurvey) -> str:
        if request.requeue:
            raise UsageError("--requeue: the spool starts no job again; leave it out")
        words = launcher_arguments(request, context, self.name)
        head = f"#!/bin/sh\n#SPOOL priority={survey.priority}\n"
        return f"{head}cd {quote(str(context.cwd))}\nexec {join(words)}\n"

    def submit(self, script: Path, environment: Mapping[str, str]) -> str:
        folder = _folder(environment)
        found = re.search(r"^#SPOOL priority=(\d+)$", script.read_text(), re.MULTILINE)
        job = {"script": str(script), "environment": dict(environment)}
        with _lock(folder / "numbers"):
            number = 1 + len(list(folder.glob("*.job")))
            text = json.dumps({**job, "priority": int(found[1]) if found else 0})
            (folder / "new").write_text(text)
            (folder / "new").rename(folder / f"{number}.job")
        return str(number)

    def output_file(self, job: KnownJob) -> Path:
        return Path(job.log_dir, "spool.out")

    def views(self, numbers: Collection[str], environment: Mapping[str, str]) -> Mapping[str, QueueView]:
        folder = _folder(environment)
        waiting = waiting_jobs(folder)
        return {number: _view(folder, number, waiting) for number in numbers}

    def cancel(self, job: KnownJob, record: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        number = scheduler_number(job, record)
        if not number or not _take(_folder(environment), number, "cancelled"):
            end_launcher(job, record)

    def plan_program(self, request: ProgramRequest, asked: Asked) -> ProgramPlan:
        lock = _folder(asked.environment) / "turn"
        environment = {**request.environment, JOB_VARIABLE: request.launcher}
        return ProgramPlan(("flock", str(lock), *request.command), environment, "when it is its turn")

    def run_program(self, plan: ProgramPlan) -> int:
        local_program.run_program(plan)

    def checks(self, examination: Examination) -> Iterator[Finding]:
        try:
            folder = _folder(examination.environment)
            os.kill(int((folder / "daemon").read_text()), 0)
        except (UsageError, OSError, ValueError) as error:
            yield Finding("spool", "fail", str(error), "start it: python -m spool_scheduler")
        else:
            yield Finding("spool", "ok", f"{len(waiting_jobs(folder))} jobs wait")
        yield port_finding(None)


def waiting_jobs(folder: Path) -> list[str]:
    """Numbers of the jobs that have not begun, the next one first."""
    jobs = {path.stem: json.loads(path.read_text())["priority"] for path in folder.glob("*.job")}
    waiting = [number for number in jobs if not (folder / f"{number}.state").exists()]
    return sorted(waiting, key=lambda number: (-jobs[number], int(number)))


def main() -> None:
    """The daemon: runs the jobs of the folder until SIGTERM."""
    folder = _folder(os.environ)
    (folder / "daemon").write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        if waiting_jobs(folder):
            with _lock(folder / "turn"):
                for number in waiting_jobs(folder)[:1]:
                    if _take(folder, number, "running"):
                        _run_script(folder, number)
        time.sleep(LOOK_S)


def _run_script(folder: Path, number: str) -> None:
    job = json.loads((folder / f"{number}.job").read_text())
    script = Path(job["script"])
    with script.with_name("spool.out").open("wb") as output:
        environment = {**job["environment"], JOB_VARIABLE: number}
        code = subprocess.call(["sh", str(script)], env=environment, stdout=output, stderr=output)
    (folder / "ended").write_text(f"ended {code}")
    (folder / "ended").rename(folder / f"{number}.state")


def _folder(environment: Mapping[str, str]) -> Path:
    folder = Path(environment.get(FOLDER_VARIABLE, ""))
    if not folder.is_absolute() or not folder.is_dir():
        raise UsageError(f"{FOLDER_VARIABLE} is {str(folder)!r}; expected the folder of the spool: set it")
    return folder


def _view(folder: Path, number: str, waiting: list[str]) -> QueueView:
    if number in waiting:
        text = f"place {waiting.index(number) + 1} in the spool"
        return QueueView("waiting", text, text)
    state, _, code = (folder / f"{number}.state").read_text().partition(" ")
    if state == "cancelled":
        return QueueView("cancelled", "it was taken out of the spool")
    if state == "running":
        return QueueView("running", nodes="here")
    return QueueView("done" if code == "0" else "failed")


def _take(folder: Path, number: str, state: str) -> bool:
    """Gives a job that waits its first state; false if it has one already."""
    written = folder / f"{state}-{os.getpid()}"
    written.write_text(state)
    try:
        (folder / f"{number}.state").hardlink_to(written)
    except FileExistsError:
        return False
    finally:
        written.unlink()
    return True


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()

"""Runs one program on a node of the instance."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping

from csrun.console import flush_standard_streams, occupy_closed_descriptors
from csrun.schedulers.base import Asked, ProgramPlan, ProgramRequest
from csrun.tasks.command import find_command, start_error
from csrun.tasks.processes import signal_child_on_parent_death
from csrun.tasks.signals import INTERRUPTS, PASSED_ON, SignalPipe
from csrun_flux.client import FluxClient, FluxError, submission_environment
from csrun_flux.options import FluxOptions
from csrun_flux.place import ascii_id

POLL_S = 0.2
CANCEL_LIMIT_S = 10.0


def plan_program(request: ProgramRequest, asked: Asked) -> ProgramPlan:
    """Plan the `flux run` for a program.

    Raises:
        ToolkitError: the command does not exist.
    """
    if asked.site.container == "none" and not asked.dry_run:
        # A typo should not cost a wait in the queue.
        find_command(request.command[0], request.environment["PATH"])
    inside = request.inside and bool(asked.environment.get("FLUX_ENCLOSING_ID"))
    options = FluxOptions() if inside else FluxOptions.of_site(asked.site, asked.flags)
    name = f"csrun-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    terminal = os.isatty(0) and os.isatty(1)
    arguments = (
        *("flux", "run", f"--job-name={name}", "--nodes=1", "--exclusive", "--ntasks=1"),
        *(["--setopt=pty.interactive"] if terminal else []),
        *options.arguments,
        *request.command,
    )
    where = "on a node of this Flux instance"
    environment = submission_environment(request.environment)
    return ProgramPlan(arguments, environment, where, name, terminal, request.leaving_s)


def run_program(plan: ProgramPlan) -> int:
    """Run the program, pass signals on, and return its exit code."""
    occupy_closed_descriptors()
    file = find_command("flux", plan.environment["PATH"])
    flush_standard_streams()
    with SignalPipe() as signals:
        try:
            flux = subprocess.Popen(
                plan.words,
                executable=file,
                env=plan.environment,
                start_new_session=not plan.terminal,
                preexec_fn=signal_child_on_parent_death(signal.SIGTERM),
            )
        except OSError as error:
            raise start_error("flux", error) from error
        ended_by: signal.Signals | None = None
        force_at_s = float("inf")
        while flux.poll() is None:
            select.select([signals], [], [], POLL_S)
            for signum in signals.read():
                if signum in PASSED_ON:
                    _signal_job(plan.environment, plan.name, signum)
                elif signum in INTERRUPTS:
                    ended_by = ended_by or signum
                    running = _signal_job(plan.environment, plan.name, signum)
                    limit_s = CANCEL_LIMIT_S if plan.leaving_s is None else plan.leaving_s
                    force_at_s = min(force_at_s, time.monotonic() + limit_s if running else 0)
            if time.monotonic() >= force_at_s:
                force_at_s = time.monotonic() + CANCEL_LIMIT_S
                _cancel_job(plan.environment, plan.name)
        code = flux.returncode
        return 128 + ended_by if ended_by and code in (1, -ended_by) else code if code >= 0 else 128 - code


def _find_job(client: FluxClient, name: str) -> tuple[str, bool]:
    jobs = [job for job in client.jobs() if job.name == name]
    return (ascii_id(jobs[0].job_id), jobs[0].state == "RUN") if jobs else ("", False)


def _signal_job(environment: Mapping[str, str], name: str, signum: signal.Signals) -> bool:
    """Send a signal to the program; return False if it does not run."""
    client = FluxClient(environment)
    try:
        job_id, running = _find_job(client, name)
        if running:
            client.signal(job_id, signum)
    except FluxError:
        return False
    return running


def _cancel_job(environment: Mapping[str, str], name: str) -> None:
    client = FluxClient(environment)
    try:
        if job_id := _find_job(client, name)[0]:
            client.cancel(job_id)
    except FluxError:
        return

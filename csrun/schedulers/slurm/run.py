"""Starts a planned job on a cluster: checks, a socket for the agents, srun. `job_loop` does the rest."""

from __future__ import annotations

import random
import resource
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shlex import join

from csrun.console import STDERR, occupy_closed_descriptors, write_text
from csrun.errors import CsrunError, StartError
from csrun.jobs.output import cast
from csrun.jobs.record import known_job, prepare_log_dir
from csrun.jobs.registry import read_record, register
from csrun.schedulers.slurm.client import SlurmClient, submission_environment
from csrun.schedulers.slurm.guard import SrunGuard
from csrun.schedulers.slurm.job_loop import EXITS_DIR, STRANGERS, SlurmRun
from csrun.schedulers.slurm.plan import HOST_FILE_NAME, SlurmPlan
from csrun.schedulers.slurm.requeue import goes_back_into_queue, put_back
from csrun.tasks.command import find_command
from csrun.tasks.processes import start_task
from csrun.tasks.signals import SignalPipe

OTHER_FILES = 64
"""Files that the launcher opens beside its connections."""


def run_job(plan: SlurmPlan, environment: Mapping[str, str]) -> int:
    """Starts the job, streams its output, and waits until nothing of it is left on any node.

    A batch job that has to go on later is put back into the queue then.

    Args:
        plan: the job.
        environment: the launcher's own.

    Returns:
        The exit code of the first task that failed, 128 + n after signal n, 1 for a lost task or CS system,
        else 0.

    Raises:
        CsrunError: the job cannot be started; nothing is left of it.
    """
    exit_code = _run_once(plan, environment)
    if plan.requeue_code is not None:
        record = read_record(known_job(plan))
        if goes_back_into_queue(exit_code, record):
            put_back(environment["SLURM_JOB_ID"], environment, record)
    return exit_code


def _run_once(plan: SlurmPlan, environment: Mapping[str, str]) -> int:
    occupy_closed_descriptors()
    own = submission_environment(environment)
    path = plan.change.apply(environment).get("PATH", "")
    if plan.executed == plan.command:  # what is in a container, and its runtime, only the nodes need to have
        find_command(plan.executed[0], path)  # a typing error is not worth hours in the queue
    srun = find_command("srun", environment.get("PATH", ""))
    connections = len(plan.tasks) + STRANGERS + OTHER_FILES
    _check_open_files(connections)
    prepare_log_dir(plan.log_dir)
    for record in (plan.log_dir / EXITS_DIR).glob("rank-*.json"):  # of a job before, in the same directory
        record.unlink(missing_ok=True)
    register(known_job(plan), environment)
    write_text(STDERR, f"Launching: {join(plan.command)} ({cast(plan)})\n")
    with _listen(plan) as listener, SignalPipe() as signals:
        own["CSRUN_SUPERVISOR_HOST"] = "127.0.0.1" if plan.loopback else socket.gethostname()
        own["CSRUN_SUPERVISOR_PORT"] = str(listener.getsockname()[1])
        own["CSRUN_JOB_ID"] = plan.job_id
        token = own["CSRUN_JOB_TOKEN"] = token_hex(16)
        if plan.host_file:
            own["SLURM_HOSTFILE"] = str(plan.log_dir / HOST_FILE_NAME)
            Path(own["SLURM_HOSTFILE"]).write_text(plan.host_file, encoding="ascii")
        process = start_task(plan.srun, srun, own, dies_with_us=False)
        guard = SrunGuard(process.pid, [listener.fileno()])
        try:
            _allow_open_files(connections)  # only now: srun would pass the limit on to the tasks
            return SlurmRun(plan, SlurmClient(environment), signals, listener, process, guard, token).run()
        finally:
            guard.dismiss()


def _listen(plan: SlurmPlan) -> socket.socket:
    """A socket that agents can connect to, at a port that the site has opened for srun if it has."""
    address = "127.0.0.1" if plan.loopback else ""
    if plan.ports is None:
        return socket.create_server((address, 0), backlog=1024)
    first, last = plan.ports
    ports = list(range(first, last + 1))
    random.shuffle(ports)
    for port in ports:
        with suppress(OSError):
            return socket.create_server((address, port), backlog=1024)
    raise CsrunError(
        f"no port from {first} to {last} (SrunPortRange of slurm.conf) is free on this machine; expected one "
        f"that the tasks can connect to: end old jobs, or start this one with --use-sbatch"
    )


def _check_open_files(count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < count:
        raise StartError(
            f"this machine allows a process {hard} open files, and the job's connections need {count}; "
            f"expected one for each task: raise the limit (ulimit -Hn), or start csrun_wse inside the job "
            f"(--use-sbatch)"
        )


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in (resource.RLIM_INFINITY, -1) and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

"""Starts a planned job on a cluster: checks, a socket for the agents, srun; requeues it after its end.

`job_loop` supervises the job in between.
"""

from __future__ import annotations

import random
import resource
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from shlex import join
from typing import Any

from csrun.console import STDERR, occupy_closed_descriptors, say, write_text
from csrun.errors import CsrunError, StartError
from csrun.jobs.output import describe_tasks
from csrun.jobs.record import known_job, prepare_log_dir
from csrun.jobs.registry import read_record, register
from csrun.schedulers.slurm.allocation import Allocation, read_allocation
from csrun.schedulers.slurm.client import SlurmClient, SlurmError, submission_environment
from csrun.schedulers.slurm.job_loop import EXITS_DIR, MAX_UNAUTHENTICATED_PEERS, SlurmRun
from csrun.schedulers.slurm.plan import HOST_FILE_NAME, SlurmPlan
from csrun.schedulers.slurm.srun import SrunGuard
from csrun.tasks.command import find_command
from csrun.tasks.processes import start_task
from csrun.tasks.roles import EXIT_REQUEUE
from csrun.tasks.signals import SignalPipe

OTHER_FILES = 64  # that the launcher opens in addition to its connections
PROBE_LIMIT_S = 10.0
POLL_S = 2.0
PROGRAM = "csrun_wse"


def run_job(plan: SlurmPlan, environment: Mapping[str, str]) -> int:
    """Start the job, stream its output, and wait until nothing of it is left on any node.

    A batch job that has to continue later is then put back into the queue.

    Args:
        plan: of the job.
        environment: of the launcher.

    Returns:
        The exit code of the first task that has failed, 128 + n after signal n, 1 for a lost task or CS
        system, else 0.

    Raises:
        CsrunError: the job cannot be started; nothing of it is left running.
    """
    exit_code = _run_once(plan, environment)
    if plan.requeue_code is not None:
        record = read_record(known_job(plan))
        if should_requeue(exit_code, record):
            requeue_job(environment["SLURM_JOB_ID"], environment, record)
    return exit_code


def _run_once(plan: SlurmPlan, environment: Mapping[str, str]) -> int:
    occupy_closed_descriptors()
    own = submission_environment(environment)
    path = plan.change.apply(environment).get("PATH", "")
    if plan.executed == plan.command:  # only the nodes need a container runtime and image
        find_command(plan.executed[0], path)  # a typo should not cost hours in the queue
    srun = find_command("srun", environment.get("PATH", ""))
    connections = len(plan.tasks) + MAX_UNAUTHENTICATED_PEERS + OTHER_FILES
    _check_open_files(connections)
    prepare_log_dir(plan.log_dir)
    for record in (plan.log_dir / EXITS_DIR).glob("rank-*.json"):  # of an earlier job in the same directory
        record.unlink(missing_ok=True)
    register(known_job(plan), environment)
    write_text(STDERR, f"Launching: {join(plan.command)} ({describe_tasks(plan)})\n")
    with _listen(plan) as listener, SignalPipe() as signals:
        own["CSRUN_SUPERVISOR_HOST"] = "127.0.0.1" if plan.loopback else socket.gethostname()
        own["CSRUN_SUPERVISOR_PORT"] = str(listener.getsockname()[1])
        own["CSRUN_JOB_ID"] = plan.job_id
        token = own["CSRUN_JOB_TOKEN"] = token_hex(16)
        if plan.host_file:
            own["SLURM_HOSTFILE"] = str(plan.log_dir / HOST_FILE_NAME)
            Path(own["SLURM_HOSTFILE"]).write_text(plan.host_file, encoding="ascii")
        process = start_task(plan.srun, srun, own, dies_with_parent=False)
        guard = SrunGuard(process.pid, [listener.fileno()])
        try:
            _allow_open_files(connections)  # not earlier: srun would pass the limit on to the tasks
            return SlurmRun(plan, SlurmClient(environment), signals, listener, process, guard, token).run()
        finally:
            guard.dismiss()


def _listen(plan: SlurmPlan) -> socket.socket:
    """Listen for agents, on a port of the site's SrunPortRange if it has one."""
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
        f"no port from {first} to {last} (SrunPortRange of slurm.conf) is free on this machine; expected a "
        f"port for connections of the tasks: end old jobs, or start this one with --use-sbatch"
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


def should_requeue(exit_code: int, record: Mapping[str, Any] | None) -> bool:
    """Return True if a batch job with --requeue has to be put back into the queue.

    That is after a checkpoint before the time limit (exit code `EXIT_REQUEUE`), and after the loss of a task
    with its node.
    """
    tasks = (record or {}).get("tasks") or ()
    return exit_code == EXIT_REQUEUE or any(task.get("state") == "lost" for task in tasks)


def requeue_job(slurm_job_id: str, environment: Mapping[str, str], record: Mapping[str, Any] | None) -> None:
    """Put the batch job of this process back into the queue; Slurm then ends the process.

    Args:
        slurm_job_id: Slurm's number of the job.
        environment: of the batch script.
        record: of the job.

    Raises:
        SlurmError: Slurm does not requeue it.
    """
    say(PROGRAM, f"job {slurm_job_id} goes back into the queue and will resume from its last checkpoint")
    tasks = (record or {}).get("tasks") or ()
    lost = {str(task.get("host")) for task in tasks if task.get("state") == "lost"}
    wait_for_lost_nodes(lost, environment, lambda text: say(PROGRAM, text))
    SlurmClient(environment).requeue(slurm_job_id)


def wait_for_lost_nodes(
    names: Collection[str], environment: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Wait until each of these nodes either answers or is DOWN in Slurm.

    Slurm itself may requeue the job meanwhile, which ends this process.

    Args:
        names: nodes of this job on which a task was lost.
        environment: of the batch script.
        say: prints a line for the user.

    Raises:
        SlurmError: the controller does not answer.
    """
    client = SlurmClient(environment)
    allocation = read_allocation(environment)
    silent = {name for name in names if allocation is None or not _answers(client, allocation, name)}
    if silent:
        say(f"waiting until Slurm notices the loss of {', '.join(sorted(silent))}, which takes some minutes")
    while silent - _down(client, silent):
        time.sleep(POLL_S)


def _answers(client: SlurmClient, allocation: Allocation, name: str) -> bool:
    """Return True if a step runs on the node: its daemon may work although a task was lost."""
    group = next((number for number, nodes in enumerate(allocation.groups) if name in nodes), 0)
    where = [f"--jobid={allocation.job_id}", f"--nodelist={name}"]
    where += [f"--het-group={group}"] if allocation.heterogeneous else []
    try:
        client.run(
            *("srun", *where, "--nodes=1", "--ntasks=1", "--overlap", "--input=none", "--mpi=none", "true"),
            limit_s=PROBE_LIMIT_S,
        )
    except SlurmError:
        return False
    return True


def _down(client: SlurmClient, names: Collection[str]) -> set[str]:
    text = client.run("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N %t")
    states = (line.split() for line in text.splitlines())
    return {name for name, state in states if state.startswith(("down", "drain", "drng", "fail"))}

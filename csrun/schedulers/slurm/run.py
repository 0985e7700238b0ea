"""Runs a planned job on a cluster, and puts a batch job that has to continue back into the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from csrun.agent.launch import run_agents
from csrun.console import say
from csrun.jobs.record import known_job
from csrun.jobs.registry import read_record
from csrun.schedulers.slurm.allocation import Allocation, read_allocation
from csrun.schedulers.slurm.client import SlurmClient, SlurmError, submission_environment
from csrun.schedulers.slurm.plan import HOST_FILE_NAME, SlurmPlan
from csrun.schedulers.slurm.srun import SrunStarter
from csrun.tasks.place import EXIT_REQUEUE

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
    own = submission_environment(environment)
    if HOST_FILE_NAME in plan.files:
        own["SLURM_HOSTFILE"] = str(plan.log_dir / HOST_FILE_NAME)
    starter = SrunStarter(SlurmClient(environment), plan.job_name, plan.resource, plan.owner)
    exit_code = run_agents(plan, starter, environment, own)
    if plan.requeue_code is not None:
        record = read_record(known_job(plan))
        if should_requeue(exit_code, record):
            requeue_job(environment["SLURM_JOB_ID"], environment, record)
    return exit_code


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

    Args:
        names: nodes of this job on which a task was lost.
        environment: of the batch script.
        say: prints a line for the user.

    Raises:
        SlurmError: the controller does not answer.
    """
    # Slurm itself may requeue the job meanwhile, which ends this process.
    client = SlurmClient(environment)
    allocation = read_allocation(environment)
    silent = {name for name in names if allocation is None or not _answers(client, allocation, name)}
    if silent:
        say(f"waiting until Slurm notices the loss of {', '.join(sorted(silent))}, which takes some minutes")
    while silent:
        query = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(silent)}", "--format=%N %t")
        states = (line.split() for line in client.run(*query).splitlines())
        if silent <= {name for name, state in states if state.startswith(("down", "drain", "drng", "fail"))}:
            return
        time.sleep(POLL_S)


def _answers(client: SlurmClient, allocation: Allocation, name: str) -> bool:
    """Return True if a step runs on the node."""
    # Its daemon may work although a task was lost; Slurm would then never report the node as DOWN.
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

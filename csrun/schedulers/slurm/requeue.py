"""A batch job that goes back into the queue, and on from its last checkpoint when it is started again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from csrun.console import say
from csrun.schedulers.slurm.client import SlurmClient
from csrun.schedulers.slurm.lost_nodes import await_lost_nodes
from csrun.tasks.roles import EXIT_REQUEUE

PROGRAM = "csrun_wse"


def goes_back_into_queue(exit_code: int, record: Mapping[str, Any] | None) -> bool:
    """Whether a batch job that may be put back into the queue has ended in a way that asks for it.

    That is a checkpoint before the time limit (the program leaves with `EXIT_REQUEUE`), and a task that was
    lost with its node.
    """
    tasks = (record or {}).get("tasks") or ()
    return exit_code == EXIT_REQUEUE or any(task.get("state") == "lost" for task in tasks)


def put_back(slurm_job_id: str, environment: Mapping[str, str], record: Mapping[str, Any] | None) -> None:
    """Puts the batch job that this process is part of back into the queue; Slurm then ends the process.

    Args:
        slurm_job_id: Slurm's number of the job.
        environment: of the batch script.
        record: the job's own.

    Raises:
        SlurmError: Slurm does not put it back.
    """
    say(PROGRAM, f"job {slurm_job_id} goes back into the queue, and on from its last checkpoint")
    tasks = (record or {}).get("tasks") or ()
    lost = {str(task.get("host")) for task in tasks if task.get("state") == "lost"}
    await_lost_nodes(lost, environment, lambda text: say(PROGRAM, text))
    SlurmClient(environment).requeue(slurm_job_id)

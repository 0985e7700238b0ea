"""What Slurm tells a task about itself in its environment, as SLURM_PROCID and SLURM_NTASKS. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def step_variables(
    environment: Mapping[str, str], rank: int, tasks: int, cpus: int | None = None
) -> dict[str, str]:
    """Those of one task of a step with so many tasks, all on this node (srun(1), output environment).

    Nothing where Slurm has not started us: then it would not have started the tasks either. The numbers of
    the job, its step and its nodes stay as they are.

    Args:
        environment: of this process.
        rank: of the task.
        tasks: of the step.
        cpus: of each task; None: what the environment says of that stays.
    """
    if "SLURM_PROCID" not in environment:
        return {}
    number, count = str(rank), str(tasks)
    each = {} if cpus is None else {"SLURM_CPUS_PER_TASK": str(cpus)}
    return {
        **each,
        "SLURM_PROCID": number,
        "SLURM_LOCALID": number,
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(tasks))),
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": count,
        "SLURM_NPROCS": count,
        "SLURM_NTASKS_PER_NODE": count,
        "SLURM_TASKS_PER_NODE": count,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_TASKS_PER_NODE": count,
    }

"""Reads the place of a task from the variables of a Slurm step. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Mapping

from csrun.tasks.place import TaskPlace, read_rank, read_text


def read_place(environment: Mapping[str, str]) -> TaskPlace | None:
    """Return the place of a task of a step; None outside of one.

    Raises:
        RoleError: a variable is missing or invalid.
    """
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment:
        return None
    # In a heterogeneous step, ranks and SLURM_NTASKS count across all components, and SLURM_STEP_NUM_TASKS
    # only its own component. In other steps SLURM_NTASKS may be that of the whole allocation.
    count_name = "SLURM_NTASKS"
    if "SLURM_HET_SIZE" not in environment and "SLURM_STEP_NUM_TASKS" in environment:
        count_name = "SLURM_STEP_NUM_TASKS"
    rank, num_tasks = read_rank(environment, "SLURM_PROCID", count_name)
    job_id, step_id = read_text(environment, "SLURM_JOB_ID"), environment["SLURM_STEP_ID"]
    cpus = environment.get("SLURM_CPUS_ON_NODE", "")
    return TaskPlace(
        scheduler="Slurm",
        job=f"slurm-{job_id}.{step_id}",
        job_id=job_id,
        step_id=step_id,
        rank=rank,
        num_tasks=num_tasks,
        node=environment.get("SLURMD_NODENAME", ""),
        cpus_on_node=int(cpus) if cpus.isdigit() else 0,
        # The address of srun's own connections can always be reached from a node; a host name may not be.
        launcher_host=environment.get("SLURM_LAUNCH_NODE_IPADDR", ""),
    )

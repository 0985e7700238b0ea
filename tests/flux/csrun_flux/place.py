"""Reads the place of a task from the variables of a Flux job. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Mapping

from csrun.tasks.place import TaskPlace, read_rank, read_text

NODE_VARIABLE = "CSRUN_FLUX_NODE"
CORES_VARIABLE = "CSRUN_FLUX_CORES"
PLACE_ARGUMENTS = ("env", f"{NODE_VARIABLE}={{{{node.name}}}}", f"{CORES_VARIABLE}={{{{node.ncores}}}}")
"""Start of a command that sets what Flux has no variables for; its job shell fills in the braces."""


def read_place(environment: Mapping[str, str]) -> TaskPlace | None:
    """Return the place of a task of a job; None outside of one.

    Raises:
        RoleError: a variable is missing or invalid.
    """
    if "FLUX_JOB_ID" not in environment or "FLUX_TASK_RANK" not in environment:
        return None
    rank, num_tasks = read_rank(environment, "FLUX_TASK_RANK", "FLUX_JOB_SIZE")
    path = environment.get("FLUX_JOB_ID_PATH") or read_text(environment, "FLUX_JOB_ID")
    # A job of the instance of a batch job: "/OUTER/INNER".
    *outer, job_id = [ascii_id(each) for each in path.split("/") if each]
    cores = environment.get(CORES_VARIABLE, "")
    return TaskPlace(
        scheduler="Flux",
        job=f"flux-{'.'.join([*outer, job_id])}",
        job_id=outer[-1] if outer else job_id,
        step_id=job_id if outer else "",
        rank=rank,
        num_tasks=num_tasks,
        node=environment.get(NODE_VARIABLE, ""),
        cpus_on_node=int(cores) if cores.isdigit() else 0,
    )


def ascii_id(job_id: str) -> str:
    """Return an id as Flux prints it without UTF-8, which all its commands accept."""
    return job_id.replace("\u0192", "f")

"""Which task of the job this process is, in the words of the original: streamers send, a receiver runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cs_runtime.tasks import shared_config
from cstorch.job import task


def is_receiver() -> bool:
    """Whether this process drives the run."""
    return task().role == "chief"


def num_receivers() -> int:
    """Processes that drive the run: one."""
    return 1


def num_tasks() -> int:
    """Processes of the job."""
    return task().num_tasks


def get_ordinal() -> int:
    """Number of this process in the job, from 0; the one that drives the run is the first."""
    return task().rank


def is_master_ordinal(local: bool = False) -> bool:
    """Whether this process is the one that drives the run and writes its files.

    Args:
        local: taken for programs that ask for the first process of a node; there is one such process.
    """
    return task().rank == 0


@dataclass(frozen=True)
class ServiceResolver:
    """The tasks of the job with their addresses.

    Attributes:
        cluster: addresses by role, "chief" and "worker".
        task_type: role of this task.
        task_id: its number within the role.
    """

    cluster: dict[str, list[str]]
    task_type: str
    task_id: int

    def cluster_spec(self) -> dict[str, list[str]]:
        """The addresses of all tasks by role."""
        return dict(self.cluster)

    def get_task_info(self) -> tuple[str, int]:
        """Role and number of this task."""
        return self.task_type, self.task_id


def service_resolver() -> ServiceResolver:
    """The tasks of this job."""
    config: dict[str, Any] = shared_config()
    return ServiceResolver(config["cluster"], str(config["task"]["type"]), int(config["task"]["index"]))

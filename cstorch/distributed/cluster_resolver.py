"""The tasks of a job, their roles, and the CS systems that they feed."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

from cs_runtime.tasks import job_config
from cstorch.job import get_streaming_rank, num_streamers, task


class TaskRole(enum.Enum):
    """The role of a task."""

    MASTER = "master"
    WORKER = "worker"


@dataclass
class TaskSpec:
    """One task.

    Attributes:
        rank: Number among all tasks that read the input.
        local_rank: Number among the tasks that feed the same CS system.
        wse_id: Number of that CS system.
        node_name: Name of the node.
        roles: Roles of the task.

    Raises:
        ValueError: A number is negative.
    """

    rank: int
    local_rank: int
    wse_id: int
    node_name: str
    roles: list[TaskRole] | None = None

    def __post_init__(self) -> None:
        for name in ("rank", "local_rank", "wse_id"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 0 or more")
        self.roles = list(self.roles or [])


@dataclass
class ClusterSpec:
    """All tasks that read the input of a run.

    Attributes:
        tasks: The tasks.
        rank: Number of this process's task.
        num_csx: Number of CS systems.
        num_workers_per_csx: Number of tasks that feed one of them.

    Raises:
        ValueError: A number is invalid.
    """

    tasks: list[TaskSpec]
    rank: int
    num_csx: int
    num_workers_per_csx: int

    def __post_init__(self) -> None:
        if self.num_csx < 1 or self.num_workers_per_csx < 1:
            raise ValueError(
                f"num_csx is {self.num_csx} and num_workers_per_csx {self.num_workers_per_csx}, expected 1 "
                "or more of each"
            )

    def num_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)

    def task(self, rank: int | None = None) -> TaskSpec:
        """Return a task by its number, or the task of this process.

        Raises:
            ValueError: There is no such task.
        """
        wanted = self.rank if rank is None else rank
        found = next((spec for spec in self.tasks if spec.rank == wanted), None)
        if found is None:
            raise ValueError(f"there is no task {wanted}, expected one of {len(self.tasks)}")
        return found

    def filter_tasks_by_role(self, role: TaskRole) -> list[TaskSpec]:
        """Return the tasks with a role."""
        return [spec for spec in self.tasks if role in (spec.roles or ())]


def cluster_spec() -> JobSpec:
    """Return the tasks that read the input of this job."""
    # A step takes the batch of one task, and several CS systems share it: all tasks feed the same system.
    readers, node = num_streamers(), os.uname().nodename
    tasks = [TaskSpec(rank, rank, 0, node, [TaskRole.WORKER]) for rank in range(readers)]
    if task().in_process_worker:
        tasks[0].roles = [TaskRole.MASTER, TaskRole.WORKER]
    return JobSpec(tasks, get_streaming_rank(), 1, readers)


class JobSpec(ClusterSpec):
    """The tasks of this job; called, as programs of release 1 do, their addresses by role."""

    def __call__(self) -> dict[str, list[str]]:
        """Return the addresses of all tasks by role, "chief" and "worker"."""
        return dict(job_config()["cluster"])


class BaseServiceResolver:
    """The tasks of this job, and the place of this process among them."""

    def setup(self) -> None:
        """Do nothing: the launchers have started all tasks."""

    @classmethod
    def get_resolver(cls) -> BaseServiceResolver:
        """Return the resolver of this process."""
        return cls()

    def get_task_info(self) -> tuple[str, int]:
        """Return role and number of this task."""
        own = job_config()["task"]
        return str(own["type"]), int(own["index"])

    @property
    def cluster_resolver(self) -> BaseServiceResolver:
        """This resolver."""
        return self

    @property
    def cluster_spec(self) -> JobSpec:
        """The tasks that read the input of this job."""
        return cluster_spec()

    def streamer_ordinals(self) -> list[int]:
        """Return the numbers of the tasks that read the input."""
        return [spec.rank for spec in self.cluster_spec.tasks]

    def receiver_ordinals(self) -> list[int]:
        """Return the number of the task that drives the run."""
        return [0]


def is_receiver() -> bool:
    """Return True if this process drives the run."""
    return task().role == "chief"


def num_receivers() -> int:
    """Return the number of processes that drive the run: one."""
    return 1


def num_tasks() -> int:
    """Return the number of processes of the job."""
    return task().num_tasks


def get_ordinal() -> int:
    """Return the number of this process in the job; 0 is the one that drives the run."""
    return task().rank


def is_master_ordinal(local: bool = False) -> bool:
    """Return True if this process drives the run and writes its files.

    Args:
        local: Ask for the first process of the node; without effect.
    """
    return task().rank == 0


def service_resolver() -> BaseServiceResolver:
    """Return the tasks of this job."""
    return BaseServiceResolver.get_resolver()


def get_rank() -> int:
    """Return the number of this process in the job, from 0."""
    return task().rank


def get_world_size() -> int:
    """Return the number of processes of the job."""
    return task().num_tasks


def get_streaming_batch_size(effective_batch_size: int, global_rank: int | None = None) -> int:
    """Return the samples in a worker's batch: all samples of a step, which takes the batch of one worker.

    Args:
        effective_batch_size: Samples of a step.
        global_rank: Number of the worker; without effect.
    """
    return effective_batch_size

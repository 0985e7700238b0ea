"""Which task of the job this process is, in the words of the original: streamers send, a receiver runs."""

from __future__ import annotations

from cstorch.distributed.cluster_resolver import BaseServiceResolver
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
    """Return the samples of a worker's batch: a step takes the batch of one worker, so all of them.

    Args:
        effective_batch_size: Samples of a step.
        global_rank: Number of the worker; it does not matter.
    """
    return effective_batch_size

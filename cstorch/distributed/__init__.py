"""The tasks of a job, as programs of the original ask for them, and the cluster that a run is for."""

from cstorch.distributed.cluster import ClusterConfig, CSConfig
from cstorch.distributed.tasks import (
    ServiceResolver,
    get_ordinal,
    is_master_ordinal,
    is_receiver,
    num_receivers,
    num_tasks,
    service_resolver,
)
from cstorch.distributed.worker_state import WorkerState, get_worker_state
from cstorch.streaming import get_streaming_rank, is_streamer, num_streamers

__all__ = [
    "CSConfig",
    "ClusterConfig",
    "ServiceResolver",
    "WorkerState",
    "get_ordinal",
    "get_streaming_rank",
    "get_worker_state",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "service_resolver",
]

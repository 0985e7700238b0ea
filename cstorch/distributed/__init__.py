"""The tasks of a job and the cluster of a run, by the original's names."""

from cs_toolkit.units import bytes_to_human
from cstorch.distributed import cluster_resolver
from cstorch.distributed.cluster import ClusterConfig, CSConfig
from cstorch.distributed.cluster_resolver import (
    BaseServiceResolver,
    ClusterSpec,
    TaskRole,
    TaskSpec,
    get_ordinal,
    get_rank,
    get_streaming_batch_size,
    get_world_size,
    is_master_ordinal,
    is_receiver,
    num_receivers,
    num_tasks,
    service_resolver,
)
from cstorch.distributed.workers import (
    WORKER_CACHE_ROOT,
    WorkerState,
    get_dir_size,
    get_worker_state,
    hit_worker_cache_limit,
)
from cstorch.job import get_streaming_rank, is_streamer, num_streamers
from cstorch.storage import ValueContext

__all__ = [
    "WORKER_CACHE_ROOT",
    "BaseServiceResolver",
    "CSConfig",
    "ClusterConfig",
    "ClusterSpec",
    "TaskRole",
    "TaskSpec",
    "ValueContext",
    "WorkerState",
    "bytes_to_human",
    "cluster_resolver",
    "get_dir_size",
    "get_ordinal",
    "get_rank",
    "get_streaming_batch_size",
    "get_streaming_rank",
    "get_worker_state",
    "get_world_size",
    "hit_worker_cache_limit",
    "is_master_ordinal",
    "is_receiver",
    "is_streamer",
    "num_receivers",
    "num_streamers",
    "num_tasks",
    "service_resolver",
]

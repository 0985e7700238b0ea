"""The input of a step, and loops over it."""

from cstorch.data import DataLoader
from cstorch.executor import DataExecutor, current_executor
from cstorch.iterations import Range, Schedule, compute_num_steps
from cstorch.utils.datasets import (
    DistributedSampler,
    RestartableDataLoader,
    SyntheticDataset,
    infer_batch_size,
)

__all__ = [
    "DataExecutor",
    "DataLoader",
    "DistributedSampler",
    "Range",
    "RestartableDataLoader",
    "Schedule",
    "SyntheticDataset",
    "compute_num_steps",
    "current_executor",
    "infer_batch_size",
]

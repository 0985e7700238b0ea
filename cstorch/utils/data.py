"""The input of a step, and loops over it."""

from cstorch.input.datasets import (
    DistributedSampler,
    RestartableDataLoader,
    SyntheticDataset,
    infer_batch_size,
)
from cstorch.iterations import Range, Schedule, compute_num_steps
from cstorch.loop.loaders import DataExecutor, DataLoader, current_executor

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

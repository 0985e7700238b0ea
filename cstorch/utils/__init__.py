"""Utilities that programs import in addition to the functions of the package."""

from cstorch.distributed.cluster import CSConfig
from cstorch.utils import benchmark, data, helpers, profiler, tensorboard
from cstorch.utils.helpers import extract_loss

# Modules of the original.
call_once = filters = nest = helpers
run_phases = profiler

__all__ = [
    "CSConfig",
    "benchmark",
    "call_once",
    "data",
    "extract_loss",
    "filters",
    "nest",
    "profiler",
    "run_phases",
    "tensorboard",
]

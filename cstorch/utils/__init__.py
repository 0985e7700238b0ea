"""Utilities that programs import in addition to the functions of the package."""

from cstorch.distributed.cluster import CSConfig
from cstorch.utils import benchmark, call_once, data, filters, nest, profiler, run_phases, tensorboard
from cstorch.utils.filters import extract_loss

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

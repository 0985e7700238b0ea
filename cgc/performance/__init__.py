"""The performance model: time on the wafer, predicted from the placed kernels."""

from cgc.performance.model import Figures, Performance, estimate

__all__ = [
    "Figures",
    "Performance",
    "estimate",
]

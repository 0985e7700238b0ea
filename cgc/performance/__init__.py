"""The performance model: time on the wafer, predicted from the placed kernels."""

from cgc.performance.model import Figures, Performance, estimate
from cgc.performance.weight_streaming import StreamingEstimate, streaming_estimate

__all__ = [
    "Figures",
    "Performance",
    "StreamingEstimate",
    "estimate",
    "streaming_estimate",
]

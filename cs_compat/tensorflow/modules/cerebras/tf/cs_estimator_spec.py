"""The result of a `model_fn`."""

from estimator import CSEstimatorSpec

__all__ = ["CSEstimatorSpec"]

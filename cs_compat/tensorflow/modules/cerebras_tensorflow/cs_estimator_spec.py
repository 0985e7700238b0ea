"""What a `model_fn` returns."""

from estimator import CSEstimatorSpec

__all__ = ["CSEstimatorSpec"]

"""The class EstimatorSpec."""

from estimator import EstimatorSpec, ModeKeys

__all__ = ["EstimatorSpec", "ModeKeys"]

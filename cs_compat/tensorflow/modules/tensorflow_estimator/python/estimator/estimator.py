"""The class Estimator."""

from cs_compat.tensorflow.cpu_estimator import Estimator

__all__ = ["Estimator"]

"""The class Estimator."""

from csrun.flavours.tensorflow.cpu_estimator import Estimator

__all__ = ["Estimator"]

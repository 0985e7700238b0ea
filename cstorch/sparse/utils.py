"""Schedules and masks of sparse weights, by the names that programs import."""

from cstorch.sparse.masks import InitMethod, init_method_of, largest
from cstorch.sparse.schedules import (
    Constant,
    Cosine,
    Cycling,
    Exp,
    FreqSchedule,
    HyperParameterSchedule,
    Lambda,
    Linear,
    ListSchedule,
    Power,
    UpdateSchedule,
    configure_hyperparameter,
)

__all__ = [
    "Constant",
    "Cosine",
    "Cycling",
    "Exp",
    "FreqSchedule",
    "HyperParameterSchedule",
    "InitMethod",
    "Lambda",
    "Linear",
    "ListSchedule",
    "Power",
    "UpdateSchedule",
    "configure_hyperparameter",
    "init_method_of",
    "largest",
]

"""Schedules and masks of sparse weights, by the names that programs import."""

from __future__ import annotations

from typing import Any

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
    configure_update,
)
from cstorch.sparse.scores import (
    InputGroupScoreShaper,
    OutputGroupScoreShaper,
    ScoreFlattener,
    ScoreShaper,
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
)

make_update_schedule = configure_update


def make_hyperparam_schedule(schedule: Any) -> HyperParameterSchedule:
    """Return the schedule of a number, a list to cycle through, a function of the step, or a dictionary."""
    return configure_hyperparameter("schedule", schedule)


__all__ = [
    "Constant",
    "Cosine",
    "Cycling",
    "Exp",
    "FreqSchedule",
    "HyperParameterSchedule",
    "InitMethod",
    "InputGroupScoreShaper",
    "Lambda",
    "Linear",
    "ListSchedule",
    "OutputGroupScoreShaper",
    "Power",
    "ScoreFlattener",
    "ScoreShaper",
    "UpdateSchedule",
    "configure_hyperparameter",
    "configure_update",
    "init_method_of",
    "largest",
    "make_hyperparam_schedule",
    "make_mask_drop_minimum",
    "make_mask_grow_maximum",
    "make_mask_topk_sparsity",
    "make_update_schedule",
]

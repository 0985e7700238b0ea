"""Modes of a run, where programs of release 1 import them."""

from cstorch.core.modes import (
    EVAL,
    EVAL_ALL,
    INFERENCE,
    TRAIN,
    TRAIN_AND_EVAL,
    get_modes,
    is_valid,
)

__all__ = ["EVAL", "EVAL_ALL", "INFERENCE", "TRAIN", "TRAIN_AND_EVAL", "get_modes", "is_valid"]

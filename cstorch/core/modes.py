"""Modes of a run."""

from __future__ import annotations

TRAIN = "train"
EVAL = "eval"
EVAL_ALL = "eval_all"
TRAIN_AND_EVAL = "train_and_eval"
INFERENCE = "inference"

_MODES = (TRAIN, EVAL, EVAL_ALL, TRAIN_AND_EVAL, INFERENCE)


def get_modes() -> list[str]:
    """Return all modes."""
    return list(_MODES)


def is_valid(mode: str) -> bool:
    """Return True if this is a mode."""
    return mode in _MODES

"""First values of variables from the checkpoint of another training."""

from __future__ import annotations

from typing import Any

from estimator.errors import CallError, CheckpointReadError, essence
from estimator.spec import WarmStartSettings


def settings_of(given: Any) -> WarmStartSettings | None:
    """A path, or settings like `tf.estimator.WarmStartSettings`, as our settings.

    Raises:
        CallError: neither of them.
    """
    if given is None or isinstance(given, WarmStartSettings):
        return given
    if isinstance(given, str):
        return WarmStartSettings(given)
    if hasattr(given, "ckpt_to_initialize_from"):
        return WarmStartSettings(*(getattr(given, name) for name in WarmStartSettings._fields))
    raise CallError(f"warm_start_from must be a path or WarmStartSettings, got {given!r}")


def warm_start(settings: WarmStartSettings) -> None:
    """Makes the initializers of the present graph's variables read a checkpoint.

    Raises:
        CheckpointReadError: the checkpoint is missing, damaged, or lacks a variable.
    """
    import tensorflow as tf

    try:
        tf.compat.v1.train.warm_start(*settings)
    except (tf.errors.OpError, ValueError, KeyError) as error:
        raise CheckpointReadError(settings.ckpt_to_initialize_from, essence(error)) from error

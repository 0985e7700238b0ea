"""Learning rates as functions of the global step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from models.common.tf.params import Phase


def learning_rate(phases: Sequence[Phase], step: Any) -> Any:
    """Return the learning rate of a step, float32.

    Args:
        phases: One or more consecutive phases; after the last one its end value stays.
        step: The global step, from 0.
    """
    position = tf.cast(step, tf.float32)
    begin = 0
    rate: Any = None
    for phase in phases:
        value = _value(phase, position, begin)
        rate = value if rate is None else tf.where(position < begin, rate, value)
        begin += phase.steps or 0
    return rate


def _value(phase: Phase, position: Any, begin: int) -> Any:
    """Return the value of a phase that starts at `begin`; outside of the phase, that at its nearest end."""
    first, last = phase.initial_learning_rate, phase.end_learning_rate
    if phase.scheduler == "InverseSquareRoot":
        return first * tf.math.rsqrt(tf.maximum(position / max(begin, 1), 1.0))
    if phase.scheduler == "Constant" or last is None or phase.steps is None:
        return tf.constant(first, tf.float32)
    part = tf.clip_by_value((position - begin) / phase.steps, 0.0, 1.0)
    if phase.scheduler == "Linear":
        return first + (last - first) * part
    if phase.scheduler == "Cosine":
        return last + (first - last) * 0.5 * (1.0 + tf.cos(math.pi * part))
    return first * (last / first) ** part

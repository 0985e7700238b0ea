"""Loss scaling: gradients too small for float16 survive if the loss is multiplied before them."""

from __future__ import annotations

from typing import Any

from estimator.errors import CallError


def loss_scale_optimizer(
    optimizer: Any,
    loss_scale: float | str = "dynamic",
    *,
    initial_loss_scale: float = 2.0**15,
    increment_period: int = 2000,
    multiplier: float = 2.0,
) -> Any:
    """An optimizer that computes the gradients of the scaled loss, and divides them by the scale again.

    With a dynamic scale a step whose gradients are not all finite changes no weight and divides the scale;
    after a number of good steps the scale is multiplied. Scale and count are variables, so checkpoints have
    them. TensorFlow's own `MixedPrecisionLossScaleOptimizer` may be used in the same way.

    Args:
        optimizer: a `tf.compat.v1.train.Optimizer`.
        loss_scale: a number, or "dynamic".
        initial_loss_scale: first value of a dynamic scale.
        increment_period: good steps in a row until a dynamic scale grows.
        multiplier: factor by which it grows and shrinks.

    Raises:
        CallError: `loss_scale` is neither "dynamic" nor a number of at least 1.
    """
    import tensorflow as tf
    from tensorflow.python.util.deprecation import silence

    mixed = tf.compat.v1.mixed_precision
    if loss_scale == "dynamic":
        with silence():  # what TensorFlow offers instead needs Keras
            scale = mixed.DynamicLossScale(initial_loss_scale, increment_period, multiplier)
    elif isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool) and loss_scale >= 1:
        with silence():
            scale = mixed.FixedLossScale(loss_scale)
    else:
        raise CallError(f"loss_scale must be 'dynamic' or a number >= 1, got {loss_scale!r}")
    with silence():
        return mixed.MixedPrecisionLossScaleOptimizer(optimizer, scale)

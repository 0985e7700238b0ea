"""Loss scaling, which keeps gradients that would be too small for float16."""

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
    """Wrap an optimizer to compute the gradients of the scaled loss and divide them by the scale.

    With a dynamic scale, a step whose gradients are not all finite changes no weights and decreases the
    scale; after a number of good steps the scale increases. Scale and count are variables, so checkpoints
    have them. TensorFlow's own `MixedPrecisionLossScaleOptimizer` works in the same way.

    Args:
        optimizer: A `tf.compat.v1.train.Optimizer`.
        loss_scale: A number, or "dynamic".
        initial_loss_scale: Initial value of a dynamic scale.
        increment_period: Number of consecutive good steps before a dynamic scale increases.
        multiplier: Factor by which a dynamic scale increases and decreases.

    Raises:
        CallError: `loss_scale` is neither "dynamic" nor a number of at least 1.
    """
    import tensorflow as tf
    from tensorflow.python.util.deprecation import silence

    mixed = tf.compat.v1.mixed_precision
    if loss_scale == "dynamic":
        with silence():  # the replacement that the deprecation warning names needs Keras
            scale = mixed.DynamicLossScale(initial_loss_scale, increment_period, multiplier)
    elif isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool) and loss_scale >= 1:
        with silence():
            scale = mixed.FixedLossScale(loss_scale)
    else:
        raise CallError(f"loss_scale must be 'dynamic' or a number >= 1, got {loss_scale!r}")
    with silence():
        return mixed.MixedPrecisionLossScaleOptimizer(optimizer, scale)

"""`tf.keras.mixed_precision.experimental` of Keras 2: policies that carry a loss scale."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Not tf.keras, which is still being imported when this module is.
from tf_keras.src.mixed_precision import loss_scale_optimizer, policy

_v1 = tf.compat.v1.mixed_precision

_DEFAULT = object()

global_policy = policy.global_policy


class Policy(policy.Policy):  # type: ignore[misc]
    """A dtype policy with the loss scale of the optimizers of `Model.compile`.

    Args:
        name: The name, as for `tf.keras.mixed_precision.Policy`.
        loss_scale: "dynamic", a number, a LossScale, or None. The default is "dynamic" for `mixed_float16`,
            else None.
    """

    def __init__(self, name: str, loss_scale: Any = _DEFAULT) -> None:
        super().__init__(name)
        if loss_scale is _DEFAULT:
            loss_scale = "dynamic" if name == "mixed_float16" else None
        self._loss_scale = _as_loss_scale(loss_scale)

    @property
    def loss_scale(self) -> Any:
        """The loss scale, or None."""
        return self._loss_scale

    def get_config(self) -> dict[str, Any]:
        """Return the name only: in a loaded model the loss scale belongs to the optimizer."""
        return {"name": self.name}


def set_policy(new: Any) -> None:
    """Set the default policy of layers: a Policy or its name."""
    policy.set_global_policy(new)


def LossScaleOptimizer(optimizer: Any, loss_scale: Any = "dynamic") -> Any:  # noqa: N802 - the name of a class
    """Make a Keras 2 optimizer with a loss scale: "dynamic", a number, or a LossScale."""
    scale = _as_loss_scale(loss_scale)
    if scale is None:
        raise ValueError(
            "LossScaleOptimizer got loss_scale=None, expected 'dynamic', a number or a LossScale"
        )
    if isinstance(scale, _v1.DynamicLossScale):
        return loss_scale_optimizer.BaseLossScaleOptimizer(
            optimizer,
            dynamic=True,
            initial_scale=scale.initial_loss_scale,
            dynamic_growth_steps=scale.increment_period,
        )
    return loss_scale_optimizer.BaseLossScaleOptimizer(optimizer, dynamic=False, initial_scale=float(scale()))


def _as_loss_scale(loss_scale: Any) -> Any:
    if loss_scale is None:
        return None
    if loss_scale == "dynamic":
        return _v1.DynamicLossScale()
    if isinstance(loss_scale, (int, float)) and not isinstance(loss_scale, bool):
        return _v1.FixedLossScale(loss_scale)
    return loss_scale

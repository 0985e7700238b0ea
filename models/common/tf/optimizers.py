"""Optimizers of the example programs, and learning rates as functions of the global step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from estimator import loss_scale_optimizer
from models.common.tf.params import Optimizer, Phase

v1 = tf.compat.v1

Gradients = list[tuple[Any, Any]]


class AdamWOptimizer(v1.train.AdamOptimizer):  # type: ignore[name-defined, misc]  # TensorFlow is untyped
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): `w -= learning_rate * decay * w` first.

    Args:
        learning_rate: Scalar tensor or number.
        weight_decay_rate: Fraction by which a weight decays in a step with learning rate 1.
        exclude: Variables whose name contains one of these do not decay.
        **adam: beta1, beta2 and epsilon.
    """

    def __init__(
        self, learning_rate: Any, weight_decay_rate: float, exclude: Sequence[str] = (), **adam: float
    ) -> None:
        super().__init__(learning_rate, name="AdamW", **adam)
        self._decay_rate = weight_decay_rate
        self._exclude = tuple(exclude)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        with tf.control_dependencies(self._decay(var, grad)):
            return super()._resource_apply_dense(grad, var)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        with tf.control_dependencies(self._decay(var, grad)):
            return super()._resource_apply_sparse(grad, var, indices)

    def _decay(self, var: Any, grad: Any) -> list[Any]:
        """Decay a variable after its gradient is computed."""
        if not decays(var, self._decay_rate, self._exclude):
            return []
        with tf.control_dependencies([grad]):  # so the forward pass reads the value before the decay
            return [var.assign_sub(self._lr_t * self._decay_rate * var, read_value=False)]


def decays(variable: Any, rate: float, exclude: Sequence[str]) -> bool:
    """Return True if weight decay applies to a variable."""
    return rate > 0 and not any(part in variable.name for part in exclude)


def minimize(loss: Any, settings: Mapping[str, Any]) -> Any:
    """Return the op that trains one step and counts it, even if a dynamic loss scale skips its update.

    Args:
        loss: Scalar tensor.
        settings: The group `optimizer` of the parameters.
    """
    options = Optimizer.model_validate(settings)
    step = v1.train.get_or_create_global_step()
    rate = learning_rate(options.learning_rate, step)
    optimizer = _optimizer(options, rate)
    if options.loss_scaling_factor != 1.0:
        optimizer = loss_scale_optimizer(optimizer, options.loss_scaling_factor)
    gradients = _with_l2_term(optimizer.compute_gradients(loss), options)
    update = optimizer.apply_gradients(_clip(gradients, options))
    if options.log_summaries:
        v1.summary.scalar("learning_rate", rate)
    with tf.control_dependencies([update]):
        return step.assign_add(1, read_value=False, name="train_op")


def _optimizer(options: Optimizer, rate: Any) -> Any:
    adam = {"beta1": options.beta1, "beta2": options.beta2, "epsilon": options.epsilon}
    if options.optimizer_type == "adamw":
        return AdamWOptimizer(rate, options.weight_decay_rate, options.exclude_from_weight_decay, **adam)
    if options.optimizer_type == "adam":
        return v1.train.AdamOptimizer(rate, **adam)
    if options.optimizer_type == "momentum":
        return v1.train.MomentumOptimizer(rate, options.momentum, use_nesterov=options.use_nesterov)
    return v1.train.GradientDescentOptimizer(rate)


def _with_l2_term(pairs: Gradients, options: Optimizer) -> Gradients:
    """Return the existing gradients; add the weight decay, except for adamw, which does it itself."""
    found = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    if options.optimizer_type == "adamw":
        return found
    rate, exclude = options.weight_decay_rate, options.exclude_from_weight_decay
    return [(tf.convert_to_tensor(g) + rate * v, v) if decays(v, rate, exclude) else (g, v) for g, v in found]


def _clip(pairs: Gradients, options: Optimizer) -> Gradients:
    if options.max_gradient_norm is None:
        return pairs
    gradients, variables = zip(*pairs, strict=True)
    norm = tf.linalg.global_norm(gradients)
    if options.log_summaries:
        v1.summary.scalar("gradient_norm", norm)
    clipped, _ = tf.clip_by_global_norm(gradients, options.max_gradient_norm, use_norm=norm)
    return list(zip(clipped, variables, strict=True))


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

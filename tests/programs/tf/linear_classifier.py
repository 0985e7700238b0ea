"""A linear classifier whose parts a test can replace, and records for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from estimator import EstimatorSpec, ModeKeys

v1 = tf.compat.v1
FEATURES, CLASSES, BATCH = 4, 3, 8
ModelFn = Callable[..., EstimatorSpec]


def linear_classifier(
    hidden: Callable[[Any], Any] = lambda features: features,
    head: Callable[[Any], Any] = lambda logits: logits,
    metrics: Callable[[Any, Any], dict[str, Any]] = lambda labels, logits: {},
    optimizer: Callable[[], Any] = lambda: v1.train.GradientDescentOptimizer(0.1),
    train: Callable[[Any], Any] | None = None,
) -> ModelFn:
    """Return a model_fn with one product.

    Args:
        hidden: The layers before the product.
        head: Applied to the logits.
        metrics: Makes the metrics of labels and logits.
        optimizer: Makes the optimizer, which minimizes the loss.
        train: Makes the training op of the loss instead.
    """

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        inner = hidden(features)
        initializer = v1.glorot_uniform_initializer(seed=1)
        weights = v1.get_variable("weights", [inner.shape[1], CLASSES], initializer=initializer)
        logits = head(tf.matmul(inner, weights))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        if mode == ModeKeys.EVAL:
            return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics(labels, logits))
        if train is not None:
            return EstimatorSpec(mode, loss=loss, train_op=train(loss))
        train_op = optimizer().minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def input_fn() -> tf.data.Dataset:
    """Repeat 12 batches of random records."""
    generator = np.random.default_rng(1)
    count = 12 * BATCH
    records = (
        generator.random((count, FEATURES), dtype=np.float32),
        np.arange(count, dtype=np.int32) % CLASSES,
    )
    return tf.data.Dataset.from_tensor_slices(records).repeat().batch(BATCH, drop_remainder=True)

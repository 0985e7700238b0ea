"""Connectionist temporal classification: losses and gradients of alignments as TensorFlow has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

tf1 = tf.compat.v1
STEPS, COUNT, CLASSES = 3, 3, 5
LABELS = np.array([[1, 2], [3, 3], [4, 0]], np.int32)
LENGTHS = np.array([2, 2, 1], np.int32)
STEPS_USED = np.array([3, 3, 2], np.int32)


def time_major(logits: Any, labels: Any) -> Any:
    return tf.nn.ctc_loss(labels, logits, LENGTHS, STEPS_USED, blank_index=0)


def of_keras_with_the_last_class_as_blank(logits: Any, labels: Any) -> Any:
    return keras.ops.ctc_loss(labels - 1, tf.transpose(logits, (1, 0, 2)), LENGTHS, STEPS_USED, CLASSES - 1)


def of_sparse_labels(logits: Any, labels: Any) -> Any:
    """Labels 1 to 4, and 0 for none; the kernel's blank is the last class."""
    return tf.nn.ctc_loss(tf.sparse.from_dense(labels), logits, None, STEPS_USED, blank_index=0)


@pytest.mark.parametrize("loss", [time_major, of_keras_with_the_last_class_as_blank, of_sparse_labels])
def test_losses_and_gradients_are_tensorflows(
    loss: Callable[..., Any], both_ways: Callable[..., Any]
) -> None:
    shape = (STEPS, COUNT, CLASSES)
    logits = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    inputs = [tf1.placeholder(tf.float32, shape), tf1.placeholder(tf.int32, LABELS.shape)]
    value = loss(*inputs)
    (gradient,) = tf1.gradients(tf.reduce_sum(value * [1.0, 2.0, 3.0]), inputs[:1])
    ran = both_ways(inputs, {"loss": value, "gradient": gradient}, [], [(logits, LABELS)])
    for name in ("loss", "gradient"):
        np.testing.assert_allclose(
            ran.compiled.series(name), ran.session.series(name), rtol=1e-4, atol=1e-5, err_msg=name
        )

"""What TensorFlow cannot do on a CPU is told as that, with the line of the program; other errors are not."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getsourcelines
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, EstimatorSpec, ModeKeys
from estimator.errors import CpuLimitError

v1 = tf.compat.v1

Loss = Callable[[Any, Any], Any]


def labels_of_minus_one(features: Any, labels: Any) -> Any:
    logits = tf.matmul(features, v1.get_variable("weights", [4, 3]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels - 1, logits=logits)


def labels_beyond(features: Any, labels: Any) -> Any:
    logits = tf.matmul(features, v1.get_variable("weights", [4, 3]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels + 3, logits=logits)


def channels_first(features: Any, labels: Any) -> Any:
    images = tf.cast(tf.reshape(features, [-1, 1, 2, 2]) * v1.get_variable("scale", []), tf.float16)
    return tf.cast(tf.nn.avg_pool2d(images, 2, 2, "VALID", "NCHW"), tf.float32)


def no_kernel(features: Any, labels: Any) -> Any:
    matrices = tf.cast(tf.reshape(features, [-1, 2, 2]) * v1.get_variable("scale", []), tf.float16)
    return tf.cast(tf.linalg.triangular_solve(matrices, matrices), tf.float32)


def input_fn() -> tf.data.Dataset:
    features = np.ones((8, 4), np.float32)
    return tf.data.Dataset.from_tensor_slices((features, np.arange(8) % 3)).repeat().batch(4)


def estimator_of(loss_of: Loss, folder: Path) -> CerebrasEstimator:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        values = loss_of(features, labels if labels is not None else tf.constant([0, 1, 2, 0]))
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions=values)
        loss = tf.reduce_mean(values)
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    return CerebrasEstimator(model_fn, folder)


def train(estimator: CerebrasEstimator) -> None:
    estimator.train(input_fn, steps=1)


def evaluate(estimator: CerebrasEstimator) -> None:
    estimator.evaluate(input_fn, steps=1)


def predict(estimator: CerebrasEstimator) -> None:
    list(estimator.predict(input_fn, num_samples=4))


@pytest.mark.parametrize("run", [train, evaluate, predict])
@pytest.mark.parametrize(
    ("loss_of", "limit"),
    [
        (labels_of_minus_one, r"has no labels of -1: .* give them the label 0 and a weight of 0"),
        (channels_first, r"has no AvgPool(Grad)? of float16 whose channels come first: .* channels last"),
        (no_kernel, r"has no MatrixTriangularSolve of float16: .* cast to float32 around it"),
    ],
)
def test_a_limit_is_told_with_the_line(
    tmp_path: Path, run: Callable[[CerebrasEstimator], None], loss_of: Loss, limit: str
) -> None:
    with pytest.raises(CpuLimitError, match=limit) as caught:
        run(estimator_of(loss_of, tmp_path))
    lines, first = getsourcelines(loss_of)
    assert f"line {__file__}:{first + len(lines) - 1} " in str(caught.value)


def test_other_errors_of_the_graph_are_as_they_were(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label value of [345]"):
        train(estimator_of(labels_beyond, tmp_path))

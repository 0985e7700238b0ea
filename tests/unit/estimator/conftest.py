"""A model so small that building its graph is all the time it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, ModeKeys

FEATURES = 4
CLASSES = 3
BATCH = 8
RECORDS = 24


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> EstimatorSpec:
    v1 = tf.compat.v1
    with v1.variable_scope("dense"):
        kernel = v1.get_variable("kernel", [FEATURES, CLASSES])
        bias = v1.get_variable("bias", [CLASSES], initializer=v1.zeros_initializer())
    logits = tf.nn.bias_add(tf.matmul(features, kernel), bias)
    classes = tf.argmax(logits, axis=1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"classes": classes, "probabilities": tf.nn.softmax(logits)})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == ModeKeys.EVAL:
        return EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"accuracy": v1.metrics.accuracy(labels, classes)}
        )
    v1.summary.scalar("doubled_loss", 2 * loss)
    optimizer = v1.train.AdamOptimizer(params.get("learning_rate", 0.05))
    return EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, global_step=v1.train.get_global_step())
    )


def records() -> tuple[np.ndarray, np.ndarray]:
    """Records that a linear model can separate: the largest of the first features is the class."""
    features = np.random.default_rng(7).normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return features, features[:, :CLASSES].argmax(axis=1).astype(np.int32)


def input_fn(params: dict[str, Any], mode: str) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(records()).batch(BATCH, drop_remainder=True)
    return dataset.repeat() if mode == ModeKeys.TRAIN else dataset


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., CerebrasEstimator]:
    """Makes estimators of the tiny model over one model_dir."""

    def make(**config: Any) -> CerebrasEstimator:
        function = config.pop("model_fn", model_fn)
        params = config.pop("params", {"learning_rate": 0.05})
        extra = {name: config.pop(name) for name in ("warm_start_from",) if name in config}
        model_dir = config.pop("model_dir", tmp_path / "model")
        use_cs = config.get("cs_ip") is not None
        return CerebrasEstimator(
            function,
            model_dir=model_dir,
            config=CSRunConfig(**config),
            params=params,
            use_cs=use_cs,
            **extra,
        )

    return make


@pytest.fixture
def tiny_input() -> Callable[..., Any]:
    return input_fn


@pytest.fixture
def tiny_model() -> Callable[..., EstimatorSpec]:
    return model_fn


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run as a process that nobody launched."""
    for name in ("TF_CONFIG", "CSRUN_RANK", "CSRUN_NUM_TASKS", "CSRUN_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)

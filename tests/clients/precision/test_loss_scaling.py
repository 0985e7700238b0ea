"""Loss scaling in a program, on the CS system in mixed float16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, loss_scale_optimizer
from estimator.errors import CallError
from tests.systems import RunningSystem

v1 = tf.compat.v1
Optimizer = Callable[[], Any]

TINY_LOSS = 1e-6
"""Factor of the loss in these programs: float16 rounds its gradients by the logits to 0."""


def sgd() -> Any:
    return v1.train.GradientDescentOptimizer(0.5 / TINY_LOSS)


def input_fn() -> tf.data.Dataset:
    generator = np.random.default_rng(3)
    features = generator.random((96, 6), dtype=np.float32)
    labels = features[:, :3].argmax(1).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(16, drop_remainder=True)


def program(
    model_dir: Path, system: RunningSystem | None, optimizer: Optimizer, precision: str = "mixed_float16"
) -> CerebrasEstimator:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        weights = v1.get_variable("weights", [6, 3], initializer=v1.glorot_uniform_initializer(seed=4))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.matmul(features, weights))
        loss = TINY_LOSS * tf.reduce_mean(losses)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer().minimize(loss, v1.train.get_global_step()))

    config = CSRunConfig(
        cs_ip=None if system is None else system.address, tf_random_seed=5, precision=precision
    )
    return CerebrasEstimator(model_fn, model_dir, config=config, use_cs=system is not None)


def trained(model_dir: Path, system: RunningSystem | None, optimizer: Optimizer, *steps: int) -> Any:
    """Train for each number of steps with a new estimator, and return the values of all variables."""
    for count in steps:
        estimator = program(model_dir, system, optimizer)
        estimator.train(input_fn, steps=count)
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def test_small_gradients_survive_with_a_static_scale(system: RunningSystem, tmp_path: Path) -> None:
    start = trained(tmp_path / "start", None, sgd, 1)["weights"]
    lost = trained(tmp_path / "lost", system, sgd, 20)["weights"]
    expected = trained(tmp_path / "cpu", None, sgd, 20)["weights"]
    kept = trained(tmp_path / "kept", system, lambda: loss_scale_optimizer(sgd(), 2.0**20), 20)["weights"]
    learnt = np.abs(expected - start).max()
    assert np.abs(kept - expected).max() < 0.01 * learnt
    assert np.abs(lost - expected).max() > 0.5 * learnt


def test_tensorflows_wrapper_computes_the_same(system: RunningSystem, tmp_path: Path) -> None:
    def wrapped() -> Any:
        return v1.train.experimental.MixedPrecisionLossScaleOptimizer(sgd(), 2.0**20)

    ours = trained(tmp_path / "ours", system, lambda: loss_scale_optimizer(sgd(), 2.0**20), 5)
    theirs = trained(tmp_path / "theirs", system, wrapped, 5)
    np.testing.assert_array_equal(ours["weights"], theirs["weights"])


def test_a_dynamic_scale_finds_its_place_and_is_in_checkpoints(system: RunningSystem, tmp_path: Path) -> None:
    def dynamic() -> Any:
        return loss_scale_optimizer(sgd(), initial_loss_scale=2.0**40, increment_period=8)

    once = trained(tmp_path / "once", system, dynamic, 30)
    # 2^40 overflows float16 in the gradients of a loss of 1e-6, some powers of two below does not
    assert 2.0**26 < once["current_loss_scale"] < 2.0**39
    assert once["global_step"] == 30  # batches, those of the skipped steps too
    assert 0 <= once["good_steps"] < 8
    expected = trained(tmp_path / "cpu", None, sgd, 30)["weights"]
    assert np.isfinite(once["weights"]).all()
    assert np.abs(once["weights"] - expected).max() < np.abs(expected).max()
    in_parts = trained(tmp_path / "parts", system, dynamic, 3, 9, 18)
    for name, value in once.items():
        np.testing.assert_array_equal(in_parts[name], value, err_msg=name)


def test_a_scale_below_one_is_refused() -> None:
    for scale in (0.5, "automatic", True):
        with pytest.raises(CallError, match="loss_scale must be 'dynamic' or a number >= 1"):
            loss_scale_optimizer(sgd(), scale)

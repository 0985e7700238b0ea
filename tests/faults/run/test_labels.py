"""Labels that are padding, labels that are no class, ids that no table has, on the simulated system."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cs_runtime.errors import OutOfRangeError
from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, ModeKeys
from tests.systems import RunningSystem

v1 = tf.compat.v1

BATCH, LENGTH, VOCABULARY, CLASSES, WIDTH = 4, 6, 11, 5, 8
STEPS = 12

Losses = Callable[[Any, Any], Any]


def records(replacement: int) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of ids and tags; the tags after the end of each are `replacement`."""
    rng = np.random.default_rng(3)
    ids = rng.integers(0, VOCABULARY, (BATCH * STEPS, LENGTH)).astype(np.int32)
    lengths = rng.integers(1, LENGTH + 1, (BATCH * STEPS, 1))
    return ids, np.where(np.arange(LENGTH) < lengths, ids % CLASSES, replacement).astype(np.int32)


def input_of(ids: np.ndarray, tags: np.ndarray) -> Callable[[], tf.data.Dataset]:
    def input_fn() -> tf.data.Dataset:
        features = {"ids": ids, "is_counted": (tags >= 0).astype(np.float32)}
        dataset = tf.data.Dataset.from_tensor_slices((features, tags))
        return dataset.batch(BATCH, drop_remainder=True)

    return input_fn


def tagger(losses: Losses, dtype: Any = tf.float32) -> Callable[..., EstimatorSpec]:
    """The mean loss over the tokens that count."""

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        table = v1.get_variable(
            "table", [VOCABULARY, WIDTH], initializer=v1.glorot_uniform_initializer(seed=1)
        )
        kernel = v1.get_variable(
            "kernel", [WIDTH, CLASSES], initializer=v1.glorot_uniform_initializer(seed=2)
        )
        hidden = tf.reshape(tf.nn.embedding_lookup(table, features["ids"]), [-1, WIDTH])
        logits = tf.matmul(tf.cast(hidden, dtype), tf.cast(kernel, dtype))
        weights = tf.reshape(features["is_counted"], [-1])
        total = tf.reduce_sum(tf.cast(losses(tf.reshape(labels, [-1]), logits), tf.float32) * weights)
        loss = total / (tf.reduce_sum(weights) + 1e-5)
        optimizer = v1.train.GradientDescentOptimizer(0.5)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))

    return model_fn


def trained(
    model_fn: Callable[..., EstimatorSpec], input_fn: Any, directory: Path, cs_ip: str | None, **config: Any
) -> list[np.ndarray]:
    estimator = CerebrasEstimator(model_fn, directory, config=CSRunConfig(cs_ip=cs_ip, **config))
    estimator.train(input_fn, max_steps=STEPS, use_cs=cs_ip is not None)
    return [estimator.get_variable_value(name) for name in ("table", "kernel")]


def of_tensorflow(labels: Any, logits: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def of_losses(labels: Any, logits: Any) -> Any:
    return v1.losses.sparse_softmax_cross_entropy(labels, logits, reduction=v1.losses.Reduction.NONE)


def of_keras(labels: Any, logits: Any) -> Any:
    return tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


@pytest.mark.parametrize("losses", [of_tensorflow, of_losses, of_keras])
def test_padding_trains_as_masked_labels_do_in_tensorflow(
    losses: Losses, system: RunningSystem, tmp_path: Path
) -> None:
    """TensorFlow itself knows no -1: there the padding is class 0, with a weight of 0."""
    masked_tags = np.maximum(records(-1)[1], 0)

    def masked_input_fn() -> tf.data.Dataset:
        ids, tags = records(-1)
        features = {"ids": ids, "is_counted": (tags >= 0).astype(np.float32)}
        return tf.data.Dataset.from_tensor_slices((features, masked_tags)).batch(BATCH)

    expected = trained(tagger(losses), masked_input_fn, tmp_path / "cpu", None)
    got = trained(tagger(losses), input_of(*records(-1)), tmp_path / "cs", system.address)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["mixed_float16", "cbfloat16"])
def test_padding_in_16_bits(precision: str, system: RunningSystem, tmp_path: Path) -> None:
    whole = trained(tagger(of_tensorflow), input_of(*records(-1)), tmp_path / "32", system.address)
    half = trained(
        tagger(of_tensorflow), input_of(*records(-1)), tmp_path / "16", system.address, precision=precision
    )
    for one, other in zip(half, whole, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)


def test_padding_in_logits_that_the_program_makes_float16(system: RunningSystem, tmp_path: Path) -> None:
    model_fn = tagger(of_tensorflow, tf.float16)
    for values in trained(model_fn, input_of(*records(-1)), tmp_path, system.address):
        assert np.isfinite(values).all()


def failure(directory: Path, model_fn: Any, input_fn: Any, system: RunningSystem) -> str:
    with pytest.raises(OutOfRangeError) as caught:
        trained(model_fn, input_fn, directory, system.address)
    assert caught.value.exit_code == 1
    return str(caught.value)


@pytest.mark.parametrize("wrong", [CLASSES, -2])
def test_a_label_that_is_no_class_ends_the_run(wrong: int, system: RunningSystem, tmp_path: Path) -> None:
    """Also where the program gives it no weight: TensorFlow on a CPU looks at no weights either."""
    ids, tags = records(-1)
    tags[2 * BATCH + 1, 3] = wrong
    message = failure(tmp_path, tagger(of_tensorflow), input_of(ids, tags), system)
    assert f"'labels' holds {wrong} in step 3, expected 0 to {CLASSES - 1}, or -1" in message
    assert re.search(r"test_labels\.py:\d+", message)


def test_a_label_that_the_program_computes(system: RunningSystem, tmp_path: Path) -> None:
    def shifted(labels: Any, logits: Any) -> Any:
        return of_tensorflow(tf.add(labels, 1, name="next_tags"), logits)

    message = failure(tmp_path, tagger(shifted), input_of(*records(-1)), system)
    assert f"'next_tags' holds {CLASSES} in step 1" in message


def test_an_id_that_the_table_lacks(system: RunningSystem, tmp_path: Path) -> None:
    ids, tags = records(-1)
    ids[BATCH, 0] = VOCABULARY
    message = failure(tmp_path, tagger(of_tensorflow), input_of(ids, tags), system)
    assert f"'features/ids' holds {VOCABULARY} in step 2, expected 0 to {VOCABULARY - 1}:" in message


def test_evaluation_and_prediction_look_at_them_too(system: RunningSystem, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        if mode != ModeKeys.PREDICT:
            return tagger(of_tensorflow)(features, labels, mode)
        table = v1.get_variable("table", [VOCABULARY, WIDTH])
        return EstimatorSpec(mode, predictions={"rows": tf.gather(table, features["ids"])})

    estimator = CerebrasEstimator(model_fn, tmp_path, config=CSRunConfig(cs_ip=system.address))
    estimator.train(input_of(*records(-1)), max_steps=1)
    ids, tags = records(-1)
    good = list(estimator.predict(input_of(ids, tags), num_samples=BATCH, use_cs=True))
    assert set(good[0]) == {"rows"}
    tags[0, 0], ids[1, 1] = CLASSES, VOCABULARY
    with pytest.raises(OutOfRangeError, match="'labels' holds"):
        estimator.evaluate(input_of(records(-1)[0], tags), steps=2, use_cs=True)
    with pytest.raises(OutOfRangeError, match="'features/ids' holds"):
        list(estimator.predict(input_of(ids, tags), num_samples=BATCH, use_cs=True))

"""A model without a product or a convolution: no kernel of the library knows its ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.text import parse_module
from cgc.lair.dialect import LAIR_DIALECTS
from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem

v1 = tf.compat.v1

BATCH, WIDTH, STEPS = 16, 24, 20


def input_fn() -> tf.data.Dataset:
    generator = np.random.default_rng(11)
    features = generator.normal(size=(BATCH, WIDTH)).astype(np.float32)
    targets = np.sort(np.cumsum(np.sin(features), axis=1), axis=1)[:, -3:].mean(axis=1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(BATCH, drop_remainder=True)


def parameter(name: str, start: float, stop: float, size: int = WIDTH) -> Any:
    values = np.linspace(start, stop, size, dtype=np.float32)
    return v1.get_variable(name, initializer=values)


def model(features: Any, targets: Any) -> Any:
    """The loss of sorted, gathered and summed waves with parameters that multiply elements."""
    frequency, phase = parameter("frequency", 0.5, 1.5), parameter("phase", -0.2, 0.3)
    waves = features * frequency + phase
    angles = tf.atan2(tf.sin(waves), tf.cos(waves) + 1.5)
    running = tf.cumsum(angles * parameter("gain", 1.0, 0.7), axis=1, reverse=True)
    products = tf.math.cumprod(tf.tanh(running) * 0.9, axis=1, exclusive=True)
    order = tf.constant(np.random.default_rng(5).permutation(WIDTH), tf.int32)
    mixed = tf.gather(running + products, order, axis=1)
    largest = tf.math.top_k(mixed, k=5, sorted=True).values
    clipped = tf.clip_by_value(largest, -20.0, 20.0)
    weighted = tf.reduce_sum(clipped * parameter("share", 0.4, 0.1, 5), axis=1)
    error = weighted + tf.math.log1p(tf.reduce_max(tf.abs(mixed), axis=1)) - targets
    return tf.reduce_mean(tf.sqrt(tf.square(error) + 0.01))


def train_op(loss: Any) -> Any:
    return v1.train.AdamOptimizer(0.02).minimize(loss, v1.train.get_or_create_global_step())


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    loss = model(features, labels)
    return EstimatorSpec(mode, loss=loss, train_op=train_op(loss))


def losses_of_tensorflow() -> list[float]:
    with tf.Graph().as_default(), v1.Session() as session:
        features, targets = v1.data.make_one_shot_iterator(input_fn()).get_next()
        loss = model(features, targets)
        step = train_op(loss)
        session.run(v1.global_variables_initializer())
        return [float(session.run((loss, step))[0]) for _ in range(STEPS)]


@pytest.fixture(scope="module")
def model_dir(system: RunningSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exotic")
    config = CSRunConfig(cs_ip=system.address, save_summary_steps=1)
    CerebrasEstimator(model_fn, folder, config=config).train(input_fn, max_steps=STEPS)
    return folder


@pytest.fixture(scope="module")
def artifact(model_dir: Path) -> Path:
    (found,) = model_dir.rglob("cs_*/lair.mlir")
    return found.parent


def test_it_trains_as_in_tensorflow(model_dir: Path) -> None:
    losses = read_losses(model_dir)
    expected = losses_of_tensorflow()
    assert len(losses) == STEPS
    assert expected[-1] < 0.9 * expected[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_all_its_kernels_but_that_of_the_steps_scalars_are_generated(artifact: Path) -> None:
    report = json.loads((artifact / "compile_report.json").read_text())
    matched = {kernel["family"] for kernel in report["kernels"] if not kernel["generated"]}
    assert matched <= {"control"}
    loops = [line for kernel in report["kernels"] for line in kernel["loops"]]
    assert any("scan over" in line for line in loops)
    assert any("TopK" in line for line in loops)
    text = (artifact / "compile_report.txt").read_text()
    for line in loops:
        assert line in text


def test_the_artifact_keeps_their_loop_nests(artifact: Path) -> None:
    text = (artifact / "lair.mlir").read_text()
    parse_module(text, dialects=LAIR_DIALECTS)
    report = json.loads((artifact / "compile_report.json").read_text())
    for kernel in report["kernels"]:
        if kernel["generated"]:
            assert f'"{kernel["name"]}"' in text

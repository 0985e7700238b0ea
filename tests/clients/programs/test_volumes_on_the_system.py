"""A network of volumes with layers that few programs have, on the CS system and on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem

v1 = tf.compat.v1
STEPS = 8


def input_fn() -> tf.data.Dataset:
    generator = np.random.default_rng(3)
    scans = generator.normal(size=(32, 4, 8, 8, 2)).astype(np.float32)
    labels = generator.integers(0, 3, 32).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((scans, labels)).repeat().batch(8, drop_remainder=True)


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    def weights(name: str, shape: list[int]) -> Any:
        return v1.get_variable(name, shape, initializer=v1.glorot_uniform_initializer(seed=len(shape)))

    h = tf.nn.relu(tf.nn.conv3d(features, weights("conv", [3, 3, 3, 2, 6]), [1] * 5, "SAME"))
    h = tf.nn.max_pool3d(h, 2, 2, "SAME")
    slices = tf.nn.lrn(tf.reshape(h, [16, 4, 4, 6]), 2, 1.0, 0.1, 0.75)
    rows = tf.reshape(slices, [8, 32, 6])
    largest = tf.math.unsorted_segment_max(tf.transpose(rows, [1, 0, 2]), np.arange(32) % 4, 4)
    h = tf.reshape(tf.transpose(largest, [1, 0, 2]), [8, 24])
    logits = tf.matmul(h, weights("logits", [24, 3]))
    # a Dirichlet-multinomial likelihood
    alpha = tf.exp(logits) + 0.1
    counts = tf.one_hot(labels, 3) * 5
    total, drawn = tf.reduce_sum(alpha, 1), tf.reduce_sum(counts, 1)
    likelihood = tf.math.lgamma(total) - tf.math.lgamma(total + drawn)
    likelihood += tf.reduce_sum(tf.math.lgamma(alpha + counts) - tf.math.lgamma(alpha), 1)
    loss = -tf.reduce_mean(likelihood)
    train_op = v1.train.RMSPropOptimizer(0.005, momentum=0.5).minimize(loss, v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_it_trains_on_the_system_as_on_the_cpu_and_its_layers_are_kernels(
    system: RunningSystem, tmp_path: Path
) -> None:
    for name, address in (("system", system.address), ("cpu", None)):
        config = CSRunConfig(cs_ip=address, tf_random_seed=5, save_summary_steps=1)
        CerebrasEstimator(model_fn, tmp_path / name, config=config).train(
            input_fn, max_steps=STEPS, use_cs=name == "system"
        )
    on_system, on_cpu = read_losses(tmp_path / "system"), read_losses(tmp_path / "cpu")
    assert len(on_cpu) == STEPS
    assert on_cpu[-1] < on_cpu[0]
    np.testing.assert_allclose(on_system, on_cpu, rtol=1e-4)
    (report,) = (tmp_path / "system").glob("cs_*/compile_report.json")
    families = [kernel["family"] for kernel in json.loads(report.read_text())["kernels"]]
    assert {"convolution", "pooling"} <= set(families)

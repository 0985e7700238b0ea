"""A CS system with a fabric of the user's own: programs are compiled for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from cs_toolkit import config_file
from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec
from tests.systems import running_system

v1 = tf.compat.v1


def model_fn(features: tf.Tensor, mode: str) -> EstimatorSpec:
    weights = v1.get_variable("weights", [4, 1], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - 1.0))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(np.ones((8, 4), np.float32)).repeat()


def test_training_on_a_fabric_of_the_user(tmp_path: Path) -> None:
    fabric = tmp_path / "quarter.yaml"
    text = config_file("cs2.yaml").read_text()
    fabric.write_text(text.replace("name: cs2", "name: quarter").replace("width: 740", "width: 185"))
    model_dir = tmp_path / "model_dir"
    with running_system(tmp_path, ["--fabric", str(fabric)]) as system:
        config = CSRunConfig(cs_ip=system.address)
        CerebrasEstimator(model_fn, model_dir, config=config).train(input_fn, max_steps=3)
    written = json.loads((model_dir / "fabric.json").read_text())
    assert written["name"] == "quarter"
    assert written["processing_elements"] == 185 * 416
    assert json.loads((model_dir / "performance.json").read_text())["fabric_cores"] == 185 * 416

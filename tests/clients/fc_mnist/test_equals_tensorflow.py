"""The numbers of a run on the CS system are those of the same graph in a plain TensorFlow session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem

v1 = tf.compat.v1

BATCH_SIZE = 64
SEED = 11


def params(dropout: float) -> dict[str, Any]:
    return {
        "model": {"hidden_sizes": [64, 32], "dropout": dropout},
        "optimizer": {"learning_rate": 1e-3},
    }


def digits_input_fn() -> tf.data.Dataset:
    """Shuffled with a seed, so that every fresh input gives the same batches."""
    generator = np.random.default_rng(5)
    pixels = generator.random((2048, 784), dtype=np.float32)
    labels = generator.integers(0, 10, 2048).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, labels))
    return dataset.shuffle(2048, seed=3).repeat().batch(BATCH_SIZE, drop_remainder=True)


def estimator(
    model_module: Any,
    model_dir: Path,
    system: RunningSystem | None,
    dropout: float,
    execution: str | None = None,
) -> CerebrasEstimator:
    config = CSRunConfig(
        cs_ip=None if system is None else system.address,
        tf_random_seed=SEED,
        save_summary_steps=1,
        save_checkpoints_steps=1000,
        execution=execution,
    )
    return CerebrasEstimator(
        model_module.model_fn,
        model_dir,
        config=config,
        params=params(dropout),
        use_cs=system is not None,
    )


def plain_session(model_module: Any, steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and final variables of the graph in a session, without any code of the toolkit around it."""
    with tf.Graph().as_default():
        v1.set_random_seed(SEED)
        global_step = v1.train.create_global_step()
        features, labels = v1.data.make_one_shot_iterator(digits_input_fn()).get_next()
        spec = model_module.model_fn(features, labels, "train", params(dropout=0.0))
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        assert global_step.op.name in variables
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = [float(session.run([spec.loss, spec.train_op])[0]) for _ in range(steps)]
            return losses, session.run(variables)


def checkpoint(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(model_dir / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_fifty_steps_equal_a_plain_session(system: RunningSystem, model_module: Any, tmp_path: Path) -> None:
    losses, variables = plain_session(model_module, 50)
    estimator(model_module, tmp_path, system, dropout=0.0).train(digits_input_fn, max_steps=50)

    np.testing.assert_allclose(read_losses(tmp_path), losses, rtol=1e-5)
    assert losses[-1] < losses[0]
    saved = checkpoint(tmp_path, 50)
    assert saved.keys() == variables.keys()
    for name, value in variables.items():
        np.testing.assert_allclose(saved[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def test_a_continued_run_equals_an_unbroken_one_bit_for_bit(
    system: RunningSystem, model_module: Any, tmp_path: Path
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    estimator(model_module, whole, system, dropout=0.2).train(digits_input_fn, max_steps=60)
    estimator(model_module, halves, system, dropout=0.2).train(digits_input_fn, max_steps=30)
    estimator(model_module, halves, system, dropout=0.2).train(digits_input_fn, steps=30)

    expected, got = checkpoint(whole, 60), checkpoint(halves, 60)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name].tobytes() == value.tobytes(), name
    losses = read_losses(halves)
    assert losses == read_losses(whole)
    without = tmp_path / "without"
    estimator(model_module, without, system, dropout=0.0).train(digits_input_fn, max_steps=1)
    assert read_losses(without)[0] != losses[0]


def test_one_seed_gives_the_same_initial_weights_on_the_system_and_on_the_cpu(
    system: RunningSystem, tmp_path: Path
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        hidden = tf.keras.layers.Dense(
            16, activation="relu", kernel_initializer=v1.glorot_uniform_initializer()
        )
        logits = tf.matmul(hidden(features), v1.get_variable("out", [16, 10]))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))

    losses = []
    for name, cs_ip in (("system", system.address), ("cpu", None)):
        config = CSRunConfig(cs_ip=cs_ip, tf_random_seed=SEED, save_summary_steps=1)
        CerebrasEstimator(model_fn, tmp_path / name, config=config).train(
            digits_input_fn, max_steps=5, use_cs=name == "system"
        )
        losses.append(read_losses(tmp_path / name))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    expected, got = checkpoint(tmp_path / "cpu", 5), checkpoint(tmp_path / "system", 5)
    assert got.keys() == expected.keys()
    for variable, value in expected.items():
        np.testing.assert_allclose(got[variable], value, rtol=1e-4, atol=1e-5, err_msg=variable)


def test_evaluate_and_predict_on_the_system_equal_those_on_the_cpu(
    system: RunningSystem, model_module: Any, tmp_path: Path
) -> None:
    trained = estimator(model_module, tmp_path, system, dropout=0.2)
    trained.train(digits_input_fn, max_steps=20)

    on_system = trained.evaluate(digits_input_fn, steps=6, use_cs=True)
    on_cpu = trained.evaluate(digits_input_fn, steps=6)
    assert on_system.keys() == on_cpu.keys() == {"accuracy", "loss", "global_step"}
    for name, value in on_cpu.items():
        assert on_system[name] == pytest.approx(value, rel=1e-5), name

    samples = BATCH_SIZE + 10
    from_system = list(trained.predict(digits_input_fn, num_samples=samples, use_cs=True))
    from_cpu = list(trained.predict(digits_input_fn, num_samples=samples))
    assert len(from_system) == len(from_cpu) == samples
    for ours, theirs in zip(from_system, from_cpu, strict=True):
        np.testing.assert_allclose(ours["probabilities"], theirs["probabilities"], rtol=1e-4, atol=1e-6)
        assert ours["classes"] == theirs["classes"]


def test_weight_streaming_equals_the_pipelined_program_and_continues_it(
    system: RunningSystem, model_module: Any, tmp_path: Path
) -> None:
    def losses(name: str) -> list[float]:
        return read_losses(tmp_path / name)

    for name in ("pipelined", "weight_streaming"):
        made = estimator(model_module, tmp_path / name, system, dropout=0.2, execution=name)
        made.train(digits_input_fn, max_steps=20)
    np.testing.assert_allclose(losses("weight_streaming"), losses("pipelined"), rtol=1e-6)
    variables = checkpoint(tmp_path / "pipelined", 20)
    for name, value in checkpoint(tmp_path / "weight_streaming", 20).items():
        np.testing.assert_allclose(value, variables[name], rtol=1e-5, atol=1e-6, err_msg=name)

    for name, other in (("pipelined", "weight_streaming"), ("weight_streaming", "pipelined")):
        made = estimator(model_module, tmp_path / name, system, dropout=0.2, execution=other)
        made.train(digits_input_fn, max_steps=25)
    assert len(losses("pipelined")) == 25
    np.testing.assert_allclose(losses("pipelined"), losses("weight_streaming"), rtol=1e-6)

"""Keras models as a model_fn come to what Keras itself comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, keras_model_fn
from estimator.errors import ModelFnError
from tests.programs.tf.events import read_scalars
from tests.programs.tf.keras_models import ModelWithoutLoss, normalized_mlp, vector_records
from tests.systems import RunningSystem

keras = tf.keras
v1 = tf.compat.v1
STEPS, BATCH = 20, 8


def input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(vector_records(STEPS)).batch(BATCH, drop_remainder=True)


def estimator(model: Any, model_dir: Path, cs_ip: str | None = None) -> CerebrasEstimator:
    config = CSRunConfig(cs_ip=cs_ip, save_summary_steps=1)
    return CerebrasEstimator(keras_model_fn(model), model_dir, config=config, use_cs=cs_ip is not None)


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, dict[str, list[float]]]:
    """A model that Keras has trained, and the logs of each of its steps."""
    model = normalized_mlp()
    steps: dict[str, list[float]] = {"loss": [], "accuracy": []}

    class Reset(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            for metric in model.metrics:
                metric.reset_state()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for name, values in steps.items():
                values.append(logs[name])

    model.fit(input_fn(), verbose=0, callbacks=[Reset()])
    return model, steps


def assert_trained_as(program: CerebrasEstimator, fitted: Any, tolerance: float) -> None:
    model, logs = fitted
    scalars = read_scalars(program.model_dir)
    for tag, values in logs.items():
        np.testing.assert_allclose(list(scalars[tag].values()), values, rtol=tolerance, err_msg=tag)
    for variable in model.variables:
        np.testing.assert_allclose(
            program.get_variable_value(variable.path), np.asarray(variable), rtol=tolerance, atol=tolerance
        )
    assert program.get_variable_value("global_step") == STEPS
    x, y = vector_records(STEPS)
    expected = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    evaluated = program.evaluate(input_fn)
    assert evaluated.pop("global_step") == STEPS
    assert evaluated == pytest.approx(expected, rel=tolerance)
    predictions = np.array(list(program.predict(input_fn)))
    np.testing.assert_allclose(predictions, model.predict(x, verbose=0), rtol=tolerance, atol=tolerance)


def test_a_keras_model_trains_on_this_cpu_as_by_keras(fitted: Any, tmp_path: Path) -> None:
    """The run has two parts; the second resumes from the checkpoint."""
    estimator(normalized_mlp(), tmp_path).train(input_fn, steps=12)
    program = estimator(normalized_mlp(), tmp_path)
    program.train(lambda: input_fn().skip(12), max_steps=STEPS)
    assert_trained_as(program, fitted, 1e-6)


def test_a_keras_model_trains_on_the_system_as_by_keras(
    system: RunningSystem, fitted: Any, tmp_path: Path
) -> None:
    program = estimator(normalized_mlp(), tmp_path, system.address)
    program.train(input_fn, max_steps=STEPS)
    (artifact,) = tmp_path.glob("cs_*")
    text = (artifact / "cirh.mlir").read_text()
    for name in (
        "state.model.sequential/dense/kernel",
        "state.optimizer.adam/sequential_dense_kernel_velocity",
        "state.metric.accuracy/total",
        "state.global_step",
    ):
        assert f'"{name}"' in text
    assert_trained_as(program, fitted, 1e-4)
    on_cpu = program.evaluate(input_fn)
    assert program.evaluate(input_fn, steps=STEPS, use_cs=True) == pytest.approx(on_cpu, rel=1e-4)


def test_several_outputs_are_named_and_loss_scaling_is_part_of_the_step(tmp_path: Path) -> None:
    """A step that overflows changes no weight, and is counted."""
    x = keras.layers.Input((6,), name="x")
    hidden = keras.layers.Dense(4, name="hidden")(x)
    model = keras.Model(x, {"hidden": hidden, "out": keras.layers.Dense(3)(hidden)})
    inner = keras.optimizers.SGD(0.1)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127)
    loss = {"out": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(scaled, loss=loss)
    before = [np.asarray(weight) for weight in model.trainable_variables]

    def with_named_labels() -> tf.data.Dataset:
        return input_fn().map(lambda x, y: (1e4 * x, {"out": y}))

    program = estimator(model, tmp_path)
    program.train(with_named_labels, steps=2)
    for weight, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(program.get_variable_value(weight.path), value)
    assert program.get_variable_value("global_step") == 2
    (first, *_) = program.predict(with_named_labels)
    assert {name: value.shape for name, value in first.items()} == {"hidden": (4,), "out": (3,)}


def test_models_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ModelFnError, match=r"expected a Keras model with train_step .*got 3"):
        keras_model_fn(3)
    plain = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3)], name="plain")
    program = estimator(plain, tmp_path)
    with pytest.raises(ModelFnError, match=r"'plain' is not compiled.*model.compile\(optimizer, loss\)"):
        program.train(input_fn, steps=1)
    with pytest.raises(ModelFnError, match="'plain' is not compiled"):
        program.evaluate(input_fn, steps=1)
    assert next(program.predict(input_fn)).shape == (3,)

    silent = ModelWithoutLoss()
    silent.compile()
    with pytest.raises(ModelFnError, match="train_step of the Keras model returns mean, expected the loss"):
        estimator(silent, tmp_path).train(input_fn, steps=1)

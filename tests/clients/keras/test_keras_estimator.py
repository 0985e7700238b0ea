"""Keras models that are trained, evaluated and asked for predictions on a CS system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cs_system.testing import RunningSystem
from cs_toolkit.step import StepInterface
from estimator import CerebrasEstimator, CSRunConfig, KerasEstimator
from estimator.errors import CallError, InputFnError, ModelFnError

keras = tf.keras
STEPS, BATCH = 12, 8


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(STEPS * BATCH, 6)).astype(np.float32)
    return x, (x @ rng.normal(size=(6, 3))).argmax(1).astype(np.int32)


def input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(records()).repeat().batch(BATCH, drop_remainder=True)


@pytest.fixture
def make_model() -> Callable[[], Any]:
    """Models with the same first weights."""

    def make() -> Any:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        layers = [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
        return model

    return make


def estimator(model: Any, model_dir: Path, system: RunningSystem | None) -> KerasEstimator:
    address = None if system is None else system.address
    config = CSRunConfig(cs_ip=address, save_summary_steps=1, save_checkpoints_steps=6)
    return KerasEstimator(model, model_dir, config=config)


def test_train_leaves_the_model_as_fit_would(
    system: RunningSystem, make_model: Callable[[], Any], tmp_path: Path
) -> None:
    fitted, trained = make_model(), make_model()
    history = fitted.fit(input_fn(), steps_per_epoch=STEPS, verbose=0).history
    first = estimator(trained, tmp_path, system)
    first.train(input_fn, steps=6)
    continued = make_model()
    second = estimator(continued, tmp_path, system)
    second.train(input_fn, max_steps=STEPS)

    assert second.get_variable_value("global_step") == STEPS
    assert continued.optimizer.iterations == STEPS
    for expected, found in zip(fitted.get_weights(), continued.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    x, y = records()
    expected = fitted.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    assert continued.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True) == pytest.approx(
        expected, rel=1e-4
    )

    on_system = second.evaluate(input_fn, steps=STEPS, use_cs=True)
    assert on_system.pop("global_step") == STEPS
    assert on_system == pytest.approx(expected, rel=1e-4)

    predictions = list(second.predict(input_fn, num_samples=20, use_cs=True))
    np.testing.assert_allclose(predictions, fitted.predict(x[:20], verbose=0), rtol=1e-3, atol=1e-5)

    in_another_process = estimator(make_model(), tmp_path, None)
    on_cpu = in_another_process.evaluate(input_fn, steps=STEPS)
    assert on_cpu.pop("global_step") == STEPS
    assert on_cpu == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(
        list(in_another_process.predict(input_fn, num_samples=20)), predictions, rtol=1e-3, atol=1e-5
    )

    names = second.get_variable_names()
    assert {"sequential/dense/kernel", "adam/sequential_dense_1_bias_velocity"} <= set(names)
    assert not [name for name in names if "total" in name]
    tags = {}
    for path in tmp_path.glob("events.out.tfevents.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            tags |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    assert ("accuracy", STEPS) in tags
    # The means of fit run over all steps, those here over the six since the continuation.
    assert abs(tags["loss", STEPS] - history["loss"][0]) < 0.5


def test_samples_have_the_weights_that_the_input_gives_them(
    system: RunningSystem, make_model: Callable[[], Any], tmp_path: Path
) -> None:
    def weighted_input_fn() -> tf.data.Dataset:
        weights = np.random.default_rng(7).uniform(0, 3, STEPS * BATCH).astype(np.float32)
        records_and_weights = tf.data.Dataset.from_tensor_slices((*records(), weights))
        return records_and_weights.repeat().batch(BATCH, drop_remainder=True)

    fitted, trained = make_model(), make_model()
    fitted.fit(weighted_input_fn(), steps_per_epoch=STEPS, verbose=0)
    program = estimator(trained, tmp_path, system)
    program.train(weighted_input_fn, max_steps=STEPS)
    for expected, found in zip(fitted.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    unweighted = make_model()
    unweighted.fit(input_fn(), steps_per_epoch=STEPS, verbose=0)
    assert np.abs(unweighted.get_weights()[0] - trained.get_weights()[0]).max() > 1e-3
    evaluated = program.evaluate(weighted_input_fn, steps=STEPS, use_cs=True)
    expected = fitted.evaluate(weighted_input_fn(), steps=STEPS, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    on_cpu = estimator(make_model(), tmp_path, None).evaluate(weighted_input_fn, steps=STEPS)
    assert on_cpu["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    x, _ = records()
    predictions = list(program.predict(weighted_input_fn, num_samples=10, use_cs=True))
    np.testing.assert_allclose(predictions, fitted.predict(x[:10], verbose=0), rtol=1e-3, atol=1e-5)


def test_a_batch_of_more_members_is_refused(make_model: Callable[[], Any], tmp_path: Path) -> None:
    def too_many() -> tf.data.Dataset:
        x, y = records()
        return tf.data.Dataset.from_tensor_slices((x, y, y, y)).batch(BATCH, drop_remainder=True)

    with pytest.raises(InputFnError, match=r"\(features, labels, sample_weight\); got a tuple of 4"):
        estimator(make_model(), tmp_path, None).compile(too_many)


def test_it_has_the_calls_of_an_estimator(make_model: Callable[[], Any], tmp_path: Path) -> None:
    made = estimator(make_model(), tmp_path, None)
    public = {name for name in dir(CerebrasEstimator) if not name.startswith("_")}
    assert public <= set(dir(made))
    assert callable(made.model_fn)


def test_validate_only_needs_no_system(make_model: Callable[[], Any], tmp_path: Path) -> None:
    estimator(make_model(), tmp_path, None).compile(input_fn, validate_only=True)
    assert (tmp_path / "run_summary.json").exists()


def test_the_interface_of_the_step_is_read_once(
    make_model: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the front end, which passes it on to the compiler."""
    read = []

    def counted(*fields: Any) -> StepInterface:
        read.append(fields)
        return StepInterface(*fields)

    monkeypatch.setattr("cgc.cirh.interface.StepInterface", counted)
    monkeypatch.chdir(tmp_path)  # compile() leaves a file in the current directory
    estimator(make_model(), tmp_path, None).compile(input_fn)
    assert list(tmp_path.glob("cs_*/manifest.json"))
    assert len(read) == 1


def test_a_training_on_this_cpu_is_that_of_the_model(make_model: Callable[[], Any], tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"call fit\(\) of the Keras model"):
        estimator(make_model(), tmp_path, None).train(input_fn, steps=3)


def test_a_train_step_without_a_loss_is_refused(tmp_path: Path) -> None:
    class Silent(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            return {"mean": tf.reduce_mean(data[0])}

    model = Silent()
    model.compile()
    with pytest.raises(ModelFnError, match="returns mean, expected the loss"):
        estimator(model, tmp_path, None).compile(input_fn)

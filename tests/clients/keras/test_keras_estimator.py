"""Keras models that are trained, evaluated and asked for predictions on a CS system."""

from __future__ import annotations

import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cs_toolkit.step import StepInterface
from estimator import CerebrasEstimator, CSRunConfig, KerasEstimator
from estimator.errors import CallError, CheckpointReadError, InputFnError, ModelFnError, UnsupportedOnCsError
from tests.programs.tf.keras_models import ModelWithoutLoss, normalized_mlp, vector_records
from tests.systems import RunningSystem

keras = tf.keras
STEPS, BATCH = 12, 8


def input_fn() -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(vector_records(STEPS)).repeat().batch(BATCH, drop_remainder=True)
    )


def estimator(model: Any, model_dir: Path, system: RunningSystem | None) -> KerasEstimator:
    address = None if system is None else system.address
    config = CSRunConfig(
        cs_ip=address, save_summary_steps=1, save_checkpoints_steps=6, log_step_count_steps=3
    )
    return KerasEstimator(model, model_dir, config=config)


def test_train_leaves_the_model_as_fit_would(
    system: RunningSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    fitted, trained = normalized_mlp(), normalized_mlp()
    shown: list[dict[str, float]] = []
    show = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: shown.append(dict(logs)))
    history = fitted.fit(input_fn(), steps_per_epoch=STEPS, verbose=0, callbacks=[show]).history
    first = estimator(trained, tmp_path, system)
    first.train(input_fn, steps=6)
    lines = [line for line in caplog.messages if line.startswith("global step ")]
    values = [{name: float(value) for name, value in re.findall(r"(\w+) = ([^ ,]+)", line)} for line in lines]
    assert set(values[0]) == {"loss", "accuracy"}
    assert values == [pytest.approx(shown[step - 1], rel=1e-4) for step in (1, 3, 6)]
    assert caplog.messages[-1].startswith(f"steps 1 to 6; newest checkpoint of step 6: {tmp_path}")
    continued = normalized_mlp()
    second = estimator(continued, tmp_path, system)
    second.train(input_fn, max_steps=STEPS)

    assert second.get_variable_value("global_step") == STEPS
    assert continued.optimizer.iterations == STEPS
    for expected, found in zip(fitted.get_weights(), continued.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    x, y = vector_records(STEPS)
    expected = fitted.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    assert continued.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True) == pytest.approx(
        expected, rel=1e-4
    )

    on_system = second.evaluate(input_fn, steps=STEPS, use_cs=True)
    assert on_system.pop("global_step") == STEPS
    assert on_system == pytest.approx(expected, rel=1e-4)

    predictions = list(second.predict(input_fn, num_samples=20, use_cs=True))
    np.testing.assert_allclose(predictions, fitted.predict(x[:20], verbose=0), rtol=1e-3, atol=1e-5)

    in_another_process = estimator(normalized_mlp(), tmp_path, None)
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


def test_an_evaluation_on_this_cpu_begins_with_new_totals(system: RunningSystem, tmp_path: Path) -> None:
    model = normalized_mlp()
    program = estimator(model, tmp_path, system)
    program.train(input_fn, max_steps=STEPS)  # leaves the totals of its last step in the model
    found = program.evaluate(input_fn, steps=STEPS)
    assert found == estimator(normalized_mlp(), tmp_path, None).evaluate(input_fn, steps=STEPS)

    x, y = vector_records(STEPS)
    model.evaluate(x, 2 - y, verbose=0)
    assert program.evaluate(input_fn, steps=STEPS) == found


def test_samples_have_the_weights_that_the_input_gives_them(system: RunningSystem, tmp_path: Path) -> None:
    def weighted_input_fn() -> tf.data.Dataset:
        weights = np.random.default_rng(7).uniform(0, 3, STEPS * BATCH).astype(np.float32)
        records_and_weights = tf.data.Dataset.from_tensor_slices((*vector_records(STEPS), weights))
        return records_and_weights.repeat().batch(BATCH, drop_remainder=True)

    fitted, trained = normalized_mlp(), normalized_mlp()
    fitted.fit(weighted_input_fn(), steps_per_epoch=STEPS, verbose=0)
    program = estimator(trained, tmp_path, system)
    program.train(weighted_input_fn, max_steps=STEPS)
    for expected, found in zip(fitted.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    unweighted = normalized_mlp()
    unweighted.fit(input_fn(), steps_per_epoch=STEPS, verbose=0)
    assert np.abs(unweighted.get_weights()[0] - trained.get_weights()[0]).max() > 1e-3
    evaluated = program.evaluate(weighted_input_fn, steps=STEPS, use_cs=True)
    expected = fitted.evaluate(weighted_input_fn(), steps=STEPS, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    on_cpu = estimator(normalized_mlp(), tmp_path, None).evaluate(weighted_input_fn, steps=STEPS)
    assert on_cpu["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    x, _ = vector_records(STEPS)
    predictions = list(program.predict(weighted_input_fn, num_samples=10, use_cs=True))
    np.testing.assert_allclose(predictions, fitted.predict(x[:10], verbose=0), rtol=1e-3, atol=1e-5)


def test_a_batch_of_more_members_is_refused(tmp_path: Path) -> None:
    def too_many() -> tf.data.Dataset:
        x, y = vector_records(STEPS)
        return tf.data.Dataset.from_tensor_slices((x, y, y, y)).batch(BATCH, drop_remainder=True)

    with pytest.raises(InputFnError, match=r"\(features, labels, sample_weight\); got a tuple of 4"):
        estimator(normalized_mlp(), tmp_path, None).compile(too_many)


def test_it_has_the_calls_of_an_estimator(tmp_path: Path) -> None:
    made = estimator(normalized_mlp(), tmp_path, None)
    public = {name for name in dir(CerebrasEstimator) if not name.startswith("_")}
    assert public <= set(dir(made))
    assert callable(made.model_fn)


def test_validate_only_needs_no_system(tmp_path: Path) -> None:
    estimator(normalized_mlp(), tmp_path, None).compile(input_fn, validate_only=True)
    assert (tmp_path / "run_summary.json").exists()


def test_the_interface_of_the_step_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front end passes it on to the compiler."""
    read = []

    def counted(*fields: Any) -> StepInterface:
        read.append(fields)
        return StepInterface(*fields)

    monkeypatch.setattr("cgc.cirh.interface.StepInterface", counted)
    monkeypatch.chdir(tmp_path)  # compile() leaves a file in the current directory
    estimator(normalized_mlp(), tmp_path, None).compile(input_fn)
    assert list(tmp_path.glob("cs_*/manifest.json"))
    assert len(read) == 1


def test_a_training_on_this_cpu_is_that_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"call fit\(\) of the Keras model"):
        estimator(normalized_mlp(), tmp_path, None).train(input_fn, steps=3, use_cs=False)


def test_a_train_step_without_a_loss_is_refused(tmp_path: Path) -> None:
    model = ModelWithoutLoss()
    model.compile()
    with pytest.raises(ModelFnError, match="returns mean, expected the loss"):
        estimator(model, tmp_path, None).compile(input_fn)


def test_a_checkpoint_goes_into_a_model_of_another_process(system: RunningSystem, tmp_path: Path) -> None:
    trained = normalized_mlp()
    estimator(trained, tmp_path, system).train(input_fn, max_steps=STEPS)
    x, y = vector_records(STEPS)
    expected = trained.evaluate(x, y, verbose=0, return_dict=True)

    later = estimator(normalized_mlp(), tmp_path, None)
    assert later.model.evaluate(x, y, verbose=0, return_dict=True) != expected
    assert later.load_checkpoint() is later.model
    assert later.model.evaluate(x, y, verbose=0, return_dict=True) == expected
    assert later.model.optimizer.iterations == STEPS
    for name, value in zip(
        [variable.path for variable in trained.optimizer.variables],
        trained.optimizer.variables,
        strict=True,
    ):
        [found] = [v for v in later.model.optimizer.variables if v.path == name]
        np.testing.assert_array_equal(found, value)

    later.load_checkpoint(str(tmp_path / "model.ckpt-6"))
    assert later.model.optimizer.iterations == 6
    assert later.model.evaluate(x, y, verbose=0, return_dict=True) != expected


def test_a_checkpoint_that_does_not_fit_leaves_the_model_as_it_is(
    system: RunningSystem, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointReadError, match="the directory has no checkpoint"):
        estimator(normalized_mlp(), tmp_path, None).load_checkpoint()
    estimator(normalized_mlp(), tmp_path, system).train(input_fn, max_steps=1)
    keras.utils.clear_session(free_memory=False)
    other = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(9), keras.layers.Dense(3)])
    before = other.get_weights()
    with pytest.raises(CheckpointReadError, match="'sequential/dense/kernel' has the shape"):
        estimator(other, tmp_path, None).load_checkpoint()
    named = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(8, name="other")])
    with pytest.raises(CheckpointReadError, match="it lacks the variables sequential_1/other/kernel"):
        estimator(named, tmp_path, None).load_checkpoint()
    for old, new in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


def test_the_source_of_a_kernel_is_the_line_of_its_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    estimator(normalized_mlp(), tmp_path, None).compile(input_fn)
    [report] = [json.loads(path.read_text()) for path in tmp_path.glob("cs_*/compile_report.json")]
    sources = {kernel["name"]: kernel["source"] for kernel in report["kernels"]}
    [norm] = [k["source"] for k in report["kernels"] if "cirh.FusedBatchNorm" in k["ops"]]
    (lines, first), file = inspect.getsourcelines(normalized_mlp), inspect.getsourcefile(normalized_mlp)
    line_of = {text.strip(): f"{file}:{number}" for number, text in enumerate(lines, first)}
    assert sources["fc1"] == line_of['layers.Dense(8, activation="relu"),']
    assert norm == line_of["layers.BatchNormalization(),"]
    assert sources["fc2"] == line_of["layers.Dense(3),"]
    assert sources["loss1"] is None


def test_lines_of_layers_of_the_users_own(tmp_path: Path) -> None:
    from cgc.importers.tensorflow import trace_keras_step
    from cgc.importers.tensorflow.origin import user_line
    from estimator.layer_lines import line_of

    class Twice(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(6)

        def call(self, x: Any) -> Any:
            return tf.nn.softplus(self.inner(x)) + self.inner(x)

    model = keras.Sequential([keras.layers.Input((6,)), Twice(), keras.layers.Dense(1)])
    traced = trace_keras_step(model, tf.TensorSpec((2, 6)), mode="infer", layer_line=line_of)
    first = inspect.getsourcelines(Twice)[1]
    lines = [(op.type, user_line(op)) for op in traced.body.get_operations()]
    assert [line for kind, line in lines if kind == "MatMul"] == [
        f"{__file__}:{first + 3}",
        f"{__file__}:{first + 3}",
        f"{__file__}:{first + 8}",
    ]
    assert [line for kind, line in lines if kind == "Softplus"] == [f"{__file__}:{first + 6}"]


def test_hooks_of_a_keras_model_look_at_what_its_step_logs(
    system: RunningSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    v1 = tf.compat.v1
    v1.logging.set_verbosity("INFO")
    caplog.set_level("INFO")
    made = estimator(normalized_mlp(), tmp_path, system)
    watching = v1.train.LoggingTensorHook(["accuracy", "loss"], every_n_iter=2)
    made.train(input_fn, hooks=[watching, v1.train.StopAtStepHook(num_steps=4)])
    assert made.get_variable_value("global_step") == 4
    assert len([r for r in caplog.records if r.getMessage().startswith("accuracy = ")]) == 2
    other = v1.train.LoggingTensorHook(["recall"], every_n_iter=2)
    with pytest.raises((UnsupportedOnCsError, KeyError), match="recall"):
        made.train(input_fn, steps=1, hooks=[other])


def test_the_message_gives_the_reason_that_a_run_is_not_on_the_system(
    system: RunningSystem, tmp_path: Path
) -> None:
    with pytest.raises(CallError, match="got use_cs=False"):
        estimator(normalized_mlp(), tmp_path, system).train(input_fn, steps=1, use_cs=False)

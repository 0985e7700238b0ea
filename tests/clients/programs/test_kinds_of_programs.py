"""Programs of the kinds that people write for tf.compat.v1, on the CS system and on the CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig
from estimator.cs.state import check_checkpoint
from estimator.errors import CheckpointReadError, ModelFnError
from tests.programs.tf.events import read_losses
from tests.programs.tf.linear_classifier import BATCH, FEATURES, ModelFn, input_fn, linear_classifier
from tests.systems import RunningSystem

v1 = tf.compat.v1


def estimator(
    model_fn: ModelFn, model_dir: Path, system: RunningSystem | None, **config: Any
) -> CerebrasEstimator:
    settings = {"tf_random_seed": 5, "save_summary_steps": 1, **config}
    cs_ip = None if system is None else system.address
    return CerebrasEstimator(
        model_fn, model_dir, config=CSRunConfig(cs_ip=cs_ip, **settings), use_cs=system is not None
    )


def checkpoint(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(model_dir / f"model.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_trainings_in_one_second_keep_all_their_events(system: RunningSystem, tmp_path: Path) -> None:
    program = estimator(linear_classifier(), tmp_path, system)
    for _ in range(4):
        program.train(input_fn, steps=3)
    assert len(read_losses(tmp_path)) == 12


def test_two_optimizers_that_both_count_steps_are_refused(system: RunningSystem, tmp_path: Path) -> None:
    def twice(loss: Any) -> Any:
        step = v1.train.get_global_step()
        optimizers = (v1.train.GradientDescentOptimizer(rate) for rate in (0.1, 0.2))
        return tf.group(*(optimizer.minimize(loss, step) for optimizer in optimizers))

    with pytest.raises(ModelFnError, match="2 times a step") as caught:
        estimator(linear_classifier(train=twice), tmp_path, system).train(input_fn, max_steps=10)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.glob("model.ckpt*"))


def test_the_seed_reaches_keras_layers_and_not_pythons_generator(
    system: RunningSystem, tmp_path: Path
) -> None:
    def keras_layers(features: Any) -> Any:
        inner = tf.keras.layers.Dense(8, activation="relu")(features)
        return tf.keras.layers.Dropout(0.3)(inner, training=True)

    random.seed(99)
    for name in ("first", "second"):
        estimator(linear_classifier(keras_layers), tmp_path / name, system).train(input_fn, max_steps=5)
    drawn = random.random()
    random.seed(99)
    assert drawn == random.random()
    first, second = checkpoint(tmp_path / "first", 5), checkpoint(tmp_path / "second", 5)
    assert first.keys() == second.keys()
    for variable, value in first.items():
        assert second[variable].tobytes() == value.tobytes(), variable


def test_metrics_whose_update_is_not_their_value(system: RunningSystem, tmp_path: Path) -> None:
    def metrics(labels: Any, logits: Any) -> dict[str, Any]:
        classes = tf.argmax(logits, axis=1, output_type=tf.int32)
        return {
            "per_class": v1.metrics.mean_per_class_accuracy(labels, classes, 3),
            "true_positives": v1.metrics.true_positives(tf.equal(labels, 1), tf.equal(classes, 1)),
            "accuracy": v1.metrics.accuracy(labels, classes),
            "batch_norm": (tf.reduce_sum(tf.constant([1.0, 2.0])), tf.no_op()),
        }

    program = estimator(linear_classifier(metrics=metrics), tmp_path, system)
    program.train(input_fn, max_steps=10)
    on_system = program.evaluate(input_fn, steps=5, use_cs=True)
    on_cpu = program.evaluate(input_fn, steps=5)
    assert on_system.keys() == on_cpu.keys() >= {"per_class", "true_positives", "batch_norm"}
    for name, value in on_cpu.items():
        assert on_system[name] == pytest.approx(value, rel=1e-5), name


def test_branches_in_a_program_that_turns_off_control_flow_v2(system: RunningSystem, tmp_path: Path) -> None:
    def branching(features: Any) -> Any:
        early = v1.train.get_global_step() < 3
        return tf.cond(early, lambda: features * 2.0, lambda: features - 1.0)

    v1.disable_control_flow_v2()
    try:
        program = estimator(linear_classifier(branching), tmp_path / "system", system)
        program.train(input_fn, max_steps=6)
        assert not v1.control_flow_v2_enabled()
    finally:
        v1.enable_control_flow_v2()
    estimator(linear_classifier(branching), tmp_path / "cpu", None).train(input_fn, max_steps=6)
    np.testing.assert_allclose(read_losses(tmp_path / "system"), read_losses(tmp_path / "cpu"), rtol=1e-5)


def test_no_seed(system: RunningSystem, tmp_path: Path) -> None:
    program = estimator(linear_classifier(), tmp_path, system, tf_random_seed=None)
    program.train(input_fn, max_steps=3)
    assert program.get_variable_value("global_step") == 3


def test_a_listener_that_asks_to_stop(system: RunningSystem, tmp_path: Path) -> None:
    class StopAtSix(v1.train.CheckpointSaverListener):
        def after_save(self, session: Any, global_step_value: int) -> bool:
            return global_step_value >= 6

    program = estimator(linear_classifier(), tmp_path, system, save_checkpoints_steps=3)
    program.train(input_fn, max_steps=30, saving_listeners=[StopAtSix()])
    assert program.get_variable_value("global_step") == 6


@pytest.mark.parametrize("train_op", ["minimize", v1.train.AdamOptimizer(0.1)])
def test_a_train_op_that_is_none(system: RunningSystem, tmp_path: Path, train_op: Any) -> None:
    with pytest.raises(ModelFnError, match=r"optimizer\.minimize"):
        estimator(linear_classifier(train=lambda loss: train_op), tmp_path, system).train(
            input_fn, max_steps=3
        )


def test_an_unknown_field_of_the_configuration_is_wrong_use() -> None:
    with pytest.raises(TypeError, match="did you mean 'save_checkpoints_steps'") as caught:
        CSRunConfig(save_checkpoint_steps=5)
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


def test_double_precision_input_is_refused_with_a_cast(system: RunningSystem, tmp_path: Path) -> None:
    def doubles() -> tf.data.Dataset:
        records = (np.zeros((32, FEATURES)), np.zeros(32, np.int32))
        return tf.data.Dataset.from_tensor_slices(records).repeat().batch(BATCH, drop_remainder=True)

    with pytest.raises(ValueError, match=r"'features' .* float64.*tf\.cast\(x, tf\.float32\)"):
        estimator(linear_classifier(), tmp_path, system).train(doubles, max_steps=3)


def test_an_empty_input_is_called_empty(system: RunningSystem, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the input has no batch"):
        estimator(linear_classifier(), tmp_path, system).train(lambda: input_fn().take(0), max_steps=3)


def test_a_checkpoint_of_another_model_names_what_it_lacks(system: RunningSystem, tmp_path: Path) -> None:
    estimator(linear_classifier(), tmp_path, system).train(input_fn, max_steps=2)

    def more(features: Any) -> Any:
        return tf.matmul(features, v1.get_variable("more", [FEATURES, FEATURES]))

    before = sorted(tmp_path.glob("cs_*"))
    with pytest.raises(CheckpointReadError, match=r"lacks the variables .*more"):
        estimator(linear_classifier(more), tmp_path, system).train(input_fn, max_steps=4)
    assert sorted(tmp_path.glob("cs_*")) == before  # nothing was compiled


@pytest.mark.parametrize(
    ("width", "dtype", "message"),
    [(5, tf.float32, "has the shape"), (4, tf.float64, "has the type float32 in it, but float64")],
)
def test_a_checkpoint_of_another_shape_or_type_is_refused(
    width: int, dtype: Any, message: str, tmp_path: Path
) -> None:
    def graph_of(width: int, dtype: Any) -> tf.Graph:
        with tf.Graph().as_default() as graph:
            v1.get_variable("weights", [width], dtype)
        return graph

    prefix = str(tmp_path / "model.ckpt")
    with graph_of(4, tf.float32).as_default(), v1.Session() as session:
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, prefix)
    check_checkpoint(graph_of(4, tf.float32), None, prefix)
    with pytest.raises(CheckpointReadError, match=message):
        check_checkpoint(graph_of(width, dtype), None, prefix)

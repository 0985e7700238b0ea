"""The TensorFlow side of a run on the CS system, without a system."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.interface import step_interface
from estimator import CSRunConfig, EstimatorSpec, ModeKeys
from estimator.checkpoints import all_of
from estimator.cs.program import TensorFlowFrontEnd
from estimator.cs.state import StateOptions
from estimator.errors import CheckpointReadError
from estimator.input.dataset import InputSource
from estimator.spec import WarmStartSettings

InputFn = Callable[..., Any]
PARAMS = {"learning_rate": 0.05}


@pytest.fixture
def front_end(tiny_model: Any, tiny_input: InputFn, tmp_path: Path) -> Any:
    made: list[TensorFlowFrontEnd] = []

    def make(
        mode: str = ModeKeys.TRAIN,
        model_fn: Any = tiny_model,
        input_fn: Any = tiny_input,
        options: StateOptions | None = None,
        model_dir: Path = tmp_path / "model",
        **fields: Any,
    ) -> TensorFlowFrontEnd:
        config = CSRunConfig("127.0.0.1", **fields)
        source = InputSource(input_fn, mode, PARAMS, config, {})
        made.append(TensorFlowFrontEnd(model_fn, source, PARAMS, config, model_dir, options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_program_and_input_agree(front_end: Any) -> None:
    end = front_end()
    program = end.program()
    interface = step_interface(program.module)
    assert (program.mode, program.batch_size) == ("train", 8)
    assert interface.inputs == end.inputs()
    outputs = [output.name for output in interface.outputs]
    assert outputs[:2] == ["output_loss", "output_summary/doubled_loss"]
    (labels,) = program.checks
    assert (labels.tensor, labels.low, labels.high) == ("labels", -1, 3)
    assert outputs[2:] == [labels.minimum, labels.maximum]
    assert "state.global_step" in interface.updated
    batch = next(end.batches(0))
    assert [(array.dtype.name, array.shape) for array in batch] == [("float32", (8, 4)), ("int32", (8,))]


def test_state_fits_the_program_and_survives_a_checkpoint(front_end: Any) -> None:
    end = front_end()
    state = end.initial_state()
    interface = step_interface(end.program().module)
    assert {(s.name, s.dtype, s.shape) for s in interface.state} == {
        (name, array.dtype.name, array.shape) for name, array in state.items()
    }
    changed = {name: np.asarray(array + 1) for name, array in state.items()}
    changed["state.global_step"] = np.asarray(7, np.int32)  # the device counts in 32 bits
    end.save(7, changed)
    again = front_end().initial_state()
    assert again["state.global_step"] == 7
    assert again["state.global_step"].dtype == np.int64
    assert np.array_equal(again["state.model.dense/kernel"], changed["state.model.dense/kernel"])
    assert np.array_equal(
        again["state.optimizer.dense/kernel/Adam"], changed["state.optimizer.dense/kernel/Adam"]
    )


def test_checkpoints_are_those_of_a_training_on_the_cpu(
    front_end: Any, tiny: Any, tiny_input: InputFn
) -> None:
    end = front_end()
    state = end.initial_state()
    end.save(0, state)
    estimator = tiny()
    assert np.array_equal(estimator.get_variable_value("dense/kernel"), state["state.model.dense/kernel"])
    estimator.train(tiny_input, steps=3)
    assert front_end().initial_state()["state.global_step"] == 3


def test_newest_checkpoints_are_kept_across_runs(front_end: Any, tmp_path: Path) -> None:
    for steps in ((1, 2), (3, 4)):
        end = front_end(keep_checkpoint_max=2)
        state = end.initial_state()
        for step in steps:
            end.save(step, state)
        end.close()
    names = [Path(prefix).name for prefix in all_of(tmp_path / "model")]
    assert names == ["model.ckpt-3", "model.ckpt-4"]
    assert not list((tmp_path / "model").glob("model.ckpt-[12].*"))


def test_saving_listeners_are_called(front_end: Any) -> None:
    class Listener(tf.compat.v1.train.CheckpointSaverListener):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def begin(self) -> None:
            self.calls.append("begin")

        def before_save(self, session: Any, global_step_value: int) -> None:
            self.calls.append(
                ("before", global_step_value, session.run("dense/bias/Read/ReadVariableOp:0").tolist())
            )

        def after_save(self, session: Any, global_step_value: int) -> None:
            self.calls.append(("after", global_step_value))

        def end(self, session: Any, global_step_value: int) -> None:
            self.calls.append(("end", global_step_value))

    listener = Listener()
    end = front_end(options=StateOptions(saving_listeners=(listener,)))
    state = end.initial_state()
    state["state.model.dense/bias"] = np.ones(3, np.float32)
    end.save(4, state)
    end.close()
    assert listener.calls == ["begin", ("before", 4, [1.0, 1.0, 1.0]), ("after", 4), ("end", 4)]


def test_warm_start_only_without_a_checkpoint(front_end: Any, tmp_path: Path) -> None:
    source = front_end(model_dir=tmp_path / "source")
    state = source.initial_state()
    state["state.model.dense/kernel"] = np.full((4, 3), 9, np.float32)
    source.save(5, state)
    options = StateOptions(warm_start=WarmStartSettings(str(tmp_path / "source")))
    warm = front_end(options=options).initial_state()
    assert warm["state.global_step"] == 0
    assert (warm["state.model.dense/kernel"] == 9).all()
    own = front_end()
    own.initial_state()
    own.save(1, {"state.model.dense/kernel": np.zeros((4, 3), np.float32)})
    again = front_end(options=options).initial_state()
    assert (again["state.model.dense/kernel"] == 0).all()


def test_evaluation_reads_the_weights_of_the_training(front_end: Any) -> None:
    end = front_end()
    state = end.initial_state()
    end.save(2, state)
    evaluation = front_end(ModeKeys.EVAL)
    interface = step_interface(evaluation.program().module)
    assert interface.outputs[0].name == "output_loss"
    restored = evaluation.initial_state()
    assert set(restored) == {spec.name for spec in interface.state}
    assert np.array_equal(restored["state.model.dense/bias"], state["state.model.dense/bias"])
    # The running sums of the metrics begin at zero.
    totals = {name: array for name, array in restored.items() if "accuracy" in name}
    assert totals
    assert all(not array.any() for array in totals.values())
    # Their values are computed from the sums after the last step.
    counted = {
        name: np.full_like(array, 6 if name.endswith("total") else 8) for name, array in totals.items()
    }
    assert evaluation.metric_values(counted)["accuracy"] == 0.75


def test_prediction_takes_features_only(front_end: Any) -> None:
    end = front_end(ModeKeys.PREDICT)
    interface = step_interface(end.program().module)
    assert [spec.shape for spec in interface.inputs] == [(8, 4)]
    assert {output.name for output in interface.outputs} == {
        "output_prediction/classes",
        "output_prediction/probabilities",
    }


def test_a_checkpoint_of_another_model(front_end: Any, tmp_path: Path) -> None:
    end = front_end()
    end.initial_state()
    end.save(1, {})

    def wider(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        kernel = tf.compat.v1.get_variable("dense/kernel", [4, 5])
        loss = tf.reduce_mean(tf.matmul(features, kernel))
        step = tf.compat.v1.train.get_global_step()
        return EstimatorSpec(
            mode, loss=loss, train_op=tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(loss, step)
        )

    with pytest.raises(CheckpointReadError, match=r"model\.ckpt-1'.*empty model_dir"):
        front_end(model_fn=wider).initial_state()


def test_facts_tell_inputs_apart(front_end: Any, tiny_input: InputFn) -> None:
    def other(params: dict[str, Any], mode: str) -> Any:
        return tiny_input(params, mode)

    facts = front_end().input_facts()
    assert facts == front_end().input_facts()
    assert facts["tensor 0"] == "features float32[8, 4]"
    assert facts["tensor 1"] == "labels int32[8]"
    different = front_end(input_fn=other).input_facts()
    assert [name for name in facts if facts[name] != different[name]] == ["input function"]
    assert re.search(r"other in test_cs_program.py \(sha256 [0-9a-f]{12}\)$", different["input function"])


def test_facts_do_not_depend_on_parameters(front_end: Any, tiny_input: InputFn) -> None:
    """A program may change its parameters in one task only: no worker calls model_fn."""
    seen = []

    def counting(params: dict[str, Any], mode: str) -> Any:
        seen.append(dict(params))
        params["calls"] = params.get("calls", 0) + 1
        return tiny_input(params, mode)

    chief, worker = front_end(input_fn=counting), front_end(input_fn=counting)
    before = chief.input_facts()
    chief.program()
    list(itertools.islice(chief.batches(0), 1))
    assert chief.input_facts() == before == worker.input_facts()
    assert all("calls" not in params for params in seen)

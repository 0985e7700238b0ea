"""A program with its own loop: some steps, a checkpoint, more steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from cs_runtime.options import RunSettings
from cs_runtime.progress import Timeline
from cs_runtime.session import next_run
from cs_runtime.training import train, training_run
from cs_system.client import StateStream, StepOutputs
from cs_system.errors import TensorDamagedError
from csrun.tasks.roles import TaskInfo
from estimator import CSRunConfig
from estimator.cs.program import TensorFlowFrontEnd
from estimator.input.dataset import InputSource
from tests.programs.tf.linear_classifier import BATCH, input_fn, linear_classifier
from tests.systems import RunningSystem

v1 = tf.compat.v1
BATCHES = 12


class Losses:
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def steps(self, outputs: StepOutputs) -> None:
        self.values += [float(loss) for loss in outputs.outputs["output_loss"]]


def front_end(model_dir: Path) -> TensorFlowFrontEnd:
    config = CSRunConfig(tf_random_seed=1)
    model_fn = linear_classifier(optimizer=lambda: v1.train.AdamOptimizer(0.1))
    source = InputSource(lambda: input_fn().take(BATCHES), "train", {}, config, {})
    return TensorFlowFrontEnd(model_fn, source, {}, config, model_dir)


def settings(system: RunningSystem, model_dir: Path, **more: int) -> RunSettings:
    return RunSettings("train", model_dir, BATCH, cs_ip=str(system.address), **more)


@pytest.fixture
def task() -> TaskInfo:
    return TaskInfo.from_environment()


def test_a_loop_of_ones_own_equals_train(system: RunningSystem, tmp_path: Path, task: TaskInfo) -> None:
    whole, own = Losses(), Losses()
    train(front_end(tmp_path / "whole"), settings(system, tmp_path / "whole", steps=7), whole)
    with training_run(
        front_end(tmp_path / "own"), settings(system, tmp_path / "own"), own, task, next_run(), Timeline()
    ) as run:
        assert (run.first_step, run.step) == (0, 0)
        assert run.advance(3) == 3
        run.checkpoint()
        assert tf.train.latest_checkpoint(str(tmp_path / "own")) == str(tmp_path / "own" / "model.ckpt-3")
        assert run.advance(4) == 4
        assert run.step == 7
        weights = run.state()["state.model.weights"]
    assert own.values == whole.values
    saved = tf.train.load_variable(tf.train.latest_checkpoint(str(tmp_path / "whole")), "weights")
    np.testing.assert_array_equal(weights, saved)


def test_a_checkpoint_of_which_further_steps_run_equals_one_between_steps(
    system: RunningSystem, tmp_path: Path, task: TaskInfo
) -> None:
    losses = Losses()
    with training_run(
        front_end(tmp_path), settings(system, tmp_path), losses, task, next_run(), Timeline()
    ) as run:
        run.advance(3)
        expected = np.array(run.state()["state.model.weights"])
        run.start_checkpoint()
        losses.steps = lambda outputs: 1 // 0  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            run.advance(5)
        saved = tf.train.load_variable(str(tmp_path / "model.ckpt-3"), "weights")
    np.testing.assert_array_equal(saved, expected)


@pytest.mark.parametrize("more", [0, 2])
def test_a_background_checkpoint_that_arrives_damaged(
    more: int,
    system: RunningSystem,
    tmp_path: Path,
    task: TaskInfo,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is fetched again if no step has run since; else it is left out, and the run continues."""
    read, damaged = StateStream.read, [TensorDamagedError.of("state.model.weights")]

    def read_damaged(stream: StateStream) -> dict[str, np.ndarray]:
        state = read(stream)
        if damaged:
            raise damaged.pop()
        return state

    with training_run(
        front_end(tmp_path), settings(system, tmp_path), Losses(), task, next_run(), Timeline()
    ) as run:
        run.advance(3)
        monkeypatch.setattr(StateStream, "read", read_damaged)
        run.start_checkpoint()
        run.advance(more) if more else run.finish_checkpoint()
        run.checkpoint()
        assert run.step == 3 + more
    assert not damaged
    assert [path.name for path in tmp_path.glob("*-[1-9].index")] == [f"model.ckpt-{3 + more}.index"]
    warnings = [line for line in caplog.messages if "no checkpoint of step 3: tensor" in line]
    assert len(warnings) == bool(more)


def test_the_end_of_the_input_is_reported(system: RunningSystem, tmp_path: Path, task: TaskInfo) -> None:
    losses = Losses()
    with training_run(
        front_end(tmp_path), settings(system, tmp_path), losses, task, next_run(), Timeline()
    ) as run:
        assert run.advance(10) == 10
        assert not run.input_ended
        assert run.advance(10) == BATCHES - 10
        assert run.input_ended
        assert run.advance(1) == 0
        run.checkpoint()
    assert len(losses.values) == BATCHES
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / f"model.ckpt-{BATCHES}")

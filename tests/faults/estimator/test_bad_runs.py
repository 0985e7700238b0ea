"""Runs that cannot continue end with an error that gives advice, and leave complete files."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cs_runtime.errors import ModelDirError, NonFiniteLossError
from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, ModeKeys, WarmStartSettings
from estimator.checkpoints import all_of
from estimator.cs.program import TensorFlowFrontEnd
from estimator.errors import (
    CheckpointReadError,
    CheckpointWriteError,
    InputShapeError,
    UnsupportedOnCsError,
)
from estimator.input.dataset import InputSource

Tiny = Callable[..., CerebrasEstimator]
InputFn = Callable[..., Any]
NOWHERE = "127.0.0.1:1"


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Makes every write beyond that size fail, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room_bytes", [64, 1200])
def test_full_disk_keeps_the_checkpoint_before(
    tiny_model: Any, tiny_input: InputFn, tmp_path: Path, room_bytes: int
) -> None:
    """64 bytes: not even the data fits. 1200 bytes: the data fits, the meta graph does not."""
    config = CSRunConfig("127.0.0.1", keep_checkpoint_max=1)
    source = InputSource(tiny_input, ModeKeys.TRAIN, {}, config, {})
    end = TensorFlowFrontEnd(tiny_model, source, {}, config, tmp_path)
    state = end.initial_state()
    end.save(1, state)
    end = TensorFlowFrontEnd(tiny_model, source, {}, config, tmp_path)  # writes the meta graph once more
    state = end.initial_state()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with largest_file(room_bytes), pytest.raises(CheckpointWriteError) as caught:
        end.save(2, state)
    assert "model.ckpt-2" in str(caught.value)
    assert "model.ckpt-1'" in str(caught.value)
    assert "File too large" in str(caught.value)
    assert caught.value.exit_code == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    end.save(2, state)
    end.close()
    assert [Path(prefix).name for prefix in all_of(tmp_path)] == ["model.ckpt-2"]


def test_model_dir_that_cannot_be_made(tiny: Tiny, tiny_input: InputFn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        ModelDirError, match=r"cannot write to model_dir .*Not a directory.*choose a writable"
    ):
        tiny(model_dir=tmp_path / "file" / "model").train(tiny_input, steps=1)


def test_nan_loss_ends_the_training_without_a_checkpoint_of_it(tiny: Tiny) -> None:
    def poisoned() -> tf.data.Dataset:
        features = np.ones([32, 4], np.float32)
        features[24:] = np.nan
        return tf.data.Dataset.from_tensor_slices((features, np.zeros(32, np.int32))).batch(8)

    estimator = tiny(save_checkpoints_steps=2)
    with pytest.raises(NonFiniteLossError, match=r"loss is nan at global step 4, .*learning rate"):
        estimator.train(poisoned, steps=10)
    assert estimator.get_variable_value("global_step") == 2
    assert np.isfinite(estimator.get_variable_value("dense/kernel")).all()


def test_damaged_checkpoint(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    estimator.train(tiny_input, steps=1)
    data = Path(f"{estimator.latest_checkpoint()}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(CheckpointReadError, match=r"cannot restore checkpoint '.*model\.ckpt-1'"):
        estimator.evaluate(tiny_input)


def test_missing_checkpoint(tiny: Tiny, tiny_input: InputFn, tmp_path: Path) -> None:
    with pytest.raises(CheckpointReadError, match="no-such-checkpoint"):
        tiny().evaluate(tiny_input, checkpoint_path=str(tmp_path / "no-such-checkpoint-5"))
    with pytest.raises(CheckpointReadError, match="nothing-here"):
        tiny(warm_start_from=str(tmp_path / "nothing-here")).train(tiny_input, steps=1)
    with pytest.raises(CheckpointReadError, match="model"):
        tiny().get_variable_names()


def test_warm_start_of_a_variable_that_is_not_there(tiny: Tiny, tiny_input: InputFn, tmp_path: Path) -> None:
    source = tiny(model_dir=tmp_path / "source")
    source.train(tiny_input, steps=1)
    settings = WarmStartSettings(source.model_dir, ".*kernel", None, {"dense/kernel": "encoder/kernel"})
    with pytest.raises(CheckpointReadError, match="encoder/kernel"):
        tiny(warm_start_from=settings).train(tiny_input, steps=1)


def test_checkpoint_of_another_shape_on_the_cpu(tiny: Tiny, tiny_input: InputFn) -> None:
    def wider(features: Any, mode: str) -> EstimatorSpec:
        kernel = tf.compat.v1.get_variable("dense/kernel", [4, 5])
        return EstimatorSpec(mode, predictions=tf.matmul(features, kernel))

    tiny().train(tiny_input, steps=1)
    with pytest.raises(CheckpointReadError, match=r"'dense/kernel' has the shape \(4, 3\).*\(4, 5\)"):
        next(iter(tiny(model_fn=wider, params={}).predict(tiny_input)))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"steps": 5, "max_steps": 5}, "both steps=5 and max_steps=5"),
        ({"steps": 0}, "needs steps > 0, got 0"),
        ({"max_steps": -3}, "needs max_steps > 0, got -3"),
    ],
)
def test_contradicting_limits(tiny: Tiny, tiny_input: InputFn, limits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny().train(tiny_input, **limits)


def test_other_misuse(tiny: Tiny, tiny_input: InputFn, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps > 0 or None, got 0"):
        tiny().evaluate(tiny_input, steps=0)
    with pytest.raises(ValueError, match="num_samples > 0 or None, got -1"):
        tiny().predict(tiny_input, num_samples=-1)
    with pytest.raises(ValueError, match="mode must be one of train, eval, infer, got 'predict'"):
        tiny().compile(tiny_input, mode="predict")
    with pytest.raises(ValueError, match="set one of them, or both to the same"):
        CerebrasEstimator(lambda features: None, tmp_path / "a", config=CSRunConfig(model_dir="b"))  # type: ignore[arg-type, return-value]


class TestOnTheSystem:
    """Refusals that need no system: all of them come before the address is tried."""

    def train(self, tiny: Tiny, model_fn: Any, input_fn: InputFn) -> None:
        config = CSRunConfig(NOWHERE)
        source = InputSource(input_fn, ModeKeys.TRAIN, {}, config, {})
        TensorFlowFrontEnd(model_fn, source, {}, config, Path("unused")).program()

    def test_steps_are_needed(self, tiny: Tiny, tiny_input: InputFn) -> None:
        estimator = tiny(cs_ip=NOWHERE)
        with pytest.raises(UnsupportedOnCsError, match=r"neither steps nor max_steps; set one of them"):
            estimator.train(tiny_input)
        with pytest.raises(UnsupportedOnCsError, match=r"needs the number of steps, got None; set steps"):
            estimator.evaluate(tiny_input, use_cs=True)

    def test_metrics_in_a_training(self, tiny: Tiny, tiny_model: Any, tiny_input: InputFn) -> None:
        def with_metrics(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
            spec = tiny_model(features, labels, mode, params)
            metrics = {"mean": tf.compat.v1.metrics.mean(features)}
            return EstimatorSpec(mode, loss=spec.loss, train_op=spec.train_op, eval_metric_ops=metrics)

        with pytest.raises(UnsupportedOnCsError) as caught:
            self.train(tiny, with_metrics, tiny_input)
        expected = "[Unsupported TensorFlow] Detected unsupported eval_metric_ops in CS system training run."
        assert str(caught.value).startswith(expected)
        assert "mean" in str(caught.value)

    def test_train_op_that_does_not_count(self, tiny: Tiny, tiny_input: InputFn) -> None:
        def forgetful(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            kernel = tf.compat.v1.get_variable("kernel", [4, 3])
            loss = tf.reduce_mean(tf.matmul(features, kernel))
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
            return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))

        with pytest.raises(ValueError, match=r"does not advance the global step.*global_step=tf"):
            self.train(tiny, forgetful, tiny_input)
        with pytest.raises(ValueError, match="does not advance the global step"):
            tiny(model_fn=forgetful, params={}).train(tiny_input, steps=1)

    def test_batches_of_varying_size(self, tiny: Tiny, tiny_model: Any) -> None:
        def ragged_end(params: Any) -> tf.data.Dataset:
            features = np.ones([20, 4], np.float32)
            return tf.data.Dataset.from_tensor_slices((features, np.zeros(20, np.int32))).batch(8)

        with pytest.raises(InputShapeError, match=r"'features' .* \(None, 4\).*drop_remainder=True"):
            self.train(tiny, tiny_model, ragged_end)

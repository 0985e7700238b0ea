"""Training, evaluation and prediction without a CS system."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from inspect import getsourcelines
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from estimator import CerebrasEstimator, EstimatorSpec, ModeKeys
from estimator.checkpoints import all_of
from estimator.errors import CallError, CpuLimitError
from tests.programs.tf.events import read_scalars

Tiny = Callable[..., CerebrasEstimator]
InputFn = Callable[..., Any]


def steps_in(model_dir: str) -> list[int]:
    return [int(prefix.rsplit("-", 1)[1]) for prefix in all_of(model_dir)]


def test_train_evaluate_predict(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    assert estimator.train(tiny_input, steps=60) is estimator
    metrics = estimator.evaluate(tiny_input)
    assert set(metrics) == {"accuracy", "loss", "global_step"}
    assert metrics["global_step"] == 60
    assert metrics["accuracy"] > 0.8
    examples = list(estimator.predict(tiny_input))
    assert len(examples) == 24
    assert examples[0]["probabilities"].shape == (3,)
    assert examples[0]["classes"] == examples[0]["probabilities"].argmax()


def test_a_metric_of_one_batch_is_refused(tiny: Tiny, tiny_input: InputFn) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        total = tf.reduce_sum(features)
        return EstimatorSpec(mode, loss=total, eval_metric_ops={"total": (total, tf.no_op())})

    with pytest.raises(CallError, match="metric is computed from a batch, but the input has ended"):
        tiny(model_fn=model_fn, params={}).evaluate(tiny_input)


def test_checkpoints_are_readable_by_tensorflow(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    estimator.train(tiny_input, steps=3)
    assert estimator.latest_checkpoint() == f"{estimator.model_dir}/model.ckpt-3"
    assert tf.train.latest_checkpoint(estimator.model_dir) == estimator.latest_checkpoint()
    reader = tf.train.load_checkpoint(estimator.latest_checkpoint())
    assert reader.get_tensor("global_step") == 3
    assert reader.get_tensor("dense/kernel").shape == (4, 3)
    assert np.array_equal(estimator.get_variable_value("dense/bias"), reader.get_tensor("dense/bias"))
    assert "dense/kernel/Adam" in estimator.get_variable_names()
    assert Path(estimator.model_dir, "model.ckpt-3.meta").is_file()


def test_second_train_continues(tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture) -> None:
    for package in ("estimator", "cs_runtime"):
        caplog.set_level(logging.INFO, package)
    tiny().train(tiny_input, steps=3)
    tiny().train(tiny_input, steps=3)
    assert tiny().get_variable_value("global_step") == 6
    before = tiny().get_variable_value("dense/kernel")
    tiny().train(tiny_input, max_steps=6)
    assert np.array_equal(before, tiny().get_variable_value("dense/kernel"))
    assert "continuing at step 3 of 6" in caplog.text
    assert "the newest checkpoint is of step 6. To train further, set a higher max_steps (12 " in caplog.text


def test_keep_checkpoint_max_counts_earlier_runs(tiny: Tiny, tiny_input: InputFn) -> None:
    for last in (4, 8):
        tiny(save_checkpoints_steps=2, keep_checkpoint_max=3).train(tiny_input, max_steps=last)
    assert steps_in(tiny().model_dir) == [4, 6, 8]
    files = {path.name.split(".")[1] for path in Path(tiny().model_dir).glob("model.ckpt-*")}
    assert files == {"ckpt-4", "ckpt-6", "ckpt-8"}


def test_same_seed_same_weights(tiny: Tiny, tiny_input: InputFn, tmp_path: Path) -> None:
    first, second, other = (
        tiny(model_dir=tmp_path / name, tf_random_seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    for estimator in (first, second, other):
        estimator.train(tiny_input, steps=4)
    kernel = first.get_variable_value("dense/kernel")
    assert np.array_equal(kernel, second.get_variable_value("dense/kernel"))
    assert not np.array_equal(kernel, other.get_variable_value("dense/kernel"))


def test_warm_start_takes_the_weights_and_starts_at_step_0(
    tiny: Tiny, tiny_input: InputFn, tmp_path: Path
) -> None:
    source = tiny(model_dir=tmp_path / "source")
    source.train(tiny_input, steps=5)
    # Gradients of a learning rate of 0 leave the weights as they were warm-started.
    warm = tiny(model_dir=tmp_path / "warm", warm_start_from=source.model_dir, params={"learning_rate": 0.0})
    warm.train(tiny_input, steps=1)
    assert warm.get_variable_value("global_step") == 1
    kernel = warm.get_variable_value("dense/kernel")
    assert np.array_equal(kernel, source.get_variable_value("dense/kernel"))


def test_files_of_a_training(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny(save_summary_steps=2, params={"learning_rate": np.float64(0.05), "callback": print})
    estimator.train(tiny_input, steps=4)
    estimator.evaluate(tiny_input, name="held_out")
    model_dir = Path(estimator.model_dir)
    assert yaml.safe_load((model_dir / "params.yaml").read_text()) == {"learning_rate": 0.05}
    assert (model_dir / "graph.pbtxt").is_file()
    scalars = read_scalars(model_dir)
    assert {"loss", "doubled_loss", "global_step/sec", "samples/sec"} <= set(scalars)
    assert sorted(scalars["loss"]) == [2, 4]
    assert scalars["doubled_loss"][4] == pytest.approx(2 * scalars["loss"][4])
    assert set(read_scalars(model_dir / "eval_held_out")) == {"loss", "accuracy"}


def test_log_lines(tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture) -> None:
    for package in ("estimator", "cs_runtime"):
        caplog.set_level(logging.INFO, package)
    tiny(log_step_count_steps=2).train(tiny_input, steps=4)
    messages = [record.getMessage() for record in caplog.records]
    steps = [message.split(":")[0] for message in messages if message.startswith("global step ")]
    assert steps == ["global step 1", "global step 2", "global step 4"]
    assert any("steps/sec" in message for message in messages)
    assert any(message.startswith("Training finished with 32 samples in ") for message in messages)
    assert any(message.startswith("Loss for final step: ") for message in messages)


def test_training_ends_with_the_input(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    estimator.train(lambda: tiny_input({}, ModeKeys.EVAL))
    assert estimator.get_variable_value("global_step") == 3


def test_hooks_and_listeners_are_called(tiny: Tiny, tiny_input: InputFn) -> None:
    class Counter(tf.compat.v1.train.SessionRunHook):
        runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1

    class Listener(tf.compat.v1.train.CheckpointSaverListener):
        def __init__(self) -> None:
            self.saved: list[int] = []

        def after_save(self, session: Any, global_step_value: int) -> bool:
            self.saved.append(global_step_value)
            return global_step_value == 4

    counter, listener = Counter(), Listener()
    tiny(save_checkpoints_steps=2).train(tiny_input, steps=10, hooks=[counter], saving_listeners=[listener])
    assert listener.saved == [0, 2, 4]
    assert counter.runs == 4


def test_a_logger_gets_the_metrics_of_a_run(tiny: Tiny, tiny_input: InputFn, tiny_model: Any) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "loggers.md"
    [hook] = re.findall(r"```python\n(class .*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {"tf": tf}
    exec(hook, names)
    logged: dict[int, dict[str, float]] = {}

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = tiny_model(features, labels, mode, params)
        send = names["SendMetrics"](logged.__setitem__, every=2, loss=spec.loss)
        return spec._replace(training_hooks=[send])

    tiny(model_fn=model_fn).train(tiny_input, steps=4)
    assert list(logged) == [2, 4]
    assert all(values.keys() == {"loss"} and values["loss"] > 0 for values in logged.values())


def test_predict_options(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    estimator.train(tiny_input, steps=1)
    some = list(estimator.predict(tiny_input, predict_keys=["classes"], num_samples=5))
    assert [set(example) for example in some] == [{"classes"}] * 5
    batches = list(estimator.predict(tiny_input, yield_single_examples=False))
    assert [batch["classes"].shape for batch in batches] == [(8,)] * 3
    with pytest.raises(ValueError, match="predict_keys has 'logits', but the model predicts classes, probab"):
        next(iter(estimator.predict(tiny_input, predict_keys="logits")))


def test_predictions_of_a_single_tensor(tiny: Tiny, tiny_input: InputFn) -> None:
    def model_fn(features: Any, mode: str) -> EstimatorSpec:
        return EstimatorSpec(mode, predictions=tf.reduce_sum(features, axis=1))

    features, _ = next(iter(tiny_input({}, ModeKeys.EVAL)))
    values = list(tiny(model_fn=model_fn, params={}).predict(tiny_input))
    assert values[:8] == pytest.approx(features.numpy().sum(axis=1), rel=1e-6)


def test_a_suspended_prediction_leaves_no_graph(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    estimator.train(tiny_input, steps=1)
    predictions = estimator.predict(tiny_input)
    next(predictions)
    assert tf.executing_eagerly()
    assert estimator.evaluate(tiny_input, steps=1)["global_step"] == 1
    assert len(list(predictions)) == 23


def test_tensors_instead_of_a_dataset(tiny: Tiny) -> None:
    def constant_input() -> tuple[Any, Any]:
        return tf.ones([8, 4]), tf.zeros([8], tf.int32)

    estimator = tiny()
    estimator.train(constant_input, steps=20)
    assert estimator.evaluate(constant_input, steps=2)["accuracy"] == 1.0


def test_only_the_chief_runs_on_the_cpu(
    tiny: Tiny, tiny_input: InputFn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")
    for name, value in {
        "CSRUN_RANK": "2",
        "CSRUN_NUM_TASKS": "3",
        "CSRUN_JOB_ID": "job",
        "CSRUN_JOB_TOKEN": "token",
    }.items():
        monkeypatch.setenv(name, value)
    estimator = tiny()
    estimator.train(tiny_input, steps=2)
    assert estimator.evaluate(tiny_input) == {}
    assert list(estimator.predict(tiny_input)) == []
    assert not Path(estimator.model_dir).exists()
    assert sum("nothing to do for worker 1" in r.getMessage() for r in caplog.records) == 3


def test_the_chief_reads_all_shards_when_it_runs_without_workers(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def sharding_input() -> tuple[Any, Any]:
        import os

        seen.append(os.environ["TF_CONFIG"])
        return tf.ones([8, 4]), tf.zeros([8], tf.int32)

    for name, value in {
        "CSRUN_RANK": "0",
        "CSRUN_NUM_TASKS": "3",
        "CSRUN_JOB_ID": "job",
        "CSRUN_JOB_TOKEN": "token",
    }.items():
        monkeypatch.setenv(name, value)
    tiny().train(sharding_input, steps=1)
    # Once for the Input Function Report, once for the training.
    for config in map(yaml.safe_load, seen):
        assert len(config["cluster"]["worker"]) == 1
        assert config["task"] == {"type": "chief", "index": 0}


def test_one_checkpoint_of_every_n_hours_is_kept(tiny: Tiny, tiny_input: InputFn) -> None:
    """An hour of the test is shorter than two steps."""
    estimator = tiny(save_checkpoints_steps=1, keep_checkpoint_max=1, keep_checkpoint_every_n_hours=1e-7)
    estimator.train(tiny_input, steps=6)
    files = {path.stem for path in Path(estimator.model_dir).glob("model.ckpt-*.index")}
    assert len(files) > 1
    assert steps_in(estimator.model_dir) == [6]
    with pytest.raises(CallError, match="keep_checkpoint_every_n_hours must be > 0 or None, got 0"):
        tiny(keep_checkpoint_every_n_hours=0)


def test_settings_of_the_system_are_named_where_they_have_no_effect(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "estimator")
    tiny(precision="mixed_float16", num_replicas="auto").train(tiny_input, steps=1)
    named = [r.getMessage() for r in caplog.records if "without effect on this CPU" in r.getMessage()]
    assert named == [
        "precision=mixed_float16, num_replicas=auto: settings of the CS system, without effect on this CPU"
    ]


def test_a_training_does_not_wait_for_what_its_input_prepares(tiny: Tiny) -> None:
    trained = threading.Event()

    def slow(number: np.ndarray) -> np.ndarray:
        if number > 1:  # batches that nobody will need
            trained.wait(20.0)
        return np.ones([8, 4], np.float32)

    def input_fn() -> Any:
        batches = tf.data.Dataset.range(100).map(lambda n: tf.numpy_function(slow, [n], tf.float32))
        labels = tf.data.Dataset.from_tensors(tf.zeros([8], tf.int32)).repeat()
        shaped = batches.map(lambda features: tf.ensure_shape(features, [8, 4]))
        return tf.data.Dataset.zip((shaped, labels)).prefetch(8)

    began_s = time.monotonic()
    tiny().train(input_fn, steps=1)
    took_s = time.monotonic() - began_s
    trained.set()
    assert took_s < 15.0


v1 = tf.compat.v1

Loss = Callable[[Any, Any], Any]


def labels_of_minus_one(features: Any, labels: Any) -> Any:
    logits = tf.matmul(features, v1.get_variable("weights", [4, 3]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels - 1, logits=logits)


def labels_beyond(features: Any, labels: Any) -> Any:
    logits = tf.matmul(features, v1.get_variable("weights", [4, 3]))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels + 3, logits=logits)


def channels_first(features: Any, labels: Any) -> Any:
    images = tf.cast(tf.reshape(features, [-1, 1, 2, 2]) * v1.get_variable("scale", []), tf.float16)
    return tf.cast(tf.nn.avg_pool2d(images, 2, 2, "VALID", "NCHW"), tf.float32)


def no_kernel(features: Any, labels: Any) -> Any:
    matrices = tf.cast(tf.reshape(features, [-1, 2, 2]) * v1.get_variable("scale", []), tf.float16)
    return tf.cast(tf.linalg.triangular_solve(matrices, matrices), tf.float32)


def input_fn() -> tf.data.Dataset:
    features = np.ones((8, 4), np.float32)
    return tf.data.Dataset.from_tensor_slices((features, np.arange(8) % 3)).repeat().batch(4)


def estimator_of(loss_of: Loss, folder: Path) -> CerebrasEstimator:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        values = loss_of(features, labels if labels is not None else tf.constant([0, 1, 2, 0]))
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions=values)
        loss = tf.reduce_mean(values)
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    return CerebrasEstimator(model_fn, folder, use_cs=False)


def train(estimator: CerebrasEstimator) -> None:
    estimator.train(input_fn, steps=1)


def evaluate(estimator: CerebrasEstimator) -> None:
    estimator.evaluate(input_fn, steps=1)


def predict(estimator: CerebrasEstimator) -> None:
    list(estimator.predict(input_fn, num_samples=4))


@pytest.mark.parametrize("run", [train, evaluate, predict])
@pytest.mark.parametrize(
    ("loss_of", "limit"),
    [
        (labels_of_minus_one, r"has no labels of -1: .* give them the label 0 and a weight of 0"),
        (channels_first, r"has no AvgPool(Grad)? of float16 with channels first: .* channels last"),
        (no_kernel, r"has no MatrixTriangularSolve of float16: .* cast to float32 around it"),
    ],
)
def test_a_limit_is_reported_with_the_line(
    tmp_path: Path, run: Callable[[CerebrasEstimator], None], loss_of: Loss, limit: str
) -> None:
    with pytest.raises(CpuLimitError, match=limit) as caught:
        run(estimator_of(loss_of, tmp_path))
    lines, first = getsourcelines(loss_of)
    assert f"line {__file__}:{first + len(lines) - 1} " in str(caught.value)


def test_other_errors_of_the_graph_are_as_they_were(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label value of [345]"):
        train(estimator_of(labels_beyond, tmp_path))

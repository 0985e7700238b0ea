"""The same calls as in test_cpu.py, on a simulated CS system."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from estimator import CerebrasEstimator, EstimatorSpec
from estimator.errors import CallError
from tests.programs.tf.events import read_scalars
from tests.systems import RunningSystem

Tiny = Callable[..., CerebrasEstimator]
InputFn = Callable[..., Any]


@pytest.fixture
def cs_ip(system: RunningSystem) -> str:
    return system.address


def test_train_evaluate_predict(tiny: Tiny, tiny_input: InputFn, cs_ip: str) -> None:
    estimator = tiny(cs_ip=cs_ip, save_summary_steps=20)
    assert estimator.train(tiny_input, steps=60) is estimator
    on_cpu = estimator.evaluate(tiny_input)
    on_cs = estimator.evaluate(tiny_input, steps=3, use_cs=True)
    assert on_cs["global_step"] == 60
    assert on_cs == pytest.approx(on_cpu, rel=1e-5)
    assert on_cpu["accuracy"] > 0.8
    expected = list(estimator.predict(tiny_input))
    examples = list(estimator.predict(tiny_input, use_cs=True, num_samples=20))
    assert [example["classes"] for example in examples] == [e["classes"] for e in expected[:20]]
    assert examples[3]["probabilities"] == pytest.approx(expected[3]["probabilities"], rel=1e-5)


def test_a_prediction_that_fails_frees_the_system(tiny: Tiny, tiny_input: InputFn, cs_ip: str) -> None:
    """Also while somebody keeps the error, whose traceback holds all that was open."""
    estimator = tiny(cs_ip=cs_ip)
    with pytest.raises(CallError, match="the model predicts classes, probabilities") as kept:
        next(estimator.predict(tiny_input, predict_keys="nothing", use_cs=True))
    assert len(list(estimator.predict(tiny_input, num_samples=3, use_cs=True))) == 3
    assert kept.value.exit_code == 2


def test_files_of_a_training(tiny: Tiny, tiny_input: InputFn, cs_ip: str) -> None:
    estimator = tiny(cs_ip=cs_ip, save_summary_steps=10, save_checkpoints_steps=15)
    estimator.train(tiny_input, max_steps=40)
    model_dir = Path(estimator.model_dir)
    scalars = read_scalars(model_dir)
    assert sorted(scalars["loss"]) == [10, 20, 30, 40]
    assert scalars["doubled_loss"][30] == pytest.approx(2 * scalars["loss"][30])
    assert yaml.safe_load((model_dir / "params.yaml").read_text()) == {"learning_rate": 0.05}
    assert json.loads((model_dir / "performance.json").read_text())["total_samples"] == 40 * 8
    steps = {path.name.split("-")[1].split(".")[0] for path in model_dir.glob("model.ckpt-*.index")}
    assert steps == {"0", "15", "30", "40"}


def test_both_kinds_of_runs_continue_each_other(tiny: Tiny, tiny_input: InputFn, cs_ip: str) -> None:
    tiny(cs_ip=cs_ip).train(tiny_input, steps=5)
    tiny(cs_ip=cs_ip).train(tiny_input, steps=5, use_cs=False)
    tiny(cs_ip=cs_ip).train(tiny_input, steps=5)
    assert tiny().get_variable_value("global_step") == 15
    before = tiny().get_variable_value("dense/kernel")
    tiny(cs_ip=cs_ip).train(tiny_input, max_steps=15)
    assert np.array_equal(before, tiny().get_variable_value("dense/kernel"))


def test_compile_shows_an_empty_tf_config_to_the_input(
    tiny: Tiny, tiny_input: InputFn, cs_ip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    seen: list[str | None] = []

    def watching(params: Any, mode: str) -> Any:
        seen.append(os.environ.get("TF_CONFIG"))
        return tiny_input(params, mode)

    cluster = {"chief": ["a:1"], "worker": ["a:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    estimator = tiny(cs_ip=cs_ip)
    estimator.compile(watching)
    # The Input Function Report asks for what two workers would read; all other calls are of no job.
    of_report = [json.loads(text) for text in seen if text is not None]
    assert [config["task"]["index"] for config in of_report] == [0, 1]
    assert all(len(config["cluster"]["worker"]) == 2 for config in of_report)
    assert seen[0] is None
    assert seen[-1] is None
    model_dir = Path(estimator.model_dir)
    assert [path.name for path in model_dir.glob("cs_*/compile_report.txt")] == ["compile_report.txt"]
    assert (model_dir / "params.yaml").is_file()
    monkeypatch.delenv("TF_CONFIG")
    estimator.train(watching, steps=2)
    assert len(list(model_dir.glob("cs_*"))) == 1
    assert json.loads(seen[-1] or "{}")["cluster"]["worker"]


def test_an_error_of_the_input_is_the_error_of_the_run(tiny: Tiny, tiny_input: InputFn, cs_ip: str) -> None:
    def failing(params: Any, mode: str) -> Any:
        def check(features: Any, labels: Any) -> Any:
            with tf.control_dependencies([tf.debugging.assert_less(labels, 2, message="label too large")]):
                return tf.identity(features), labels

        return tiny_input(params, mode).map(check)

    with pytest.raises(tf.errors.InvalidArgumentError, match="label too large"):
        tiny(cs_ip=cs_ip).train(failing, steps=5)
    # The system is free again.
    tiny(cs_ip=cs_ip).train(tiny_input, steps=2)


def test_single_tensor_predictions_and_metrics_of_a_host_call(
    tiny: Tiny, tiny_input: InputFn, cs_ip: str
) -> None:
    from estimator import CSEstimatorSpec, ModeKeys

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        scale = tf.compat.v1.get_variable("scale", [], initializer=tf.compat.v1.ones_initializer())
        sums = scale * tf.reduce_sum(features, axis=1)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions=sums)
        host_call = (lambda x: {"mean_sum": tf.compat.v1.metrics.mean(x)}, [sums])
        return CSEstimatorSpec(mode, loss=tf.reduce_mean(sums), host_call=host_call)

    estimator = tiny(cs_ip=cs_ip, model_fn=model_fn, params={})
    on_cs = list(estimator.predict(tiny_input, use_cs=True))
    assert on_cs == pytest.approx(list(estimator.predict(tiny_input)), rel=1e-5)
    metrics = estimator.evaluate(tiny_input, steps=3, use_cs=True)
    assert metrics["mean_sum"] == pytest.approx(float(np.mean(on_cs)), rel=1e-5)


def test_metrics_that_tensorflow_counts_in_float64(tiny: Tiny, tiny_input: InputFn, cs_ip: str) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        guesses = tf.cast(tf.reduce_sum(features, axis=1) > 2, tf.int32)
        metrics = tf.compat.v1.metrics
        return EstimatorSpec(
            mode,
            loss=tf.reduce_mean(features),
            eval_metric_ops={
                "mean_iou": metrics.mean_iou(labels, guesses, 3),
                "weighted": metrics.mean_iou(labels, guesses, 3, tf.cast(labels, tf.float32)),
                "double": metrics.mean(tf.cast(features, tf.float64)),
                "count": metrics.false_negatives(labels > 0, guesses > 0),
            },
        )

    estimator = tiny(cs_ip=cs_ip, model_fn=model_fn, params={})
    on_cpu = estimator.evaluate(tiny_input, steps=3)
    assert on_cpu["count"] > 0
    assert estimator.evaluate(tiny_input, steps=3, use_cs=True) == pytest.approx(on_cpu, rel=1e-5)


def test_a_host_call_in_python_is_computed_on_the_host(
    tiny: Tiny, tiny_input: InputFn, cs_ip: str, caplog: pytest.LogCaptureFixture
) -> None:
    from estimator import CSEstimatorSpec

    def spread(values: np.ndarray) -> np.ndarray:
        return np.float32(np.ptp(values))

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        scale = tf.compat.v1.get_variable("scale", [], initializer=tf.compat.v1.ones_initializer())
        sums = scale * tf.reduce_sum(features, axis=1)

        def metrics(values: Any) -> dict[str, Any]:
            found = tf.compat.v1.metrics.mean(tf.numpy_function(spread, [values], tf.float32))
            return {"spread": found, "mean": tf.compat.v1.metrics.mean(values)}

        return CSEstimatorSpec(mode, loss=tf.reduce_mean(sums), host_call=(metrics, [sums]))

    estimator = tiny(cs_ip=cs_ip, model_fn=model_fn, params={})
    on_cpu = estimator.evaluate(tiny_input, steps=3)
    with caplog.at_level("INFO", "estimator"):
        on_cs = estimator.evaluate(tiny_input, steps=3, use_cs=True)
    assert "on this host: the CS system does not support PyFunc" in caplog.text
    assert on_cs.keys() == on_cpu.keys()
    for name, value in on_cpu.items():
        assert on_cs[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("name", ["-a[1]*b?", "two words\nand ünï✓ \\'\"%s{x}$"])
def test_odd_names_of_model_dir(
    tiny: Tiny,
    tiny_input: InputFn,
    cs_ip: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for steps, on_cs in ((2, True), (4, True), (5, False)):
        tiny(model_dir=name, cs_ip=cs_ip, keep_checkpoint_max=2).train(
            tiny_input, max_steps=steps, use_cs=on_cs
        )
    estimator = tiny(model_dir=name, cs_ip=cs_ip)
    assert estimator.evaluate(tiny_input)["global_step"] == 5
    newest = estimator.latest_checkpoint()
    assert estimator.evaluate(tiny_input, steps=1, checkpoint_path=newest, use_cs=True)
    assert len(list(estimator.predict(tiny_input))) == 24
    warm = tiny(model_dir=f"{name}2", cs_ip=cs_ip, warm_start_from=name)
    warm.train(tiny_input, max_steps=1)
    model_dir = tmp_path / name
    left = sorted(path.name for path in model_dir.iterdir() if path.suffix == ".index")
    assert left == ["model.ckpt-4.index", "model.ckpt-5.index"]
    assert not list(model_dir.glob(".saving-*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, f"{name}2"])

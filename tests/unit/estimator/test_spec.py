"""Specs, and the arguments of model functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSEstimatorSpec, CSRunConfig, EstimatorSpec, ModeKeys
from estimator.errors import ModelFnError


def test_a_mode_without_its_members_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'train' needs train_op"):
        EstimatorSpec(ModeKeys.TRAIN, loss=tf.constant(1.0))
    with pytest.raises(ValueError, match="mode 'eval' needs loss"):
        EstimatorSpec(ModeKeys.EVAL)
    with pytest.raises(ValueError, match="mode 'infer' needs predictions"):
        EstimatorSpec(ModeKeys.PREDICT)
    with pytest.raises(ValueError, match="mode 'predict', expected one of train, eval, infer"):
        EstimatorSpec("predict")


def test_loss_must_be_scalar() -> None:
    with tf.Graph().as_default():
        assert EstimatorSpec(ModeKeys.EVAL, loss=tf.ones([1])).loss.shape == []
        with pytest.raises(ModelFnError, match=r"got shape \(8,\) of 'losses:0'.*reduce_mean"):
            EstimatorSpec(ModeKeys.EVAL, loss=tf.ones([8], name="losses"))


def test_metrics_must_be_pairs() -> None:
    with pytest.raises(
        ModelFnError, match=r"eval_metric_ops\['accuracy'\] must be \(value tensor, update op\)"
    ):
        EstimatorSpec(ModeKeys.EVAL, loss=tf.constant(1.0), eval_metric_ops={"accuracy": 0.5})  # type: ignore[dict-item]


def test_cs_spec_can_be_subclassed_as_clients_do() -> None:
    class ClientSpec(CSEstimatorSpec):
        def __new__(cls, mode: str, host_call: Any = None, **fields: Any) -> CSEstimatorSpec:
            return super().__new__(cls, mode, host_call=host_call, **fields)

    spec = ClientSpec(ModeKeys.EVAL, loss=tf.constant(2.0))
    assert isinstance(spec, (ClientSpec, EstimatorSpec))
    assert float(spec.loss) == 2.0
    with pytest.raises(TypeError, match="'eval_metrics'; did you mean 'eval_metric_ops'"):
        CSEstimatorSpec(ModeKeys.EVAL, eval_metrics={})
    with pytest.raises(ValueError, match="host_call and eval_metric_ops"):
        CSEstimatorSpec(
            ModeKeys.EVAL,
            loss=tf.constant(2.0),
            host_call=(dict, []),
            eval_metric_ops={"a": (tf.constant(1.0), tf.constant(1.0))},
        )


def test_host_call_becomes_metrics(tmp_path: Any) -> None:
    def model_fn(features: Any, mode: str) -> EstimatorSpec:
        loss = tf.reduce_mean(features)
        host_call = (lambda x: {"largest": tf.compat.v1.metrics.mean(tf.reduce_max(x))}, [features])
        return CSEstimatorSpec(mode, loss=loss, host_call=host_call)

    estimator = CerebrasEstimator(model_fn, tmp_path, config=CSRunConfig())
    metrics = estimator.evaluate(
        lambda: tf.data.Dataset.from_tensor_slices(np.arange(8, dtype=np.float32)).batch(4)
    )
    assert metrics == {"largest": 5.0, "loss": 3.5, "global_step": 0}


@pytest.mark.parametrize(
    ("model_fn", "params", "message"),
    [
        (None, None, "model_fn must be a function, got None"),
        (lambda labels, mode: None, None, "must have the argument features"),
        (lambda features, mode: None, {"a": 1}, "has no argument params"),
        (lambda features, batch: None, None, "has the argument 'batch', but is called with features, labels"),
    ],
)
def test_model_fn_arguments(model_fn: Any, params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CerebrasEstimator(model_fn, "unused", params=params)


def test_a_result_that_is_no_spec(tmp_path: Any) -> None:
    estimator = CerebrasEstimator(lambda features: {"loss": 1.0}, tmp_path)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match=r"must return an EstimatorSpec or CSEstimatorSpec, got \{'loss'"):
        estimator.evaluate(lambda: tf.ones([2]), steps=1)


def test_labels_without_an_argument_for_them(tmp_path: Any) -> None:
    def model_fn(features: Any, mode: str) -> EstimatorSpec:
        return EstimatorSpec(mode, loss=tf.reduce_sum(features))

    estimator = CerebrasEstimator(model_fn, tmp_path)
    with pytest.raises(ValueError, match="has no argument labels"):
        estimator.evaluate(lambda: (tf.ones([2]), tf.ones([2])), steps=1)

"""Dynamic loss scales in the front end."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.util import deprecation

from cgc.cirh.interface import step_interface
from cgc.cirh.text import parse_module, print_module
from cs_runtime.step_program import count_skipped_steps
from estimator import loss_scale_optimizer
from estimator.calling import check_advances
from estimator.errors import ModelFnError

v1 = tf.compat.v1

STEP = """builtin.module {{
  func.func @graph(
    %step: tensor<i64> {{tf.resource_name = "state.global_step", tf.aliasing_output = 0 : i64}},
    %finite: tensor<i1> {{cs.input_name = "input_0"}}
  ) -> (tensor<i64>, tensor<i64> {{cs.output_name = "output_loss"}}) attributes {{cs.mode = "train"}} {{
    %one = cirh.Const dense<1> : tensor<i64>
    %next = cirh.Add %step, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
    %kept = cirh.Select %finite, %next, %step : (tensor<i1>, tensor<i64>, tensor<i64>) -> tensor<i64>
    func.return {result}, %step : tensor<i64>, tensor<i64>
  }}
}}"""


def test_a_step_that_may_be_skipped_counts() -> None:
    module = parse_module(STEP.format(result="%kept"))
    interface = step_interface(module)
    count_skipped_steps(module)
    assert "func.return %kept" not in print_module(module)
    assert step_interface(module) == interface


def test_a_step_that_always_counts_stays_as_it_is() -> None:
    module = parse_module(STEP.format(result="%next"))
    before = print_module(module)
    count_skipped_steps(module)
    assert print_module(module) == before


def train_op(loss_of: Any, scale: Any, step: Any) -> Any:
    weights = v1.get_variable("weights", [2, 2])
    optimizer = loss_scale_optimizer(v1.train.GradientDescentOptimizer(0.1), scale)
    return optimizer.minimize(loss_of(weights), step)


@pytest.mark.parametrize("scale", ["dynamic", 8.0])
def test_the_global_step_is_found_in_a_branch(scale: Any) -> None:
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        other = v1.get_variable("other", [], tf.int64)
        op = train_op(tf.reduce_sum, scale, step)
        check_advances(op, step)
        with pytest.raises(ModelFnError, match="does not advance"):
            check_advances(op, other)


def test_scaling_the_loss_prints_no_deprecation(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deprecation, "_PRINTED_WARNING", {})  # each is reported once per process
    with caplog.at_level("WARNING", "tensorflow"), tf.Graph().as_default():
        loss_scale_optimizer(v1.train.GradientDescentOptimizer(0.1))
        loss_scale_optimizer(v1.train.GradientDescentOptimizer(0.1), 128.0)
    assert not caplog.records

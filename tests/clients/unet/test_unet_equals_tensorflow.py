"""U-Net on the CS system computes the values of a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# `make test` compares the U-Net of `public_style` with TensorFlow.
pytestmark = pytest.mark.soak

# Adam makes full steps of gradients that are nothing but rounding errors: after 20 steps TensorFlow itself
# differs by 3e-3 with and without oneDNN.
OPTIMIZER = {"optimizer_type": "momentum", "learning_rate": 0.02}


def test_twenty_steps_and_an_evaluation_equal_plain_tensorflow(train_both_ways: Callable[..., Any]) -> None:
    training = train_both_ways("unet", {"optimizer": OPTIMIZER}, 20)
    assert len(training.on_system) == 20
    np.testing.assert_allclose(training.on_system, training.plain, rtol=1e-4)
    assert training.plain[-1] < 0.5 * training.plain[0]

    moving = [name for name in training.plain_variables if "/moving_" in name]
    assert len(moving) == 2 * 10
    for name in moving:
        got = training.estimator.get_variable_value(name)
        np.testing.assert_allclose(got, training.plain_variables[name], rtol=1e-4, atol=1e-5, err_msg=name)

    on_system, on_cpu = (
        training.estimator.evaluate(training.functions.eval_input_fn, steps=4, use_cs=use_cs)
        for use_cs in (True, False)
    )
    assert on_system.keys() == on_cpu.keys() == {"accuracy", "dice", "mean_iou", "loss", "global_step"}
    for name, value in on_cpu.items():
        assert on_system[name] == pytest.approx(value, rel=1e-4), name

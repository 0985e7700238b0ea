"""BERT on the CS system computes the values of a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

MODEL = {"num_hidden_layers": 1, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
OPTIMIZER = {
    "max_gradient_norm": 0.5,
    "learning_rate": [
        {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.003, "steps": 6},
        {"scheduler": "Linear", "initial_learning_rate": 0.003, "end_learning_rate": 0.0, "steps": 14},
    ],
}


@pytest.mark.parametrize(
    "file",
    [
        "configs/params_bert_tiny.yaml",
        pytest.param("configs/params_bert_tiny_squad.yaml", marks=pytest.mark.soak),
    ],
)
def test_twenty_steps_equal_a_plain_session(file: str, train_both_ways: Callable[..., Any]) -> None:
    training = train_both_ways("bert", {"model": MODEL, "optimizer": OPTIMIZER}, 20, file)
    assert len(training.on_system) == 20
    np.testing.assert_allclose(training.on_system, training.plain, rtol=1e-4)
    assert np.mean(training.plain[-3:]) < 0.95 * training.plain[0]

"""GPT-2 on the CS system computes the values of a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# `make test` compares GPT-2 in micro-batches with TensorFlow.
pytestmark = pytest.mark.soak

MODEL = {
    "num_hidden_layers": 1,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "embedding_dropout_rate": 0.0,
}
OPTIMIZER = {
    "max_gradient_norm": 0.5,
    "learning_rate": [
        {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.003, "steps": 6},
        {"scheduler": "Cosine", "initial_learning_rate": 0.003, "end_learning_rate": 0.0, "steps": 14},
    ],
}


def test_twenty_steps_equal_a_plain_session(train_both_ways: Callable[..., Any]) -> None:
    training = train_both_ways("gpt2", {"model": MODEL, "optimizer": OPTIMIZER}, 20)
    assert len(training.on_system) == 20
    np.testing.assert_allclose(training.on_system, training.plain, rtol=1e-4)
    assert np.mean(training.plain[-3:]) < 0.95 * training.plain[0]

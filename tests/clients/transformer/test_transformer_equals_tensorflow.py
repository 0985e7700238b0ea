"""The Transformer on the CS system computes the values of a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

# `make test` compares the T5 of `public_style` with TensorFlow.
pytestmark = pytest.mark.soak

MODEL = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "dropout_rate": 0.0}
OPTIMIZER = {
    "max_gradient_norm": 0.5,
    "learning_rate": [
        {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.003, "steps": 6},
        {"scheduler": "InverseSquareRoot", "initial_learning_rate": 0.003},
    ],
}


def test_twenty_steps_equal_a_plain_session(train_both_ways: Callable[..., Any]) -> None:
    training = train_both_ways("transformer", {"model": MODEL, "optimizer": OPTIMIZER}, 20)
    assert len(training.on_system) == 20
    np.testing.assert_allclose(training.on_system, training.plain, rtol=1e-4)
    assert np.mean(training.plain[-3:]) < 0.95 * training.plain[0]

"""Example models on the CS system compute the values of a plain TensorFlow session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

WARM_UP = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.003, "steps": 6}
LINEAR = {"scheduler": "Linear", "initial_learning_rate": 0.003, "end_learning_rate": 0.0, "steps": 14}
COSINE = {**LINEAR, "scheduler": "Cosine"}
INVERSE_SQUARE_ROOT = {"scheduler": "InverseSquareRoot", "initial_learning_rate": 0.003}

DECODER = {
    "num_hidden_layers": 1,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "embedding_dropout_rate": 0.0,
}
ENCODER = {"num_hidden_layers": 1, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
ENCODER_DECODER = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "dropout_rate": 0.0}

# Adam makes full steps of gradients that are only rounding errors: after 20 steps TensorFlow itself differs
# by 3e-3 with and without oneDNN.
MOMENTUM = {"optimizer_type": "momentum", "learning_rate": 0.02}


@pytest.mark.parametrize(
    ("name", "model", "schedule", "file"),
    [
        ("bert", ENCODER, LINEAR, "configs/params_bert_tiny.yaml"),
        pytest.param("bert", ENCODER, LINEAR, "configs/params_bert_tiny_squad.yaml", marks=pytest.mark.soak),
        # `make test` compares GPT-2 in micro-batches, and the T5 of `public_style`, with TensorFlow.
        pytest.param("gpt2", DECODER, COSINE, None, marks=pytest.mark.soak),
        pytest.param("transformer", ENCODER_DECODER, INVERSE_SQUARE_ROOT, None, marks=pytest.mark.soak),
    ],
)
def test_twenty_steps_of_a_text_model_equal_a_plain_session(
    name: str,
    model: dict[str, Any],
    schedule: dict[str, Any],
    file: str | None,
    train_both_ways: Callable[..., Any],
) -> None:
    optimizer = {"max_gradient_norm": 0.5, "learning_rate": [WARM_UP, schedule]}
    training = train_both_ways(name, {"model": model, "optimizer": optimizer}, 20, file)
    assert len(training.on_system) == 20
    np.testing.assert_allclose(training.on_system, training.plain, rtol=1e-4)
    assert np.mean(training.plain[-3:]) < 0.95 * training.plain[0]


@pytest.mark.parametrize(
    ("name", "changes", "norms", "metrics"),
    [
        ("resnet", {}, 9, {"accuracy", "top_5_accuracy"}),
        # `make test` compares the U-Net of `public_style` with TensorFlow.
        pytest.param("unet", {"optimizer": MOMENTUM}, 10, {"dice", "mean_iou"}, marks=pytest.mark.soak),
    ],
)
def test_twenty_steps_and_an_evaluation_of_an_image_model_equal_plain_tensorflow(
    name: str,
    changes: dict[str, Any],
    norms: int,
    metrics: set[str],
    train_both_ways: Callable[..., Any],
) -> None:
    training = train_both_ways(name, changes, 20)
    assert len(training.on_system) == 20
    np.testing.assert_allclose(training.on_system, training.plain, rtol=1e-4)
    assert training.plain[-1] < 0.5 * training.plain[0]

    moving = [variable for variable in training.plain_variables if "/moving_" in variable]
    assert len(moving) == 2 * norms
    for variable in moving:
        value, expected = training.estimator.get_variable_value(variable), training.plain_variables[variable]
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=variable)

    on_system, on_cpu = (
        training.estimator.evaluate(training.functions.eval_input_fn, steps=4, use_cs=use_cs)
        for use_cs in (True, False)
    )
    assert on_system.keys() == on_cpu.keys() == {*metrics, "loss", "global_step"}
    for metric, value in on_cpu.items():
        assert on_system[metric] == pytest.approx(value, rel=1e-4), metric

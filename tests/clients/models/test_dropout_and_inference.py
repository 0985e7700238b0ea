"""Language models with dropout: trained, continued, evaluated and used for predictions on the CS system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimator import CerebrasEstimator, CSRunConfig
from tests.programs.tf.events import read_losses
from tests.systems import RunningSystem

SMALL = {"num_hidden_layers": 1}
SMALL_TRANSFORMER = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
STEPS = 6


def values(estimator: CerebrasEstimator) -> dict[str, np.ndarray]:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", SMALL),
        pytest.param("bert", SMALL, marks=pytest.mark.soak),
        pytest.param("transformer", SMALL_TRANSFORMER, marks=pytest.mark.soak),
    ],
)
def test_all_modes_with_dropout(
    name: str,
    changes: dict[str, Any],
    example: Callable[..., Any],
    system: RunningSystem,
    tmp_path: Path,
    plain_session: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with example(name) as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train"]))
        params["model"].update(changes)
        rates = [key for key, value in params["model"].items() if "dropout" in key and value]
        functions = program.functions()

        def estimator(folder: str) -> CerebrasEstimator:
            config = CSRunConfig(cs_ip=system.address, tf_random_seed=11, save_summary_steps=1)
            return CerebrasEstimator(
                functions.model_fn,
                tmp_path / folder,
                compile_dir=tmp_path / "artifacts",
                config=config,
                params=params,
            )

        whole = estimator("whole")
        whole.train(functions.train_input_fn, max_steps=STEPS)
        estimator("parts").train(functions.train_input_fn, max_steps=STEPS // 2)
        parts = estimator("parts")
        parts.train(functions.train_input_fn, steps=STEPS - STEPS // 2)
        losses = read_losses(tmp_path / "whole")
        assert len(losses) == STEPS
        assert read_losses(tmp_path / "parts") == losses
        expected = values(whole)
        for variable, value in values(parts).items():
            assert value.tobytes() == expected[variable].tobytes(), variable

        without = {**params, "model": {**params["model"], **dict.fromkeys(rates, 0.0)}}
        (first, *_), _ = plain_session(functions, without, 1)
        assert losses[1] == pytest.approx(first, rel=0.05)
        assert losses[1] != pytest.approx(first, rel=1e-4), f"{rates} change nothing"

        on_system, on_cpu = (
            whole.evaluate(functions.eval_input_fn, steps=2, use_cs=cs) for cs in (True, False)
        )
        assert on_system == pytest.approx(on_cpu, rel=1e-4)
        samples = params["eval_input"]["batch_size"] + 1
        predicted = [
            list(whole.predict(functions.eval_input_fn, num_samples=samples, use_cs=cs))
            for cs in (True, False)
        ]
        assert len(predicted[0]) == len(predicted[1]) == samples
        for ours, theirs in zip(*predicted, strict=True):
            for key, value in theirs.items():
                if value.dtype == np.float32:
                    np.testing.assert_allclose(ours[key], value, rtol=1e-4, atol=1e-6, err_msg=key)
                else:
                    np.testing.assert_array_equal(ours[key], value, err_msg=key)
        assert "was stopped" not in caplog.text

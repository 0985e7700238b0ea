"""Steps of Keras 3 and tf_keras models, imported and compiled, do what Keras does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# The first test of a version runs all programs of its group.
pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
KERAS_3, TF_KERAS = "keras 3", "tf_keras"

FAST = {
    KERAS_3: (
        "mlp_20_steps transformer_20_steps loss_scale_that_overflows train_step_of_ones_own "
        "dropout evaluation_and_prediction embedding_rmsprop"
    ),
    TF_KERAS: (
        "mlp_20_steps loss_scale_that_overflows optimizer_legacy_Adam evaluation_and_prediction "
        "layers_of_compat_v1"
    ),
}
_OPTIMIZERS = (
    "optimizer_rmsprop optimizer_adagrad optimizer_adadelta optimizer_adamax optimizer_nadam optimizer_ftrl "
    "optimizer_lion optimizer_amsgrad optimizer_moving_average optimizer_schedule"
)
_BOTH = f"{_OPTIMIZERS} recurrent two_inputs_weights_and_metrics layer_with_state functions_in_call"
SLOW = {
    KERAS_3: (
        f"{_BOTH} cnn_20_steps optimizer_lamb optimizer_muon optimizer_accumulation "
        "embedding_rmsprop_momentum embedding_adadelta embedding_adagrad embedding_adafactor"
    ),
    TF_KERAS: (
        f"{_BOTH} cnn_20_steps transformer_20_steps train_step_of_ones_own "
        "embedding_rmsprop embedding_adagrad embedding_adadelta embedding_adafactor "
        "optimizer_legacy_SGD optimizer_legacy_RMSprop "
        "optimizer_legacy_Adagrad optimizer_legacy_Adadelta optimizer_legacy_Adamax optimizer_legacy_Ftrl "
        "optimizer_legacy_amsgrad"
    ),
}
MIXED = "mlp_mixed_float16 cnn_mixed_float16 transformer_mixed_float16"

_cache: dict[tuple[str, str], dict[str, Any]] = {}


def results(version: str, names: str) -> dict[str, Any]:
    """Run programs in a separate process, because a process has one Keras."""
    if (version, names) not in _cache:
        legacy = "1" if version == TF_KERAS else "0"
        environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.programs.tf.keras_models", *names.split()]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        _cache[version, names] = json.loads(run.stdout)
    return _cache[version, names]


def assert_equal(found: dict[str, Any], loss_rtol: float, state_rtol: float) -> None:
    assert found["logs"].keys() == found["expected"].keys()
    for name, values in found["expected"].items():
        np.testing.assert_allclose(found["logs"][name], values, rtol=loss_rtol, atol=1e-6, err_msg=name)
    for name, values in found["expected_state"].items():
        scale = max(1e-2, np.abs(values).max())
        difference = np.abs(np.subtract(found["state"][name], values)).max()
        assert difference <= state_rtol * scale, f"{name} differs by {difference}, its scale is {scale}"


def cases(names: dict[str, str]) -> list[Any]:
    return [(version, name) for version, group in names.items() for name in group.split()]


def same_as_keras(names: dict[str, str]) -> list[Any]:
    apart = (
        "loss_scale_that_overflows",
        "dropout",
        "evaluation_and_prediction",
        "layers_of_compat_v1",
    )
    return [case for case in cases(names) if case[1] not in apart]


@pytest.mark.parametrize(("version", "name"), same_as_keras(FAST))
def test_logs_and_state_equal_those_of_keras(version: str, name: str) -> None:
    assert_equal(results(version, FAST[version])[name], loss_rtol=1e-4, state_rtol=1e-3)


@pytest.mark.soak
@pytest.mark.parametrize(("version", "name"), same_as_keras(SLOW))
def test_more_programs_equal_keras(version: str, name: str) -> None:
    assert_equal(results(version, SLOW[version])[name], loss_rtol=1e-4, state_rtol=1e-3)


@pytest.mark.soak
@pytest.mark.parametrize(("version", "name"), cases({KERAS_3: MIXED, TF_KERAS: MIXED}))
def test_mixed_precision_trains_as_in_keras(version: str, name: str) -> None:
    found = results(version, MIXED)[name]
    losses, expected = found["logs"]["loss"], found["expected"]["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-2)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("version", [KERAS_3, TF_KERAS])
def test_loss_scaling_skips_steps_that_overflow(version: str) -> None:
    found = results(version, FAST[version])["loss_scale_that_overflows"]
    assert_equal(found, loss_rtol=1e-2, state_rtol=1e-2)
    (scale,) = (v[0] for name, v in found["state"].items() if "scale" in name and "counter" not in name)
    assert scale < 2.0**24
    (iterations,) = (v[0] for name, v in found["state"].items() if "iter" in name)
    assert 0 < iterations < 12 if version == KERAS_3 else iterations == 12  # tf_keras counts what it skips
    assert found["state"]["state.global_step"] == [12]


@pytest.mark.parametrize("version", [KERAS_3, TF_KERAS])
def test_the_optimizer_counts_the_steps_where_it_takes_all(version: str) -> None:
    found = results(version, FAST[version])["mlp_20_steps"]
    assert found["state"]["state.global_step"] == [20]
    assert not [name for name in found["state"] if "iteration" in name]
    assert found["expected_state"]["state.global_step"] == [20]


@pytest.mark.parametrize("version", [KERAS_3, TF_KERAS])
def test_state_is_named_by_what_it_belongs_to(version: str) -> None:
    names = set(results(version, FAST[version])["mlp_20_steps"]["state"])
    assert {"state.metric.loss/total", "state.metric.accuracy/count", "state.global_step"} <= names
    model = [name for name in names if name.startswith("state.model.")]
    assert len(model) == 4
    assert all(name.endswith(("/kernel", "/bias")) for name in model)
    assert len([name for name in names if name.startswith("state.optimizer.")]) == 9


def test_seeds_of_layers_advance_as_in_keras() -> None:
    found = results(KERAS_3, FAST[KERAS_3])["dropout"]
    seeds = {name: v for name, v in found["expected_state"].items() if "seed" in name}
    assert len(seeds) == 3
    for name, value in seeds.items():
        assert found["state"][name] == value
    assert np.isfinite(found["logs"]["loss"]).all()


@pytest.mark.parametrize("version", [KERAS_3, TF_KERAS])
def test_evaluation_and_prediction(version: str) -> None:
    found = results(version, FAST[version])["evaluation_and_prediction"]
    assert found["logs"] == pytest.approx(found["expected"], rel=1e-5)
    np.testing.assert_allclose(found["predictions"], found["expected_predictions"], rtol=1e-4, atol=1e-6)
    assert not [name for name in found["state"]["eval"] if "optimizer" in name]
    assert all(name.startswith("state.model.") for name in found["state"]["infer"])


def test_layers_of_compat_v1_train_as_in_a_session() -> None:
    found = results(TF_KERAS, FAST[TF_KERAS])["layers_of_compat_v1"]
    np.testing.assert_allclose(found["logs"]["loss"], found["expected"]["loss"], rtol=1e-5)
    assert {"state.model.hidden/kernel", "state.optimizer.out/bias/Adam_1"} <= found["variables"].keys()

"""Schedules and train ops of the example programs against numpy, and imported against TensorFlow."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.interface import step_interface
from cgc.importers.tensorflow import import_step
from cgc.lowering.interpret import step_function

tf1 = tf.compat.v1

FIRST = {
    "dense/kernel": np.asarray([[1.0, -2.0], [0.5, 3.0]], np.float32),
    "dense/bias": np.float32([0.1, 0.2]),
}
INPUTS = np.asarray([[1.0, 2.0], [-1.0, 0.5], [0.0, 3.0]], np.float32)


@pytest.fixture(scope="module")
def common() -> Iterator[dict[str, ModuleType]]:
    """Modules of models/common/tf by name."""
    from importlib import import_module

    path = list(sys.path)
    sys.path.insert(0, str(Path(__file__).parents[3]))
    try:
        yield {name: import_module(f"models.common.tf.{name}") for name in ("optimizers", "params")}
    finally:
        sys.path[:] = path


def losses_of(scale: Any = 1.0) -> tuple[Any, Any]:
    """(placeholder [3, 2], a loss of it and of the two variables)."""
    inputs = tf1.placeholder(tf.float32, INPUTS.shape)
    variables = {
        name: tf1.get_variable(name, initializer=value, use_resource=True) for name, value in FIRST.items()
    }
    outputs = tf.matmul(inputs, variables["dense/kernel"]) + variables["dense/bias"]
    return inputs, tf.reduce_mean(tf.square(outputs)) * scale


def gradients_of(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = INPUTS @ state["dense/kernel"] + state["dense/bias"]
    factor = 2 * outputs / outputs.size
    return {"dense/kernel": INPUTS.T @ factor, "dense/bias": factor.sum(0)}


def train(common: dict[str, ModuleType], settings: dict[str, Any], steps: int) -> dict[str, np.ndarray]:
    """The variables after some steps in a session."""
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        inputs, loss = losses_of()
        train_op = common["optimizers"].minimize(loss, settings)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op, {inputs: INPUTS})
            found: dict[str, np.ndarray] = session.run({v.op.name: v for v in tf1.global_variables()})
            return found


def clipped(gradients: dict[str, np.ndarray], norm: float) -> dict[str, np.ndarray]:
    total = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    return {name: g * min(1.0, norm / total) for name, g in gradients.items()}


def adamw_in_numpy(rates: list[float], decay: float, norm: float) -> dict[str, np.ndarray]:
    state = {name: value.astype(np.float64) for name, value in FIRST.items()}
    means = {name: np.zeros_like(value) for name, value in state.items()}
    squares = {name: np.zeros_like(value) for name, value in state.items()}
    for step, rate in enumerate(rates, 1):
        for name, gradient in clipped(gradients_of(state), norm).items():
            if "bias" not in name:
                state[name] = state[name] * (1 - rate * decay)
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.99 * squares[name] + 0.01 * gradient**2
            corrected = rate * math.sqrt(1 - 0.99**step) / (1 - 0.9**step)
            state[name] = state[name] - corrected * means[name] / (np.sqrt(squares[name]) + 1e-6)
    return state


def test_adamw_with_clipping_and_a_schedule(common: dict[str, ModuleType]) -> None:
    settings = {
        "optimizer_type": "adamw",
        "beta2": 0.99,
        "epsilon": 1e-6,
        "weight_decay_rate": 0.5,
        "max_gradient_norm": 0.25,
        "learning_rate": [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "steps": 4}
        ],
    }
    got = train(common, settings, 6)
    expected = adamw_in_numpy([0.0, 0.025, 0.05, 0.075, 0.1, 0.1], decay=0.5, norm=0.25)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, err_msg=name)
    assert got["global_step"] == 6


def test_momentum_with_an_l2_term_and_a_loss_scale(common: dict[str, ModuleType]) -> None:
    settings = {
        "optimizer_type": "momentum",
        "momentum": 0.8,
        "learning_rate": 0.05,
        "weight_decay_rate": 0.1,
        "loss_scaling_factor": 1024.0,
    }
    got = train(common, settings, 3)
    state = {name: value.astype(np.float64) for name, value in FIRST.items()}
    speed = {name: np.zeros_like(value) for name, value in state.items()}
    for _ in range(3):
        for name, gradient in gradients_of(state).items():
            decay = 0.0 if "bias" in name else 0.1
            speed[name] = 0.8 * speed[name] + gradient + decay * state[name]
        state = {name: value - 0.05 * speed[name] for name, value in state.items()}
    for name, value in state.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, err_msg=name)


def test_a_step_that_overflows_changes_nothing_but_the_scale(common: dict[str, ModuleType]) -> None:
    """The same in a session and imported, where the branch is a select."""
    settings = {"optimizer_type": "adam", "learning_rate": 0.1, "loss_scaling_factor": "dynamic"}
    batches = [INPUTS, INPUTS * 1e30, INPUTS]
    with tf.Graph().as_default() as graph:
        step = tf1.train.create_global_step()
        inputs, loss = losses_of()
        train_op = common["optimizers"].minimize(loss, settings)
        imported = import_step(
            graph, inputs=[inputs], outputs={"loss": loss}, updates=[train_op], mode="train", seed=0
        )
        names = list(imported.variables.values())
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            variables = {v.op.name: v for v in tf1.global_variables()}
            states = [session.run(variables)]
            for batch in batches:
                session.run(train_op, {inputs: batch})
                states.append(session.run(variables))
        assert step.op.name in names
    one_step = jax.jit(step_function(imported.module))
    assert [imported.variables[spec.name] for spec in step_interface(imported.module).state] == names
    state: tuple[Any, ...] = tuple(states[0][name] for name in names)
    for batch, expected in zip(batches, states[1:], strict=True):
        state, _ = one_step(state, (batch,))
        for name, value in zip(names, state, strict=True):
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    after_good, after_overflow = states[1], states[2]
    np.testing.assert_array_equal(after_overflow["dense/kernel"], after_good["dense/kernel"])
    np.testing.assert_array_equal(after_overflow["dense/kernel/Adam"], after_good["dense/kernel/Adam"])
    assert (after_good["current_loss_scale"], after_overflow["current_loss_scale"]) == (2.0**15, 2.0**14)
    assert [int(s["global_step"]) for s in states] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ({"scheduler": "Constant"}, [4.0, 4.0, 4.0]),
        ({"scheduler": "Linear", "end_learning_rate": 2.0, "steps": 10}, [4.0, 3.0, 2.0]),
        ({"scheduler": "Cosine", "end_learning_rate": 2.0, "steps": 10}, [4.0, 3.0, 2.0]),
        ({"scheduler": "Exponential", "end_learning_rate": 1.0, "steps": 10}, [4.0, 2.0, 1.0]),
        ({"scheduler": "InverseSquareRoot"}, [4.0, 4.0 / math.sqrt(1.25), 4.0 / math.sqrt(2.0)]),
    ],
)
def test_schedules(common: dict[str, ModuleType], phase: dict[str, Any], expected: list[float]) -> None:
    """Behind a warm-up of 20 steps: at its begin, 5 and 20 steps later."""
    settings = [
        {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 4.0, "steps": 20},
        {"initial_learning_rate": 4.0, **phase},
    ]
    phases = [common["params"].Phase.model_validate(item) for item in settings]
    steps = (5, 20, 25, 40)
    got = [float(common["optimizers"].learning_rate(phases, tf.constant(step))) for step in steps]
    np.testing.assert_allclose(got, [1.0, *expected], rtol=1e-6)


def test_a_curve_without_an_end_is_refused(common: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match="Cosine needs end_learning_rate and steps"):
        common["params"].Phase.model_validate({"scheduler": "Cosine", "initial_learning_rate": 1.0})

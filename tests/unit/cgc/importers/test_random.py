"""Random operations: their distributions, and that a number depends only on seeds and step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from cgc.importers.tensorflow import import_step
from cgc.lowering.interpret import step_function

tf1 = tf.compat.v1

COUNT = 40_000
KEY = [3, 5]
NORMALS: dict[str, Callable[[], Any]] = {
    "random_normal": lambda: tf1.random_normal([COUNT], seed=1),
    "stateless_normal": lambda: tf.random.stateless_normal([COUNT], KEY),
}
TRUNCATED: dict[str, Callable[[], Any]] = {
    "truncated_normal": lambda: tf1.truncated_normal([COUNT], seed=2),
    "stateless_truncated_normal": lambda: tf.random.stateless_truncated_normal([COUNT], KEY),
}
WHOLE: dict[str, Callable[[], Any]] = {
    "random_int": lambda: tf1.random_uniform([COUNT], -2, 5, tf.int32, seed=3),
    "stateless_int": lambda: tf.random.stateless_uniform([COUNT], KEY, -2, 5, tf.int32),
}
CLASSES = {"multinomial": lambda: tf1.multinomial(tf.math.log([[0.1, 0.2, 0.7]]), COUNT, seed=4)}
BUILDERS = {**NORMALS, **TRUNCATED, **WHOLE, **CLASSES}


@pytest.fixture(scope="module")
def drawn() -> list[dict[str, np.ndarray]]:
    """Return the random numbers of three steps: step 0, step 1, and step 0 once more."""
    with tf.Graph().as_default() as graph:
        step = tf1.train.create_global_step()
        outputs = {name: build() for name, build in BUILDERS.items()}
        update = step.assign_add(1)
        imported = import_step(graph, inputs=[], outputs=outputs, updates=[update.op], mode="train", seed=0)
    function = jax.jit(step_function(imported.module))
    state = (np.asarray(0, np.int32),)
    after, first = function(state, ())
    _, second = function(after, ())
    _, again = function(state, ())
    return [dict(zip(outputs, map(np.asarray, values), strict=True)) for values in (first, second, again)]


@pytest.mark.parametrize("name", NORMALS)
def test_normal_numbers(drawn: list[dict[str, np.ndarray]], name: str) -> None:
    values = np.sort(drawn[0][name])
    assert abs(values.mean()) < 0.02
    assert values.std() == pytest.approx(1.0, rel=0.02)
    # Quantiles of the standard normal distribution.
    for part, quantile in ((0.0013499, -3.0), (0.1586553, -1.0), (0.5, 0.0), (0.9772499, 2.0)):
        assert np.mean(values < quantile) == pytest.approx(part, abs=0.005)


@pytest.mark.parametrize("name", TRUNCATED)
def test_truncated_normal_numbers(drawn: list[dict[str, np.ndarray]], name: str) -> None:
    values = drawn[0][name]
    assert np.abs(values).max() <= 2.0
    # Standard deviation of the normal distribution cut off at 2: 0.87963.
    assert values.std() == pytest.approx(0.87963, rel=0.02)
    assert np.mean(values < -1.0) == pytest.approx((0.1586553 - 0.0227501) / 0.9544997, abs=0.01)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(drawn: list[dict[str, np.ndarray]], name: str) -> None:
    values, counts = np.unique(drawn[0][name], return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2, 3, 4]
    np.testing.assert_allclose(counts / COUNT, 1 / 7, atol=0.01)


def test_classes(drawn: list[dict[str, np.ndarray]]) -> None:
    counts = np.bincount(drawn[0]["multinomial"][0], minlength=3)
    np.testing.assert_allclose(counts / COUNT, [0.1, 0.2, 0.7], atol=0.015)


@pytest.mark.parametrize("name", BUILDERS)
def test_numbers_depend_on_seeds_and_step(drawn: list[dict[str, np.ndarray]], name: str) -> None:
    first, second, again = (values[name] for values in drawn)
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, second) == name.startswith("stateless")

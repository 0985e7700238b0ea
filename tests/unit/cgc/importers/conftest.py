"""Runs a graph twice: in a plain TensorFlow session, and imported and compiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import pytest
import tensorflow as tf

from cgc.cirh.interface import step_interface
from cgc.cirh.module import verify_module
from cgc.importers.tensorflow import ImportedStep, import_step
from cgc.lowering.interpret import step_function

tf1 = tf.compat.v1


@dataclass(frozen=True)
class Trace:
    """Every output of every step, and the variables after the last."""

    outputs: list[dict[str, np.ndarray]]
    variables: dict[str, np.ndarray]

    def series(self, name: str) -> np.ndarray:
        return np.asarray([step[name] for step in self.outputs])


@dataclass(frozen=True)
class BothWays:
    session: Trace
    compiled: Trace
    imported: ImportedStep


def run_session(
    session: Any,
    inputs: Sequence[Any],
    outputs: Mapping[str, Any],
    updates: Sequence[Any],
    batches: Sequence[Sequence[np.ndarray]],
) -> Trace:
    found = [
        session.run([dict(outputs), list(updates)], dict(zip(inputs, batch, strict=True)))[0]
        for batch in batches
    ]
    variables = tf1.global_variables() + tf1.local_variables()
    return Trace(found, session.run({v.op.name: v for v in variables}))


def run_compiled(
    imported: ImportedStep, initial: Mapping[str, np.ndarray], batches: Sequence[Sequence[np.ndarray]]
) -> Trace:
    interface = step_interface(imported.module)
    step = jax.jit(step_function(imported.module))
    names = [imported.variables[spec.name] for spec in interface.state]
    state: tuple[Any, ...] = tuple(initial[name] for name in names)
    found = []
    for batch in batches:
        state, values = step(state, tuple(batch))
        found.append(
            {
                spec.name.removeprefix("output_"): np.asarray(value)
                for spec, value in zip(interface.outputs, values, strict=True)
            }
        )
    return Trace(found, dict(zip(names, map(np.asarray, state), strict=True)))


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    """An empty graph, which is the default one during the test; Keras counts its layers from the start."""
    tf.keras.utils.clear_session(free_memory=False)
    fresh = tf.Graph()
    with fresh.as_default():
        yield fresh


@pytest.fixture
def both_ways(graph: tf.Graph) -> Callable[..., BothWays]:
    """Runs the default graph from one set of initial variables on the same batches, both ways."""

    def run(
        inputs: Sequence[Any],
        outputs: Mapping[str, Any],
        updates: Sequence[Any],
        batches: Sequence[Sequence[np.ndarray]],
        mode: str = "train",
    ) -> BothWays:
        imported = import_step(graph, inputs=inputs, outputs=outputs, updates=updates, mode=mode, seed=7)
        verify_module(imported.module)
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            variables = tf1.global_variables() + tf1.local_variables()
            initial = session.run({v.op.name: v for v in variables})
            plain = run_session(session, inputs, outputs, updates, batches)
        return BothWays(plain, run_compiled(imported, initial, batches), imported)

    return run


@pytest.fixture
def compile_step() -> Callable[..., Trace]:
    """Run only an imported step: (imported, initial variables, batches) -> Trace."""
    return run_compiled


@pytest.fixture
def digits() -> Callable[[int, int], list[tuple[np.ndarray, np.ndarray]]]:
    """Batches of random 20-feature inputs with one of 5 classes that depends on them."""

    def make(count: int, size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(5)
        weights = rng.normal(size=(20, 5))
        batches = []
        for _ in range(count):
            x = rng.normal(size=(size, 20)).astype(np.float32)
            batches.append((x, (x @ weights).argmax(1).astype(np.int32)))
        return batches

    return make

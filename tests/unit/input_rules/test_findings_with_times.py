"""Findings that hang on the times of the stages, or on what is the same in every epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_rules.findings import Finding
from input_rules.pipeline import StageTime
from input_rules.rules import find
from input_rules.rules.context import Context
from input_rules.tf.graph import trace


def slices() -> Any:
    return tf.data.Dataset.from_tensor_slices(np.zeros((100, 4), np.float32))


def finish(dataset: Any) -> Any:
    return dataset.repeat().batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def test_calls_of_python_that_wait_do_so_side_by_side() -> None:
    def mapped(**settings: Any) -> Any:
        spoken = lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [4])  # noqa: E731
        return finish(slices().map(spoken, **settings))

    def of(cpu: float, wait: float, **settings: Any) -> dict[str, Finding]:
        pipeline = trace(lambda: mapped(**settings)).pipeline
        times = {"map": StageTime("map", cpu, wait)}
        return {one.id: one for one in find(pipeline, Context(times=times, cpus=4))}

    waiting = of(20.0, 980.0)
    assert "calls wait side by side" in waiting["python-function"].message
    assert waiting["python-function"].recommended.startswith("map(..., num_parallel_calls=CS_AUTOTUNE)")
    gain = waiting["parallel-calls-missing"].gain
    assert gain is not None
    assert gain.times == pytest.approx(4)
    assert "mostly waits" in waiting["parallel-calls-missing"].message
    parallel = of(20.0, 980.0, num_parallel_calls=tf.data.AUTOTUNE)
    assert "parallel-calls-missing" not in parallel
    assert "num_parallel_calls" not in parallel["python-function"].recommended
    computing = of(980.0, 20.0)
    assert "parallel-calls-missing" not in computing
    assert "computes one call at a time" in computing["python-function"].message
    unknown = {one.id: one for one in find(trace(mapped).pipeline, Context())}
    assert unknown["parallel-calls-missing"].severity == "info"
    # Nobody knows what the function does with another order of calls.
    assert unknown["parallel-calls-missing"].by_hand is not None


def test_a_cache_keeps_an_order_that_is_one_for_all_epochs() -> None:
    def cached(**settings: Any) -> Any:
        return finish(slices().shuffle(100, seed=1, **settings).map(tf.nn.relu).cache())

    def found(dataset: Any, **context: Any) -> set[str]:
        return {one.id for one in find(trace(lambda: dataset()).pipeline, Context(**context))}

    assert "cache-after-random" in found(cached)
    assert "cache-after-random" not in found(lambda: cached(reshuffle_each_iteration=False))
    timed = {"map": StageTime("map", 100.0, 0.0)}

    def same() -> Any:
        return finish(slices().shuffle(100, seed=1, reshuffle_each_iteration=False).map(tf.nn.relu))

    assert "cache-would-fit" in found(
        same, times={**timed, "batch": StageTime("batch", 1.0, 0.0)}, memory_bytes=1 << 30
    )

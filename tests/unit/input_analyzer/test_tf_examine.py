"""Common records of two workers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tensorflow as tf

from input_analyzer.measure.link import Order
from input_analyzer.tf import examine as of_graphs
from input_rules.input_export import InputProgram
from input_rules.tf.inspection import inspect


def of_generator(first: int, step: int, content: Callable[[int], int] = lambda k: k) -> Any:
    def generate() -> Iterator[int]:
        return map(content, range(first, 400, step))

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64)).batch(4)


def told() -> tuple[int, int]:
    """Return the environment of a worker: its index and their number."""
    index, workers = os.environ.get("WORKER", "0 1").split()
    return int(index), int(workers)


@contextmanager
def as_worker(workers: int, index: int) -> Iterator[None]:
    os.environ["WORKER"] = f"{index} {workers}"
    yield
    del os.environ["WORKER"]


def by_environment(workers: int, index: int) -> Any:
    def generate() -> Iterator[int]:
        yield from range(*told()[:1], 400, told()[1])

    return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int64)).batch(4)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # No graph shows what a generator reads: each worker its part, all of them the same, or as it happens.
        (lambda workers, index: of_generator(index, workers), True),
        (by_environment, True),
        (lambda workers, index: of_generator(0, 1), False),
        (lambda workers, index: of_generator(0, 1).unbatch().shuffle(50).batch(4), False),
        (lambda workers, index: of_generator(0, 1, lambda k: random.randrange(1000)), False),
        (lambda workers, index: of_generator(0, 1, random.SystemRandom().randrange), None),
        (lambda workers, index: of_generator(index, workers, lambda k: 7), None),
        (lambda workers, index: of_generator(0, 1).map(lambda x: 1 // (x - x)), None),
    ],
)
def test_records_show_what_python_reads(make: Callable[[int, int], Any], expected: bool | None) -> None:
    state = random.getstate()
    program = InputProgram(
        "tensorflow",
        make,
        lambda shard: make(shard.count, shard.index),
        lambda shard: iter(()),
        role=lambda shard: as_worker(shard.count, shard.index),
    )
    found = of_graphs.examine(
        program, Order(purpose="examine", socket="", stage_seconds=0.0), lambda doing: None
    )
    assert found.sharded is expected
    assert any("It is unknown" in note for note in found.notes) is (expected is None)
    assert random.getstate() == state
    assert inspect(make, workers=2).context.sharded is None

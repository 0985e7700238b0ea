"""A continued input gives the batches that an unbroken one would, and makes no more than it has to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator.input.position import skip_elements

Dataset = Any
DATA = tf.data.Dataset


plain = tf.autograph.experimental.do_not_convert
"""AutoGraph cannot tell functions of one line apart."""


def numbers() -> Dataset:
    return DATA.range(20)


def slices() -> Dataset:
    return DATA.from_tensor_slices((np.arange(20), np.arange(40.0).reshape(20, 2)))


def augmented(n: Any) -> Any:
    return n + tf.random.uniform([], 0, 100, tf.int64, seed=3)


def doubled(a: Any, b: Any) -> Any:
    return a, b * 2


def with_options(dataset: Dataset) -> Dataset:
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


READ_NOTHING: list[Callable[[], Dataset]] = [
    lambda: numbers(),
    lambda: numbers().batch(3, drop_remainder=True),
    lambda: (
        slices().map(plain(lambda a, b: (a + 1, b))).batch(3).map(plain(lambda a, b: (a, b * 2))).prefetch(2)
    ),
    lambda: (
        numbers().repeat().map(plain(lambda n: n * 2), num_parallel_calls=2).batch(7, drop_remainder=True)
    ),
    lambda: numbers().map(plain(lambda n: n + 5)).repeat(2).batch(3),
    lambda: numbers().batch(3).repeat(4).prefetch(1),
    lambda: slices().shard(3, 1).repeat().batch(2),
    lambda: with_options(DATA.zip((numbers().map(plain(lambda n: -n)), slices()))).repeat().batch(4),
    lambda: numbers().map(plain(lambda n: n * 3)).cache().repeat().batch(3).prefetch(1),
    lambda: numbers().padded_batch(3, []).map(plain(lambda n: tf.reduce_sum(n))),
    lambda: numbers().repeat(2),
]
READ: list[tuple[Callable[[], Dataset], str]] = [
    (
        lambda: slices().shuffle(20, seed=1).repeat().batch(3).map(plain(lambda a, b: b)),
        "a repetition of shuffle",
    ),
    (lambda: numbers().repeat().shuffle(8, seed=2).batch(3), "shuffle"),
    (
        lambda: numbers().map(augmented).repeat().batch(3),
        "a repetition of map with a function that has a state",
    ),
    (lambda: numbers().repeat(3).map(augmented).batch(3).prefetch(1), "map with a function that has a state"),
    (
        lambda: numbers().repeat(3).filter(plain(lambda n: n % 3 > 0)).batch(2).map(plain(lambda n: n)),
        "filter",
    ),
    (lambda: numbers().cache().batch(3), "cache"),
]


def elements(make: Callable[[], Dataset], skip: int, ours: bool) -> tuple[list[Any], str]:
    """Skip elements of a dataset by our way or TensorFlow's; return the rest, and why some were read."""
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(7)
        dataset, read = make(), ""
        if ours:
            found = skip_elements(dataset, skip)
            dataset, read = found.dataset, found.read
        else:
            dataset = dataset.skip(skip)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset.take(12))
        element = iterator.get_next()
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            values = []
            try:
                while True:
                    values.append([x.tolist() for x in tf.nest.flatten(session.run(element))])
            except tf.errors.OutOfRangeError:
                return values, read


@pytest.mark.parametrize("make", READ_NOTHING)
@pytest.mark.parametrize("skip", [5, 23])
def test_positions_that_are_reached_by_arithmetic(make: Callable[[], Dataset], skip: int) -> None:
    assert elements(make, skip, ours=True) == (elements(make, skip, ours=False)[0], "")


@pytest.mark.parametrize(("make", "why"), READ)
def test_positions_that_are_reached_by_reading(make: Callable[[], Dataset], why: str) -> None:
    assert elements(make, 4, ours=True) == (elements(make, 4, ours=False)[0], why)


def test_functions_are_not_called_for_what_is_left_out() -> None:
    """A function that fails on the first elements shows that they are not made."""

    def looked_up(n: Any) -> Any:
        return tf.gather(tf.range(11), n - 9)  # which is an error for numbers below 9

    with tf.Graph().as_default():
        dataset = numbers().map(plain(looked_up)).batch(3)
        iterator = tf.compat.v1.data.make_initializable_iterator(skip_elements(dataset, 3).dataset)
        element = iterator.get_next()
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            assert session.run(element).tolist() == [0, 1, 2]


def test_a_dataset_that_is_used_twice_is_skipped_at_its_end() -> None:
    def twice() -> Dataset:
        base = numbers().map(plain(lambda n: n + 1))
        return DATA.zip((base, base)).batch(2)

    assert elements(twice, 3, ours=True) == (
        elements(twice, 3, ours=False)[0],
        "a dataset that is used twice",
    )

"""Findings about finite, infinite and unknown datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import count_records
from input_rules.rules.batching import is_endless

from .rule_cases import (
    AUTOTUNE,
    finish,
    found,
    from_generator,
    slices,
)


def test_what_stops_with_one_of_its_datasets_has_an_end() -> None:
    def sampled(stops: bool) -> Any:
        pair = [slices().repeat(), slices()]
        mixed = tf.data.Dataset.sample_from_datasets(pair, [0.5, 0.5], seed=1, stop_on_empty_dataset=stops)
        return mixed.batch(8, drop_remainder=True).prefetch(2)

    assert "repeat-missing" in found(lambda: sampled(True))
    assert "repeat-missing" not in found(lambda: sampled(False))


def test_data_without_end_have_no_smaller_last_batch() -> None:
    endless = found(lambda: slices().repeat().batch(8).prefetch(2))["drop-remainder-missing"]
    ending = found(lambda: slices().batch(8).repeat().prefetch(2))["drop-remainder-missing"]
    assert endless.message.startswith("no batch is smaller")
    assert "left out" not in str(endless.gain)
    assert ending.message.startswith("the last batch may be smaller")
    assert str(ending.gain).endswith("at most the last incomplete batch of an epoch is dropped")


def test_a_generator_may_end_or_not() -> None:
    """No graph shows it."""
    make = lambda: from_generator().batch(8).prefetch(2)  # noqa: E731
    assert "the last batch may be smaller" in found(make)["drop-remainder-missing"].message
    missing = found(make)["repeat-missing"]
    assert missing.message.startswith("if the generator ends, the data end after one epoch")
    assert "unless the generator never ends" in missing.recommended
    finite = found(lambda: from_generator().repeat(3).batch(8, drop_remainder=True))["repeat-finite"]
    assert finite.message.startswith("if the generator ends, the data are repeated 3 times")
    assert "repeat-missing" not in found(lambda: finish(from_generator()))


def test_evaluation_ends_with_its_data() -> None:
    def make() -> Any:
        return slices().batch(8, drop_remainder=True).prefetch(AUTOTUNE)

    assert found(make, training=False) == {}


def test_endless_ranges_and_inner_repeats_need_no_repeat() -> None:
    def endless() -> Any:
        numbers = tf.data.Dataset.range(1, np.iinfo(np.int64).max, 2)
        return numbers.map(lambda x: tf.cast(x, tf.float32), num_parallel_calls=AUTOTUNE)

    assert "repeat-missing" not in found(endless)
    assert "repeat-missing" in found(lambda: endless().take(5))
    assert "repeat-missing" in found(lambda: tf.data.Dataset.zip((slices().repeat(), slices())))


def test_a_loop_may_make_thousands_of_stages() -> None:
    def one(number: int, op: str, **attributes: Any) -> Stage:
        return Stage(f"s{number}", op, number, (f"s{number - 1}",) if number else (), None, attributes)

    stages = [
        one(0, "range", records=40),
        one(1, "repeat", endless=True),
        *(one(n, "map") for n in range(2, 3000)),
    ]
    pipeline = Pipeline("tensorflow", tuple(stages))
    assert is_endless(pipeline)
    assert count_records(pipeline, pipeline.last) == 40

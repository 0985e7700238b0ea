"""Where elements are batches, and who chooses among them, along the way that the records take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_rules.rules import find
from input_rules.rules.base import Context, is_batched
from input_rules.tf.graph import trace

RECORDS = np.zeros((100, 4), np.float32)


def slices() -> Any:
    return tf.data.Dataset.from_tensor_slices(RECORDS)


def sampled(seed: int | None = 1) -> Any:
    return tf.data.Dataset.sample_from_datasets([slices().repeat(), slices().repeat()], [0.5, 0.5], seed)


def resampled() -> Any:
    even = slices().rejection_resample(lambda x: tf.cast(x[0], tf.int32), [0.5, 0.5], [0.5, 0.5], seed=1)
    return even.map(lambda number, x: x)


def numbered() -> Any:
    return tf.data.Dataset.zip((slices(), tf.data.Dataset.random(1).batch(2))).map(lambda x, numbers: x)


def taken_apart() -> Any:
    return slices().batch(10).flat_map(tf.data.Dataset.from_tensor_slices)


def of_windows() -> Any:
    return slices().window(4, drop_remainder=True).flat_map(lambda x: x.batch(4, drop_remainder=True))


OF_RECORDS: dict[str, Callable[[], Any]] = {
    "sampled": sampled,
    "resampled": resampled,
    "numbered": numbered,
    "unbatched": lambda: slices().batch(10).map(tf.nn.relu).unbatch(),
    "taken_apart": taken_apart,
    "of_windows": of_windows,
    "chosen": lambda: tf.data.Dataset.choose_from_datasets(
        [slices(), slices()], tf.data.Dataset.range(2).batch(2).repeat().unbatch()
    ),
}
OF_BATCHES: dict[str, Callable[[], Any]] = {
    "batch": lambda: slices().batch(10).map(tf.nn.relu),
    "twice": lambda: slices().batch(10).batch(2, drop_remainder=True).unbatch(),
    "rebatch": lambda: slices().batch(10).rebatch(5),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([slices().batch(10), slices().batch(10)], seed=1),
    "within": lambda: tf.data.Dataset.range(3).interleave(lambda number: slices().batch(10)),
    "numbers": lambda: tf.data.Dataset.random(1).batch(10),
    "numbered": lambda: tf.data.Dataset.zip((slices().batch(9), tf.data.Dataset.random(1))),
}


def rules(make: Callable[[], Any]) -> dict[str, str]:
    pipeline = trace(make).pipeline
    return {finding.id: finding.message for finding in find(pipeline, Context())}


@pytest.mark.parametrize("name", OF_RECORDS)
def test_records_may_be_shuffled_and_sharded(name: str) -> None:
    make = OF_RECORDS[name]
    assert not is_batched(trace(make).pipeline.last)
    assert trace(make).pipeline.samples_per_element == 1

    def small() -> Any:
        return make().shard(2, 0).shuffle(10, seed=1).repeat().batch(8, drop_remainder=True)

    found = rules(small)
    assert found.keys().isdisjoint({"shuffle-after-batch", "shard-after-batch"})
    assert "the buffer holds 10 records, batches have 8" in found["shuffle-buffer-small"]


@pytest.mark.parametrize("name", OF_BATCHES)
def test_batches_should_not(name: str) -> None:
    make = OF_BATCHES[name]
    assert is_batched(trace(make).pipeline.last)
    assert "shuffle-after-batch" in rules(lambda: make().shuffle(2, seed=1))
    assert "shard-after-batch" in rules(lambda: make().shard(2, 0))


def characters() -> Any:
    return tf.data.Dataset.range(1000).batch(10, drop_remainder=True).map(lambda x: (x[:-1], x[1:]))


def windows() -> Any:
    return tf.data.Dataset.range(1000).window(9, 9, drop_remainder=True).flat_map(lambda x: x.batch(9))


@pytest.mark.parametrize(("make", "maker"), [(characters, "batch"), (windows, "window")])
def test_what_is_batched_again_is_a_record(make: Callable[[], Any], maker: str) -> None:
    def small() -> Any:
        return make().shuffle(10, seed=1).batch(8)

    by_name = trace(small).pipeline.by_name
    assert by_name["range"].attributes["part"]
    assert by_name[maker].attributes["makes_record"]
    found = {finding.id: finding for finding in find(trace(small).pipeline, Context(sharded=False))}
    assert "the buffer holds 10 records, batches have 8" in found["shuffle-buffer-small"].message
    assert found["shard-missing"].op == maker
    assert found.keys().isdisjoint({"shuffle-after-batch", "shard-after-batch"})
    assert rules(lambda: make().shard(2, 0).batch(8)).keys().isdisjoint({"shard-after-batch", "shard-late"})
    # What mixes parts of records is the author's, and nothing is called for a record before there is one.
    mixed = rules(lambda: tf.data.Dataset.range(99).shuffle(2, 1).map(lambda x: x * 2).batch(9).batch(2))
    assert mixed.keys().isdisjoint({"shuffle-buffer-small", "map-before-batch"})


def test_the_last_record_may_be_smaller() -> None:
    assert (
        "it makes records, the last of which may be smaller"
        in rules(lambda: tf.data.Dataset.range(99).batch(10).batch(2, drop_remainder=True))[
            "drop-remainder-missing"
        ]
    )


def test_the_samples_of_what_was_unbatched() -> None:
    again = trace(lambda: slices().batch(10, drop_remainder=True).batch(2).unbatch()).pipeline
    assert again.samples_per_element == 10


@pytest.mark.parametrize(
    ("inner", "read"), [(tf.data.TextLineDataset, "files"), (tf.data.Dataset, "datasets")]
)
def test_what_an_interleave_reads(inner: Any, read: str) -> None:
    def of_names() -> Any:
        names = tf.data.Dataset.from_tensor_slices(["/data/a", "/data/b"])
        made = inner if read == "files" else inner.from_tensors
        return names.interleave(made, cycle_length=2, num_parallel_calls=2)

    assert f"it reads 2 {read} at once" in rules(of_names)["cycle-length-fixed"]

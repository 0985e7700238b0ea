"""Whatever is mended in a dataset graph, an epoch has the same records, and all shards have each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from input_analyzer.tf.mend import MENDABLE, Mended, mend

IN_AN_EPOCH = MENDABLE - {"repeat-missing"}
COUNT = 48


def doubled(x: Any) -> Any:
    return x * 2


def pair(x: Any) -> Any:
    return tf.data.Dataset.from_tensors(x).concatenate(tf.data.Dataset.from_tensors(x + 1))


STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda d: d.map(doubled),
    "fixed map": lambda d: d.map(doubled, num_parallel_calls=2),
    "any order": lambda d: d.map(doubled, num_parallel_calls=2, deterministic=False),
    "shuffle": lambda d: d.shuffle(3, seed=7),
    "interleave": lambda d: d.interleave(pair, cycle_length=2),
    "fixed interleave": lambda d: d.interleave(pair, cycle_length=3, num_parallel_calls=2),
    "flat_map": lambda d: d.flat_map(pair),
    "filter": lambda d: d.filter(lambda x: tf.equal(x % 4, 0)),
    "prefetch": lambda d: d.prefetch(0),
    "cache": lambda d: d.cache(),
    "twice": lambda d: d.repeat(2),
}


def records(make: Callable[[], Any], findings: frozenset[str], workers: int = 1) -> Counter[int]:
    """The records of an epoch of all workers; of each worker all but an incomplete last batch."""
    found: Counter[int] = Counter()
    for index in range(workers):
        with tf.Graph().as_default():
            mended = mend(make(), findings, workers, index)
            found.update(_values(mended))
    return found


def _values(mended: Mended) -> list[int]:
    batch = tf.compat.v1.data.make_one_shot_iterator(mended.dataset).get_next()
    values: list[int] = []
    with tf.compat.v1.Session() as session:
        try:
            while True:
                values += np.asarray(session.run(batch)).reshape(-1).tolist()
        except tf.errors.OutOfRangeError:
            return values


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
    st.sets(st.sampled_from(sorted(IN_AN_EPOCH))),
    st.sampled_from([1, 2, 3]),
)
def test_records_are_kept(names: list[str], findings: set[str], workers: int) -> None:
    def make() -> Any:
        dataset = tf.data.Dataset.range(COUNT)
        for name in names:
            dataset = STEPS[name](dataset)
        # Batches of one record: none is incomplete.
        return dataset.batch(1)

    chosen = frozenset(findings) | {"shard-missing"}
    assert records(make, chosen, workers) == records(make, frozenset())


@pytest.mark.parametrize("files", [1, 4])
def test_shards_of_files(tmp_path: Path, files: int) -> None:
    paths = []
    for number in range(files):
        paths.append(str(tmp_path / f"{number}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for record in range(12):
                writer.write(str(12 * number + record).encode())

    def make() -> Any:
        names = tf.data.Dataset.from_tensor_slices(paths)
        return names.interleave(tf.data.TFRecordDataset, cycle_length=2).map(tf.strings.to_number).batch(4)

    whole = records(make, IN_AN_EPOCH, 3) if files == 1 else records(make, IN_AN_EPOCH, 2)
    assert whole == Counter(dict.fromkeys(range(12 * files), 1))


def test_the_shape_of_a_batch_is_fixed_and_an_incomplete_one_left_out() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(10).map(lambda x: {"a": x, "b": (x, [x, x])}).batch(4)

    with tf.Graph().as_default():
        mended = mend(make(), {"drop-remainder-missing"})
        shapes = [spec.shape.as_list() for spec in tf.nest.flatten(mended.dataset.element_spec)]
        assert shapes == [[4], [4], [4, 2]]
        assert mended.changes == ("BatchDatasetV2: drop_remainder=True",)
    flat = records(lambda: make().map(lambda x: x["a"]), frozenset({"drop-remainder-missing"}))
    assert flat == Counter(range(8))


def test_the_end_is_mended() -> None:
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.range(5).batch(4, drop_remainder=True)
        mended = mend(dataset, {"repeat-missing", "prefetch-missing"})
        assert mended.changes == ("repeat() behind RangeDataset", "prefetch(AUTOTUNE) at the end")
        batch = tf.compat.v1.data.make_one_shot_iterator(mended.dataset).get_next()
        with tf.compat.v1.Session() as session:
            assert [session.run(batch).tolist() for _ in range(3)] == [
                [0, 1, 2, 3],
                [4, 0, 1, 2],
                [3, 4, 0, 1],
            ]


def test_what_is_not_certain_is_left() -> None:
    drawn = tf.data.Dataset.range
    unsafe: list[Callable[[], Any]] = [
        # Two sources: a shard of each would make other pairs.
        lambda: tf.data.Dataset.zip((drawn(4), drawn(4).shuffle(4))),
        # Random numbers would come in another order.
        lambda: drawn(4).map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])),
        # Python does not run side by side.
        lambda: drawn(4).map(lambda x: tf.numpy_function(np.abs, [x], tf.int64)),
    ]
    findings = [{"shard-missing"}, {"parallel-calls-missing"}, {"parallel-calls-missing"}]
    for make, ids in zip(unsafe, findings, strict=True):
        with tf.Graph().as_default():
            dataset = make()
            assert mend(dataset, ids, 2, 0) == Mended(dataset, ())

"""For every finding that can be mended: a pipeline that has it, the mend, and the same records after it."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.findings import find
from input_analyzer.findings.context import Context
from input_analyzer.tf.graph import trace
from input_analyzer.tf.mend import MENDABLE, mend

AUTOTUNE = tf.data.AUTOTUNE
FILES, PER_FILE, BATCH = 6, 8, 4
RECORDS = FILES * PER_FILE


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    names = [str(folder / f"{number}.tfrecord") for number in range(FILES)]
    for number, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for record in range(PER_FILE):
                writer.write(str(PER_FILE * number + record).encode())
    return names


def named(paths: list[str]) -> Any:
    return tf.data.Dataset.from_tensor_slices(paths)


def number(record: Any) -> Any:
    return tf.strings.to_number(record, tf.int32)


def batched(dataset: Any, **settings: Any) -> Any:
    return dataset.batch(BATCH, **{"drop_remainder": True, **settings})


def interleaved(paths: list[str], **settings: Any) -> Any:
    return named(paths).interleave(tf.data.TFRecordDataset, **settings)


def parallel(dataset: Any, **settings: Any) -> Any:
    return dataset.map(number, **{"num_parallel_calls": AUTOTUNE, **settings})


AT_ONCE = {"cycle_length": AUTOTUNE, "num_parallel_calls": AUTOTUNE}
PIPELINES: dict[str, Callable[[list[str]], Any]] = {
    "shard-missing": lambda p: batched(parallel(interleaved(p, **AT_ONCE))).prefetch(2),
    "drop-remainder-missing": lambda p: batched(
        parallel(interleaved(p, **AT_ONCE)), drop_remainder=False
    ).prefetch(2),
    "prefetch-missing": lambda p: batched(parallel(interleaved(p, **AT_ONCE))),
    "prefetch-not-last": lambda p: parallel(batched(interleaved(p, **AT_ONCE)).prefetch(2)),
    "prefetch-empty": lambda p: batched(parallel(interleaved(p, **AT_ONCE))).prefetch(0),
    "parallel-calls-missing": lambda p: batched(interleaved(p, cycle_length=3).map(number)).prefetch(2),
    "parallel-calls-fixed": lambda p: batched(
        parallel(interleaved(p, **AT_ONCE), num_parallel_calls=3)
    ).prefetch(2),
    "cycle-length-fixed": lambda p: batched(
        parallel(interleaved(p, cycle_length=2, num_parallel_calls=AUTOTUNE))
    ).prefetch(2),
    "flat-map-of-files": lambda p: batched(parallel(named(p).flat_map(tf.data.TFRecordDataset))).prefetch(2),
    "parallel-reads-missing": lambda p: batched(parallel(tf.data.TFRecordDataset(p))).prefetch(2),
    "order-not-deterministic": lambda p: batched(
        parallel(interleaved(p, **AT_ONCE), deterministic=False)
    ).prefetch(2),
    "shuffle-buffer-small": lambda p: batched(
        parallel(interleaved(p, **AT_ONCE)).shuffle(5, seed=1)
    ).prefetch(2),
    "repeat-missing": lambda p: batched(parallel(interleaved(p, **AT_ONCE))).prefetch(2),
}


ADDED = {
    "shard-missing": "shard(2, 0) behind from_tensor_slices()",
    "repeat-missing": "repeat() behind map()",
    "prefetch-missing": "prefetch(AUTOTUNE) at the end",
    "prefetch-not-last": "prefetch(AUTOTUNE) at the end",
}
"""Mends that add an operation, and what they say; the others change one in its place."""


def test_no_finding_is_left_out() -> None:
    assert set(PIPELINES) == MENDABLE


@pytest.mark.parametrize("identifier", sorted(MENDABLE))
def test_a_mended_pipeline_has_the_same_records(identifier: str, paths: list[str]) -> None:
    make = PIPELINES[identifier]
    context = Context(sharded=False if identifier == "shard-missing" else None)
    assert identifier in {finding.id for finding in find(trace(lambda: make(paths)).pipeline, context)}

    def mended() -> Any:
        result = mend(make(paths), {identifier}, 2, 0)
        assert result.changes
        assert ADDED.get(identifier, result.changes[0]) in result.changes
        return result.dataset

    left = {finding.id for finding in find(trace(mended).pipeline, context)}
    assert identifier in ADDED or identifier not in left
    epoch = dict.fromkeys(range(RECORDS), 1)
    for workers in (1, 2, 3):
        # Every worker reads its shard; a training with one has no shard to mend.
        found = sum((read(make, paths, identifier, workers, index) for index in range(workers)), Counter())
        assert found == epoch, workers


def read(
    make: Callable[[list[str]], Any], paths: list[str], identifier: str, workers: int, index: int
) -> Counter[int]:
    """The records that a worker reads in an epoch; in the first one, where it repeats them."""
    with tf.Graph().as_default():
        dataset = mend(make(paths), {identifier, "shard-missing"}, workers, index).dataset
        if identifier == "repeat-missing":
            dataset = dataset.take(RECORDS // workers // BATCH)
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        values: list[int] = []
        with tf.compat.v1.Session() as session:
            try:
                while True:
                    values += np.asarray(session.run(batch)).astype(np.int64).reshape(-1).tolist()
            except tf.errors.OutOfRangeError:
                return Counter(values)


def test_libraries_are_spared(tmp_path: Path) -> None:
    """Neither what Keras makes inside of a call, nor what another package does, is for the user to change."""

    def of_keras() -> Any:
        rows = tf.keras.utils.timeseries_dataset_from_array(
            np.zeros((100, 3), np.float32), None, 10, batch_size=None, shuffle=True, seed=1
        )
        whole = rows.map(lambda row: tf.ensure_shape(row, [10, 3]), num_parallel_calls=AUTOTUNE)
        return whole.repeat().batch(8, drop_remainder=True).prefetch(AUTOTUNE)

    assert find(trace(of_keras, eager=True).pipeline, Context()) == ()

    # As packages of data sets do: slow maps, a small shuffle, no prefetch, all below one call of the user's.
    package = tmp_path / "site-packages" / "records_library.py"
    package.parent.mkdir()
    package.write_text(
        "import tensorflow as tf\n"
        "def load(name):\n"
        "    dataset = tf.data.Dataset.range(1000).map(lambda x: x * 2).shuffle(3)\n"
        "    return dataset.map(lambda x: x + 1, num_parallel_calls=2, deterministic=False)\n"
    )
    spec = importlib.util.spec_from_file_location("records_library", package)
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)

    def of_a_package() -> Any:
        return library.load("digits").repeat().batch(8, drop_remainder=True).prefetch(AUTOTUNE)

    found = {finding.id for finding in find(trace(of_a_package, eager=True).pipeline, Context())}
    # What these say is true of the training, whoever wrote the code: an order that varies, wide numbers.
    assert found == {"order-not-deterministic", "dtype-wide"}

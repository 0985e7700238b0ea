"""Input pipelines whose slowest stage is known, for `benchmarks.input_analysis`.

Each function takes no arguments, so both `cs_input_analyzer FILE.py:FUNCTION` and a training loop can use it.
What a stage costs is the number of products of matrices in it, or a sleep; the slowest stage costs several
times what any other does. `FOLDER_VARIABLE` names the folder in which `write_photographs` has put files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

FOLDER_VARIABLE = "CS_BENCH_DATA"
BATCH = 16
AUTOTUNE = tf.data.AUTOTUNE
_SIDE = 128
_MATRIX = np.random.default_rng(0).random((_SIDE, _SIDE), np.float32)
_PHOTOGRAPHS = 64
_SLEEP_S = 0.002
_ENDLESS = 1 << 40
_FOLDED = 1e-3
"""Keeps powers of the matrix within the range of float32."""


def computing_map() -> Any:
    """A function that computes, called for every record."""
    return _finish(_numbers().map(lambda x: _products(x, 8)))


def after_batch() -> Any:
    """The dear function works on whole batches."""
    batches = _batch(_numbers().map(lambda x: _products(x, 1)))
    return batches.map(_of_a_batch).prefetch(AUTOTUNE)


def waiting_files() -> Any:
    """Records come slowly out of files."""
    files = tf.data.Dataset.range(8).repeat()
    read = files.interleave(lambda x: tf.data.Dataset.range(40).map(_waits), cycle_length=2)
    return _finish(read.map(lambda x: _products(x, 1)))


def second_of_two() -> Any:
    """Two sources side by side, the second of which is slow."""
    fast, slow = (_numbers().map(lambda x, n=n: _products(x, n)) for n in (1, 10))
    return _finish(tf.data.Dataset.zip((fast, slow)))


def large_records() -> Any:
    """Records so large that putting a batch together is the work."""
    record = np.zeros((1 << 18,), np.float32)
    return _finish(tf.data.Dataset.from_tensors(record).repeat())


def photographs() -> Any:
    """Photographs are decoded from files of records."""
    path = Path(os.environ[FOLDER_VARIABLE]) / "photographs.tfrecord"
    kind = {"image": tf.io.FixedLenFeature([], tf.string)}
    records = tf.data.TFRecordDataset(str(path)).repeat()
    parsed = records.map(lambda record: tf.io.parse_single_example(record, kind)["image"])
    return _finish(parsed.map(_decode))


def generator() -> Any:
    """A Python generator that computes."""

    def records() -> Iterator[np.int64]:
        for number in range(_ENDLESS):
            _spin(0.001)
            yield np.int64(number)

    made = tf.data.Dataset.from_generator(records, output_signature=tf.TensorSpec([], tf.int64))
    return _finish(made.map(lambda x: _products(x, 1)))


def cached() -> Any:
    """The dearest function is called in the first epoch only; after it another one is the slowest."""
    kept = tf.data.Dataset.range(40 * BATCH).map(lambda x: _products(x, 20)).cache().repeat()
    return _finish(kept.map(lambda x: _products(tf.cast(x, tf.int64), 5)))


def filtered() -> Any:
    """A function whose results are mostly dropped, before a more expensive one for the rest."""
    tried = _numbers().map(lambda x: (x, _products(x, 3)))
    kept = tried.filter(lambda x, y: tf.equal(x % 8, 0))
    return _finish(kept.map(lambda x, y: _products(x, 6)))


def write_photographs(folder: Path) -> None:
    """Writes the file that `photographs` reads."""
    random = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(folder / "photographs.tfrecord")) as writer:
        for _ in range(_PHOTOGRAPHS):
            small = random.integers(0, 255, (16, 16, 3), np.uint8)
            jpeg = tf.io.encode_jpeg(np.kron(small, np.ones((20, 20, 1), np.uint8))).numpy()
            feature = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg]))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def _numbers() -> Any:
    return tf.data.Dataset.range(_ENDLESS)


def _batch(dataset: Any) -> Any:
    return dataset.batch(BATCH, drop_remainder=True)


def _finish(dataset: Any) -> Any:
    return _batch(dataset).prefetch(AUTOTUNE)


def _products(x: Any, count: int) -> Any:
    """Multiply matrices that many times; the result depends on x, so that nothing is folded to a constant."""
    value = tf.constant(_MATRIX) + tf.cast(x, tf.float32) * 1e-12
    for _ in range(count):
        value = tf.linalg.matmul(value, _MATRIX) * _FOLDED
    return tf.reduce_sum(value)


def _of_a_batch(batch: Any) -> Any:
    return batch + _products(tf.reduce_sum(batch) * 1e-12, 8 * BATCH)


def _waits(x: Any) -> Any:
    def sleep(value: Any) -> Any:
        time.sleep(_SLEEP_S)
        return value

    return tf.ensure_shape(tf.numpy_function(sleep, [x], tf.int64), [])


def _decode(image: Any) -> Any:
    return tf.cast(tf.ensure_shape(tf.io.decode_jpeg(image, channels=3), [320, 320, 3]), tf.float32)


def _spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

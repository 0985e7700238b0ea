"""Texts for language models: tokens of a Markov chain, which can be learned, and TFRecord files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from models.common.data import DataError, task_shard

Tokens = NDArray[np.int32]

FILES_AT_ONCE = 4
"""Number of files that training reads in parallel."""
SUCCESSORS = 4
"""Number of possible successors of each token in the chain; the likeliest has a probability of 70 %."""
_LIKELIHOODS = (0.7, 0.15, 0.1, 0.05)


def markov_text(count: int, length: int, tokens: range, seed: int, first: Tokens | None = None) -> Tokens:
    """Generate texts of a Markov chain.

    Args:
        count: Number of texts.
        length: Number of tokens in each.
        tokens: The tokens to use; the chain over the same tokens is always the same.
        seed: Seed of the texts.
        first: First token of each text, [count]; random if omitted.

    Returns:
        Tokens [count, length].
    """
    followers = np.random.default_rng(len(tokens)).integers(0, len(tokens), (len(tokens), SUCCESSORS))
    rng = np.random.default_rng(seed)
    current = rng.integers(0, len(tokens), count) if first is None else first - tokens.start
    texts = np.empty((count, length), np.int32)
    for position in range(length):
        texts[:, position] = current
        current = followers[current, rng.choice(SUCCESSORS, count, p=_LIKELIHOODS)]
    return (texts + tokens.start).astype(np.int32)


def own_shard(records: Mapping[str, Any]) -> dict[str, Any]:
    """Return every n-th record of named arrays: the shard of this task."""
    shards, index = task_shard()
    return {name: array[index::shards] for name, array in records.items()}


def from_arrays(records: Mapping[str, Any], settings: Mapping[str, Any], *, training: bool) -> Any:
    """Make a dataset of batches of this task's records: shuffled and repeated, or in order and once.

    The caller adds the prefetch, which comes last.

    Raises:
        DataError: There are fewer records than a batch needs.
    """
    records = own_shard(records)
    count, batch_size = len(next(iter(records.values()))), settings["batch_size"]
    if count < batch_size:
        raise DataError(
            f"batch_size is {batch_size}, but this task has {count} records; take a smaller batch_size or "
            "fewer workers"
        )
    return _batches(tf.data.Dataset.from_tensor_slices(records), settings, count, training=training)


def from_tf_records(
    data_dir: str, shapes: Mapping[str, tuple[int, Any]], settings: Mapping[str, Any], *, training: bool
) -> Any:
    """Make such a dataset of the TFRecord files of a folder; this task reads every n-th record.

    Args:
        data_dir: Folder with files `*.tfrecord*`.
        shapes: Feature -> (length, dtype), int32 or float32.
        settings: The input group of the parameters.
        training: Shuffle and repeat the records.

    Raises:
        DataError: The folder has no such files, or the first record of the first one has other features.
    """
    files = sorted(str(path) for path in Path(data_dir).glob("*.tfrecord*"))
    if not files:
        raise DataError(f"'{data_dir}' has no file '*.tfrecord*'; check --data_dir")
    check_first_record(Path(files[0]), {name: length for name, (length, _) in shapes.items()})
    wire = {tf.int32: tf.int64, tf.float32: tf.float32}
    features = {
        name: tf.io.FixedLenFeature([length], wire[dtype]) for name, (length, dtype) in shapes.items()
    }

    def parse(serialized: Any) -> dict[str, Any]:
        examples = tf.io.parse_example(serialized, features)
        return {name: tf.cast(examples[name], dtype) for name, (_, dtype) in shapes.items()}

    shards, index = task_shard()
    # Not AUTOTUNE: the order of the records must not depend on the machine.
    reads = FILES_AT_ONCE if training and len(files) > 1 else None
    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=reads).shard(shards, index)
    return _batches(dataset, settings, 16 * settings["batch_size"], training=training).map(
        parse, num_parallel_calls=tf.data.AUTOTUNE
    )


def check_first_record(path: Path, lengths: Mapping[str, int]) -> None:
    """Check that the first record of a TFRecord file has the features of the network.

    Raises:
        DataError: There is no record, or it lacks a feature or has another number of values.
    """
    # A record is its length (8 bytes), a checksum of that (4), an `Example`, a checksum of that
    # (https://www.tensorflow.org/tutorials/load_data/tfrecord).
    with path.open("rb") as file:
        size = int.from_bytes(file.read(12)[:8], "little")
        content = file.read(min(size, path.stat().st_size))
    try:
        features = tf.train.Example.FromString(content).features.feature
    except DecodeError:
        features = {}
    if not features:
        raise DataError(f"'{path}' does not start with a record of features: not a TFRecord file of examples")
    for name, length in lengths.items():
        if name not in features:
            raise DataError(
                f"'{path}' has no feature '{name}' in its first record, only {', '.join(features)}"
            )
        kind = features[name].WhichOneof("kind")
        count = len(getattr(features[name], kind).value) if kind else 0
        if count != length:
            raise DataError(
                f"'{path}' has {count} values of '{name}' in its first record, expected {length}; "
                "correct the lengths in the parameter file, or the data"
            )


def _batches(dataset: Any, settings: Mapping[str, Any], buffer: int, *, training: bool) -> Any:
    if training:
        dataset = dataset.shuffle(buffer, seed=settings["shuffle_seed"]).repeat()
    return dataset.batch(settings["batch_size"], drop_remainder=True)


def with_label(name: str) -> Any:
    """Return a function that splits a batch into `(features, label)`; the named entry is the label."""

    def split(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        return {key: value for key, value in batch.items() if key != name}, batch[name]

    return split

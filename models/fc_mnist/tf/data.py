"""Handwritten digits: scikit-learn's bundled 8x8 images by default, or MNIST's IDX files.

Every batch is `(pixels [batch, 784] float32 in 0 to 1, labels [batch] int32)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from models.common.data import DataError, task_shard
from models.fc_mnist.files import IMAGES_HEADER, LABELS_HEADER, PIXELS, SIDE, digits, idx_files


@dataclass(frozen=True)
class Records:
    """All records of a split.

    Attributes:
        count: Number of records.
        images: Tensor [count, 784] of any numeric type.
        labels: Tensor [count] of any integer type.
        full_scale: Value of `images` at full intensity.
    """

    count: int
    images: Any
    labels: Any
    full_scale: float

    def shard(self, num_shards: int, index: int) -> Records:
        """Return every `num_shards`-th record, starting at `index`."""
        count = len(range(index, self.count, num_shards))
        return Records(count, self.images[index::num_shards], self.labels[index::num_shards], self.full_scale)


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return shuffled, repeated batches of this task's shard of the training split."""
    settings = params["train_input"]
    shard = _load(settings, "train").shard(*task_shard())
    dataset = tf.data.Dataset.from_tensor_slices((shard.images, shard.labels))
    dataset = dataset.shuffle(shard.count, seed=settings["shuffle_seed"]).repeat()
    return _batches(dataset, shard, settings["batch_size"])


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return the batches of this task's shard of the test split, once, in order.

    Raises:
        DataError: There are fewer records than a batch needs.
    """
    settings = params["eval_input"]
    shard = _load(settings, "test").shard(*task_shard())
    if shard.count < settings["batch_size"]:
        raise DataError(
            f"eval_input.batch_size is {settings['batch_size']}, but this task has {shard.count} test "
            "records; take a smaller batch_size or fewer workers"
        )
    dataset = tf.data.Dataset.from_tensor_slices((shard.images, shard.labels))
    return _batches(dataset, shard, settings["batch_size"])


def _batches(dataset: tf.data.Dataset, records: Records, batch_size: int) -> tf.data.Dataset:
    """Return full batches only, because the CS system is programmed for one shape."""
    scale = 1.0 / records.full_scale

    def convert(images: Any, labels: Any) -> tuple[Any, Any]:
        return tf.cast(images, tf.float32) * scale, tf.cast(labels, tf.int32)

    batches = dataset.batch(batch_size, drop_remainder=True)
    return batches.map(convert, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _load(settings: dict[str, Any], split: str) -> Records:
    data_dir = settings.get("data_dir")
    return _digits(split) if data_dir is None else _idx(Path(data_dir), split)


def _digits(split: str) -> Records:
    """Return digits of 8x8 pixels, which are scaled to 28x28 once, when the dataset starts."""
    images, labels = digits(split)
    scaled = tf.image.resize(tf.constant(images[..., None]), [SIDE, SIDE])
    return Records(len(labels), tf.reshape(scaled, [-1, PIXELS]), tf.constant(labels), full_scale=16.0)


def _idx(data_dir: Path, split: str) -> Records:
    images_path, labels_path, count = idx_files(data_dir, split)
    images = tf.reshape(_payload(images_path, IMAGES_HEADER), [count, PIXELS])
    labels = tf.reshape(_payload(labels_path, LABELS_HEADER), [count])
    return Records(count, images, labels, full_scale=255.0)


def _payload(path: Path, header_size: int) -> Any:
    """Return the bytes after the header, read when the dataset starts: 47 MB are too much for a graph."""
    content = tf.io.read_file(str(path))
    if path.suffix == ".gz":
        content = tf.io.decode_compressed(content, "GZIP")
    return tf.io.decode_raw(content, tf.uint8)[header_size:]

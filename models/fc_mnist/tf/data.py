"""Handwritten digits: scikit-learn's bundled 8x8 images by default, MNIST's IDX files where there are any.

Every batch is `(pixels [batch, 784] float32 in 0 to 1, labels [batch] int32)`.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from models.common.tf.input import DataError, task_shard

SIDE = 28
PIXELS = SIDE * SIDE
TEST_FRACTION = 0.2

IMAGES_MAGIC = 2051
LABELS_MAGIC = 2049


@dataclass(frozen=True)
class Records:
    """All records of a split.

    Attributes:
        count: Number of records.
        images: Tensor [count, 784] of any numeric type.
        labels: Tensor [count] of any integer type.
        full_scale: Value of `images` that is full ink.
    """

    count: int
    images: Any
    labels: Any
    full_scale: float

    def shard(self, num_shards: int, index: int) -> Records:
        """Every `num_shards`-th record, beginning at `index`."""
        count = len(range(index, self.count, num_shards))
        return Records(count, self.images[index::num_shards], self.labels[index::num_shards], self.full_scale)


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Shuffled batches of this task's shard of the training split, without end."""
    settings = params["train_input"]
    shard = _load(settings, "train").shard(*task_shard())
    dataset = tf.data.Dataset.from_tensor_slices((shard.images, shard.labels))
    dataset = dataset.shuffle(shard.count, seed=settings["shuffle_seed"]).repeat()
    return _batches(dataset, shard, settings["batch_size"])


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Batches of this task's shard of the test split, once, in order.

    Raises:
        DataError: not one batch can be filled.
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
    """Full batches only, as the CS system is programmed for one shape; the map works on whole batches."""
    scale = 1.0 / records.full_scale

    def convert(images: Any, labels: Any) -> tuple[Any, Any]:
        return tf.cast(images, tf.float32) * scale, tf.cast(labels, tf.int32)

    batches = dataset.batch(batch_size, drop_remainder=True)
    return batches.map(convert, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _load(settings: dict[str, Any], split: str) -> Records:
    data_dir = settings.get("data_dir")
    return _digits(split) if data_dir is None else _idx(Path(data_dir), split)


def _digits(split: str) -> Records:
    """The 1797 real digits of 8x8 pixels that come with scikit-learn; a fifth is for tests.

    They are scaled to 28x28 once, when the dataset starts.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    num_test = math.ceil(TEST_FRACTION * len(order))
    chosen = order[:num_test] if split == "test" else order[num_test:]
    small = tf.constant(images[chosen].reshape(-1, 8, 8, 1), tf.float32)
    scaled = tf.reshape(tf.image.resize(small, [SIDE, SIDE]), [-1, PIXELS])
    return Records(len(chosen), scaled, tf.constant(labels[chosen], tf.int32), full_scale=16.0)


def _idx(data_dir: Path, split: str) -> Records:
    """MNIST as its authors distribute it, plain or compressed."""
    stem = "train" if split == "train" else "t10k"
    images_path = _find(data_dir, f"{stem}-images", "idx3-ubyte")
    labels_path = _find(data_dir, f"{stem}-labels", "idx1-ubyte")
    count, rows, columns = idx_shape(images_path, IMAGES_MAGIC, 3)
    (num_labels,) = idx_shape(labels_path, LABELS_MAGIC, 1)
    if (rows, columns) != (SIDE, SIDE):
        raise DataError(f"'{images_path}' has images of {rows}x{columns} pixels, expected {SIDE}x{SIDE}")
    if num_labels != count:
        raise DataError(
            f"'{images_path}' has {count} images, '{labels_path}' {num_labels} labels; expected as many"
        )
    images = tf.reshape(_payload(images_path, 16), [count, PIXELS])
    return Records(count, images, tf.reshape(_payload(labels_path, 8), [count]), full_scale=255.0)


def _find(data_dir: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{suffix}" for dot in "-." for suffix in ("", ".gz")]
    for name in names:
        if (data_dir / name).is_file():
            return data_dir / name
    raise DataError(f"'{data_dir}' has no MNIST file '{names[0]}', plain or .gz; check --data_dir")


def idx_shape(path: Path, magic: int, rank: int) -> tuple[int, ...]:
    """Sizes that the header of an IDX file of bytes declares, checked against the size of the file.

    Raises:
        DataError: it is no such file, or it is cut off.
    """
    header_size = 4 * (1 + rank)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_size)
        size = _unpacked_size(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{path}' cannot be read: {error}; download it again") from error
    if len(header) < header_size:
        raise DataError(f"'{path}' is cut off: {len(header)} bytes, the header alone has {header_size}")
    found, *sizes = struct.unpack(f">{1 + rank}I", header)
    if found != magic:
        raise DataError(
            f"'{path}' begins with the magic number {found}, expected {magic}: no IDX file of MNIST"
        )
    expected = header_size + math.prod(sizes)
    if size != expected:
        raise DataError(
            f"'{path}' has {size} bytes, but its header declares {expected}: it is cut off or damaged; "
            "download it again"
        )
    return tuple(sizes)


def _unpacked_size(path: Path) -> int:
    if path.suffix != ".gz":
        return path.stat().st_size
    # Unpacked to its end: the size that a gzip file declares there says nothing when the file is cut off.
    with gzip.open(path) as file:
        return file.seek(0, os.SEEK_END)


def _payload(path: Path, header_size: int) -> Any:
    """The bytes after the header, read when the dataset starts: no graph has 47 MB of pixels in it."""
    content = tf.io.read_file(str(path))
    if path.suffix == ".gz":
        content = tf.io.decode_compressed(content, "GZIP")
    return tf.io.decode_raw(content, tf.uint8)[header_size:]

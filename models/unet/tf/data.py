"""Images with a class for each pixel: PNG files, or generated shapes.

Every batch is `(images [batch, height, width, channels] float32, classes [batch, height, width] int32)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from models.common.data import DataError, task_shard


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return shuffled, repeated batches of this task's shard."""
    settings, model = params["train_input"], params["model"]
    shards, index = task_shard()
    if settings["data_dir"] is None:
        records = tf.data.Dataset.range(index, np.iinfo(np.int64).max, shards)
        return _shapes(records, settings, model, seed=settings["shuffle_seed"] or 0)
    pairs = _pairs(Path(settings["data_dir"]) / "train")[index::shards]
    dataset = tf.data.Dataset.from_tensor_slices(_columns(pairs))
    dataset = dataset.shuffle(max(1, len(pairs)), seed=settings["shuffle_seed"]).repeat()
    return _files(dataset, len(pairs), settings, model)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return the batches of this task's shard of the test images, once.

    Raises:
        DataError: There are fewer records than a batch needs.
    """
    settings, model = params["eval_input"], params["model"]
    shards, index = task_shard()
    if settings["data_dir"] is None:
        records = tf.data.Dataset.range(index, settings["num_records"], shards)
        _require_batch(len(range(index, settings["num_records"], shards)), settings["batch_size"])
        return _shapes(records, settings, model, seed=-1)
    pairs = _pairs(Path(settings["data_dir"]) / "validation")[index::shards]
    _require_batch(len(pairs), settings["batch_size"])
    return _files(tf.data.Dataset.from_tensor_slices(_columns(pairs)), len(pairs), settings, model)


def _require_batch(count: int, batch_size: int) -> None:
    if count < batch_size:
        raise DataError(
            f"batch_size is {batch_size}, but this task has {count} records; "
            "take a smaller batch_size, more records or fewer workers"
        )


def _shapes(
    records: tf.data.Dataset, settings: dict[str, Any], model: dict[str, Any], seed: int
) -> tf.data.Dataset:
    """Generate images with an ellipse of each class but 0; pixels have the value of their class, with noise.

    A batch is a function of `seed` and its first record, so the input always has the same batches.
    """
    height, width, channels = model["image_shape"]
    batch_size, noise = settings["batch_size"], settings["noise"]
    rows = (tf.range(height, dtype=tf.float32)[:, None] + 0.5) / height
    columns = (tf.range(width, dtype=tf.float32)[None, :] + 0.5) / width

    def generate(numbers: Any) -> tuple[Any, Any]:
        key = tf.stack([tf.constant(seed, tf.int64), numbers[0]])
        places = tf.random.stateless_uniform([model["num_classes"] - 1, 4, batch_size, 1, 1], key)
        labels = tf.zeros([batch_size, height, width], tf.int32)
        for index in range(model["num_classes"] - 1):
            y, x, tall, wide = tf.unstack(places[index])
            inside = ((rows - y) / (0.1 + 0.2 * tall)) ** 2 + ((columns - x) / (0.1 + 0.2 * wide)) ** 2 < 1.0
            labels = tf.where(inside, index + 1, labels)
        images = tf.cast(labels, tf.float32)[..., None] + noise * tf.random.stateless_normal(
            [batch_size, height, width, channels], key
        )
        return images, labels

    batches = records.batch(batch_size, drop_remainder=True)
    return batches.map(generate, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _pairs(folder: Path) -> list[tuple[str, str]]:
    """Return the paths of images and masks, `images/NAME.png` and `masks/NAME.png`, sorted by name."""
    images = sorted((folder / "images").glob("*.png"))
    if not images:
        raise DataError(f"'{folder / 'images'}' has no PNG file; check --data_dir")
    missing = [path.name for path in images if not (folder / "masks" / path.name).is_file()]
    if missing:
        raise DataError(
            f"'{folder / 'masks'}' lacks {missing[0]} and {len(missing) - 1} more, "
            "expected a mask of the same name for each image"
        )
    return [(str(path), str(folder / "masks" / path.name)) for path in images]


def _columns(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [image for image, _ in pairs], [mask for _, mask in pairs]


def _files(
    names: tf.data.Dataset, count: int, settings: dict[str, Any], model: dict[str, Any]
) -> tf.data.Dataset:
    """Read images, scaled to 0 to 1, and masks, which have the class of a pixel as gray value.

    Raises:
        DataError: This task has no file.
    """
    if not count:
        raise DataError("there are fewer images than workers; take fewer workers")
    height, width, channels = model["image_shape"]

    def read(image: Any, mask: Any) -> tuple[Any, Any]:
        pixels = tf.io.decode_png(tf.io.read_file(image), channels=channels)
        classes = tf.io.decode_png(tf.io.read_file(mask), channels=1)
        pixels = tf.image.resize(pixels, [height, width]) / 255.0
        classes = tf.image.resize(classes, [height, width], method="nearest")
        return pixels, tf.cast(classes[..., 0], tf.int32)

    records = names.map(read, num_parallel_calls=tf.data.AUTOTUNE)
    return records.batch(settings["batch_size"], drop_remainder=True).prefetch(tf.data.AUTOTUNE)

"""Images with a class: ImageNet as TFRecord files, or generated patterns.

Every batch is `(images [batch, size, size, channels] float32, classes [batch] int32)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from models.common.data import DataError, task_shard

CELLS = 4
"""Number of cells of one color in each direction of a generated pattern."""

PATTERN_SEED = 20
SHUFFLED_BATCHES = 10
"""Size of the shuffle buffer of photographs, in batches."""
MEAN_RGB = (0.485 * 255, 0.456 * 255, 0.406 * 255)
STDDEV_RGB = (0.229 * 255, 0.224 * 255, 0.225 * 255)
"""Statistics of ImageNet, for colors from 0 to 255."""

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return repeated batches of this task's shard, in another order each epoch."""
    settings, model = params["train_input"], params["model"]
    if settings["data_dir"] is not None:
        return _photographs(settings, model, training=True)
    shards, index = task_shard()
    records = tf.data.Dataset.range(index, np.iinfo(np.int64).max, shards)
    return _patterns(records, settings, model, seed=settings["shuffle_seed"] or 0)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return the batches of this task's shard of the test images, once.

    Raises:
        DataError: There are fewer records than a batch needs.
    """
    settings, model = params["eval_input"], params["model"]
    if settings["data_dir"] is not None:
        return _photographs(settings, model, training=False)
    shards, index = task_shard()
    count = len(range(index, settings["num_records"], shards))
    if count < settings["batch_size"]:
        raise DataError(
            f"eval_input.batch_size is {settings['batch_size']}, but this task has {count} test records; "
            "take a smaller batch_size, a larger num_records or fewer workers"
        )
    records = tf.data.Dataset.range(index, settings["num_records"], shards)
    return _patterns(records, settings, model, seed=-1)


def _patterns(
    records: tf.data.Dataset, settings: dict[str, Any], model: dict[str, Any], seed: int
) -> tf.data.Dataset:
    """Generate images: each class is a pattern of colored cells, and an image is a pattern with noise.

    A batch is a function of `seed` and its first record, so the input always has the same batches.
    """
    size, channels, classes = model["image_size"], model["num_channels"], model["num_classes"]
    random = np.random.default_rng(PATTERN_SEED)
    cells = random.normal(size=(classes, CELLS, CELLS, channels)).astype(np.float32)
    batch_size, noise = settings["batch_size"], settings["noise"]

    def generate(numbers: Any) -> tuple[Any, Any]:
        key = tf.stack([tf.constant(seed, tf.int64), numbers[0]])
        labels = tf.random.stateless_uniform([batch_size], key, 0, classes, tf.int32)
        images = tf.image.resize(tf.gather(cells, labels), [size, size], method="nearest")
        return images + noise * tf.random.stateless_normal(images.shape, key), labels

    batches = records.batch(batch_size, drop_remainder=True)
    return batches.map(generate, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _photographs(settings: dict[str, Any], model: dict[str, Any], training: bool) -> tf.data.Dataset:
    """Read this task's files of a split."""
    if model["num_channels"] != len(MEAN_RGB):
        raise DataError(f"photographs have 3 channels, got model.num_channels {model['num_channels']}")
    files = _files(Path(settings["data_dir"]), "train" if training else "validation")
    shards, index = task_shard()
    if shards > len(files):
        raise DataError(
            f"'{settings['data_dir']}' has {len(files)} files of this split for {shards} workers; "
            "take fewer workers or split the files"
        )
    names = tf.data.Dataset.from_tensor_slices(files[index::shards])
    seed = settings["shuffle_seed"]
    if training:
        names = names.shuffle(len(files), seed=seed).repeat()
    records = names.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    if training:
        records = records.shuffle(SHUFFLED_BATCHES * settings["batch_size"], seed=seed)

    def convert(number: Any, record: Any) -> tuple[Any, Any]:
        parsed = tf.io.parse_single_example(record, FEATURES)
        # Random numbers depend on the record, not on parallel calls or on when the input is built.
        key = tf.stack([tf.constant(seed or 0, tf.int64), number]) if training else None
        return (
            _image(parsed["image/encoded"], model["image_size"], key),
            tf.cast(parsed["image/class/label"], tf.int32) - 1,
        )

    images = records.enumerate().map(convert, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(settings["batch_size"], drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _files(data_dir: Path, split: str) -> list[str]:
    found = sorted(str(path) for path in data_dir.glob(f"{split}-*-of-*"))
    if not found:
        raise DataError(f"'{data_dir}' has no TFRecord file '{split}-NNNNN-of-NNNNN'; check --data_dir")
    return found


def _image(encoded: Any, size: int, key: Any) -> Any:
    """Crop and perhaps mirror an image by a random key of two numbers; without a key, crop its center."""
    shape = tf.image.extract_jpeg_shape(encoded)
    if key is not None:
        whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            whole,
            seed=key,
            min_object_covered=0.1,
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
        )
        window = tf.concat([begin[:2], extent[:2]], 0)
    else:
        side = tf.cast(0.875 * tf.cast(tf.minimum(shape[0], shape[1]), tf.float32), tf.int32)
        window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
    image = tf.image.resize(tf.image.decode_and_crop_jpeg(encoded, window, channels=3), [size, size])
    if key is not None:
        image = tf.image.stateless_random_flip_left_right(image, seed=key + 1)
    return (tf.ensure_shape(image, [size, size, 3]) - MEAN_RGB) / STDDEV_RGB

"""Images and the class of each of their points, as npy files; augmented to train."""

import os

import numpy as np
import tensorflow as tf
from common.input_utils import shard_dataset


def train_input_fn(params):
    settings = params["train_input"]
    dataset = shard_dataset(images(settings), settings["use_multiple_workers"]).repeat()
    return batches(dataset.map(lambda image, mask: augmented(image, mask, settings)), settings)


def eval_input_fn(params):
    return batches(images(params["eval_input"]), params["eval_input"])


def images(settings):
    folder = settings["data_dir"]
    loaded = tuple(np.load(os.path.join(folder, f"{name}.npy")) for name in ("images", "masks"))
    return tf.data.Dataset.from_tensor_slices(loaded)


def augmented(image, mask, settings):
    """Turned upside down where the numbers in it say so: the same image always in the same way."""
    if not settings.get("augment"):
        return image, mask
    flip = tf.equal(tf.reduce_sum(mask) % 2, 0)
    return tf.where(flip, tf.reverse(image, [0]), image), tf.where(flip, tf.reverse(mask, [0]), mask)


def batches(dataset, settings):
    def parse(image, mask):
        image = tf.image.per_image_standardization(image)
        if settings["data_format"] == "channels_first":
            image = tf.transpose(image, [2, 0, 1])
        return image, mask

    dataset = dataset.map(parse, num_parallel_calls=2)
    return dataset.batch(settings["batch_size"], drop_remainder=True).prefetch(2)


def prepare(settings, seed, examples=32):
    """A bright rectangle on a dark ground."""
    generator = np.random.default_rng(seed)
    height, width, channels = settings["image_shape"]
    images = generator.normal(0, 0.1, (examples, height, width, channels)).astype(np.float32)
    masks = np.zeros((examples, height, width), np.int32)
    for image, mask in zip(images, masks, strict=True):
        top, left = generator.integers(height // 2), generator.integers(width // 2)
        mask[top : top + height // 2, left : left + width // 2] = 1
        image += mask[..., np.newaxis]
    os.makedirs(settings["data_dir"], exist_ok=True)
    for name, array in (("images", images), ("masks", masks)):
        np.save(os.path.join(settings["data_dir"], f"{name}.npy"), array)

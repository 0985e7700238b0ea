"""Images of 8-bit gray values, and their classes, in an npz file."""

import os

import numpy as np
import tensorflow as tf
from common.input_utils import shard_dataset


def train_input_fn(params):
    settings = params["train_input"]
    dataset = shard_dataset(images(settings), settings["use_multiple_workers"])
    dataset = dataset.shuffle(settings["shuffle_buffer"], seed=settings["shuffle_seed"]).repeat()
    return batches(dataset, settings)


def eval_input_fn(params):
    return batches(images(params["eval_input"]), params["eval_input"])


def images(settings):
    with np.load(os.path.join(settings["data_dir"], "images.npz")) as arrays:
        return tf.data.Dataset.from_tensor_slices((arrays["images"], arrays["labels"]))


def batches(dataset, settings):
    dataset = dataset.map(scaled, num_parallel_calls=2)
    return dataset.batch(settings["batch_size"], drop_remainder=True).prefetch(4)


def scaled(image, label):
    return tf.cast(image, tf.float16) / 255.0, tf.cast(label, tf.int32)


def prepare(settings, seed, examples=256):
    """Images with one bright column, whose number is the class."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(settings["num_classes"], size=examples)
    images = generator.integers(100, size=(examples, 8, 8))
    images[np.arange(examples), :, labels] += 100
    os.makedirs(settings["data_dir"], exist_ok=True)
    np.savez(os.path.join(settings["data_dir"], "images.npz"), images=images.astype(np.uint8), labels=labels)

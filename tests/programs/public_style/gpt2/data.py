"""Texts as TFRecord files: ids, the ids that follow, and a mask of the positions that count."""

import os

import numpy as np
import tensorflow as tf
from common.input_utils import batches, parser, records, write_records


def train_input_fn(params):
    return input_fn(params["train_input"], training=True)


def eval_input_fn(params):
    return input_fn(params["eval_input"], training=False)


def input_fn(settings, training):
    length = [settings["max_sequence_length"]]
    shapes = dict.fromkeys(("input_ids", "attention_mask", "labels"), (length, tf.int64))
    files = os.path.join(settings["data_dir"], "*.tfrecords")
    return batches(records(files, settings, training), parser(shapes, "labels"), settings)


def prepare(settings, seed, examples=96):
    """Writes made-up texts: every token but a few is the one before plus 3."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(examples):
        length = settings["max_sequence_length"] + 1
        start = generator.integers(settings["vocab_size"])
        text = (start + 3 * np.arange(length)) % settings["vocab_size"]
        noisy = generator.random(length) < 0.05
        text = np.where(noisy, generator.integers(settings["vocab_size"], size=length), text)
        end = generator.integers(length // 2, length)
        rows.append(
            {
                "input_ids": text[:-1],
                "labels": text[1:],
                "attention_mask": (np.arange(length - 1) < end).astype(np.int64),
            }
        )
    write_records(os.path.join(settings["data_dir"], "part-{}.tfrecords"), rows, files=4)

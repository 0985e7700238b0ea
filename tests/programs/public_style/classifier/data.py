"""Texts as lines of comma-separated values: a class, and words as numbers with blanks between them."""

import os

import numpy as np
import tensorflow as tf
from common.input_utils import shard_dataset


def train_input_fn(params):
    settings = params["train_input"]
    dataset = shard_dataset(lines(settings), settings["use_multiple_workers"]).repeat()
    return batches(dataset.shuffle(32, seed=settings.get("shuffle_seed", 1)), settings)


def eval_input_fn(params):
    return batches(lines(params["eval_input"]), params["eval_input"])


def lines(settings):
    return tf.data.TextLineDataset(os.path.join(settings["data_dir"], "texts.csv")).skip(1)


def batches(dataset, settings):
    length = settings["max_sequence_length"]

    def parse(line):
        label, text = tf.io.decode_csv(line, [0, ""])
        ids = tf.strings.to_number(tf.strings.split([text]).values, tf.int32)[:length]
        count = tf.size(ids)
        ids = tf.pad(ids, [[0, length - count]])
        ids.set_shape([length])
        return {"input_ids": ids, "input_mask": tf.sequence_mask(count, length, tf.int32)}, label

    dataset = dataset.map(parse, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    return dataset.batch(settings["batch_size"], drop_remainder=True).prefetch(1)


def prepare(settings, seed, examples=96):
    """A text is of class 1 if its second word is among the higher half of the words."""
    generator = np.random.default_rng(seed)
    os.makedirs(settings["data_dir"], exist_ok=True)
    with open(os.path.join(settings["data_dir"], "texts.csv"), "w") as file:
        file.write("class,text\n")
        for _ in range(examples):
            words = generator.integers(1, settings["vocab_size"], size=generator.integers(4, 20))
            label = int(words[1] >= settings["vocab_size"] // 2)
            file.write(f"{label},{' '.join(map(str, words))}\n")

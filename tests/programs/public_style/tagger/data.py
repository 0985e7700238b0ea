"""Tagged texts in a file of JSON lines, padded by a generator."""

import json
import os

import numpy as np
import tensorflow as tf
from common.input_utils import num_workers, shard_dataset


def train_input_fn(params):
    settings = params["train_input"]
    dataset = shard_dataset(texts(settings), settings["use_multiple_workers"]).repeat()
    dataset = batches(dataset, settings)
    # What was used before a restart is left out by the program itself.
    return dataset.skip(settings.get("skip_steps", 0) // num_workers())


def eval_input_fn(params):
    return batches(texts(params["eval_input"]), params["eval_input"])


def batches(dataset, settings):
    return dataset.batch(settings["batch_size"], drop_remainder=True).prefetch(2)


def texts(settings):
    length, pad_label = settings["max_sequence_length"], settings["pad_label"]

    def generate():
        with open(os.path.join(settings["data_dir"], "texts.json")) as file:
            for line in file:
                text = json.loads(line)
                ids, tags = np.zeros(length, np.int32), np.full(length, pad_label, np.int32)
                count = min(length, len(text["ids"]))
                ids[:count], tags[:count] = text["ids"][:count], text["tags"][:count]
                mask = (np.arange(length) < count).astype(np.int32)
                yield {"input_ids": ids, "input_mask": mask}, tags

    row = tf.TensorShape([length])
    types = ({"input_ids": tf.int32, "input_mask": tf.int32}, tf.int32)
    return tf.data.Dataset.from_generator(generate, types, ({"input_ids": row, "input_mask": row}, row))


def prepare(settings, seed, examples=96):
    """The tag of a word is its remainder, one higher behind a word that is 1."""
    generator = np.random.default_rng(seed)
    os.makedirs(settings["data_dir"], exist_ok=True)
    with open(os.path.join(settings["data_dir"], "texts.json"), "w") as file:
        for _ in range(examples):
            ids = generator.integers(1, settings["vocab_size"], size=generator.integers(4, 16))
            behind = np.concatenate([[False], ids[:-1] == 1])
            tags = (ids + behind) % settings["num_tags"]
            file.write(json.dumps({"ids": ids.tolist(), "tags": tags.tolist()}) + "\n")

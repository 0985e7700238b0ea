"""Pairs of texts as TFRecord files; the second one of a made-up pair is the first one, one higher."""

import os

import numpy as np
import tensorflow as tf
from common.input_utils import batches, parser, records, write_records


def train_input_fn(params):
    return input_fn(params["train_input"], training=True)


def eval_input_fn(params):
    return input_fn(params["eval_input"], training=False)


def input_fn(settings, training):
    source, target = [settings["src_max_sequence_length"]], [settings["tgt_max_sequence_length"]]
    shapes = dict.fromkeys(("input_ids", "attention_mask"), (source, tf.int64))
    shapes |= dict.fromkeys(("decoder_input_ids", "decoder_attention_mask", "labels"), (target, tf.int64))
    files = os.path.join(settings["data_dir"], "*.tfrecords")
    return batches(records(files, settings, training), parser(shapes, "labels"), settings)


def prepare(settings, seed, examples=64):
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(examples):
        length = settings["src_max_sequence_length"]
        size = generator.integers(length // 2, length)
        text = np.where(
            np.arange(length) < size, generator.integers(2, settings["vocab_size"] - 1, length), 0
        )
        target = np.where(text > 0, text + 1, 0)[: settings["tgt_max_sequence_length"]]
        rows.append(
            {
                "input_ids": text,
                "attention_mask": (text > 0).astype(np.int64),
                "decoder_input_ids": np.concatenate([[1], target[:-1]]),
                "decoder_attention_mask": (target > 0).astype(np.int64),
                "labels": target,
            }
        )
    write_records(os.path.join(settings["data_dir"], "pairs-{}.tfrecords"), rows, files=2)

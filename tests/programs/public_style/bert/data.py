"""Pairs of sentences as TFRecord files. Where a text has fewer masked words than it may, labels are -1."""

import os

import numpy as np
import tensorflow as tf
from common.input_utils import batches, parser, records, write_records


def train_input_fn(params):
    return input_fn(params["train_input"], training=True)


def eval_input_fn(params):
    return input_fn(params["eval_input"], training=False)


def input_fn(settings, training):
    length, masked = [settings["max_sequence_length"]], [settings["max_predictions_per_seq"]]
    shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (length, tf.int64))
    shapes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (masked, tf.int64))
    shapes |= {"masked_lm_weights": (masked, tf.float32), "next_sentence_labels": ([], tf.int64)}
    parse = parser(shapes, "masked_lm_ids")

    def parse_and_pad(serialized):
        features, ids = parse(serialized)
        unused = tf.equal(features["masked_lm_weights"], 0.0)
        return features, tf.where(unused, settings["pad_label"], ids)

    files = os.path.join(settings["data_dir"], "*.tfrecords")
    return batches(records(files, settings, training), parse_and_pad, settings)


def prepare(settings, seed, examples=96):
    """Texts that count on by 2, in which some words are masked (id 0); a second one that starts again."""
    generator = np.random.default_rng(seed)
    length, masked, words = (
        settings[name] for name in ("max_sequence_length", "max_predictions_per_seq", "vocab_size")
    )
    rows = []
    for _ in range(examples):
        follows = generator.integers(2)
        half = length // 2
        text = generator.integers(words) + 2 * np.arange(length)
        text[half:] += 0 if follows else generator.integers(1, words)
        text = 1 + text % (words - 1)
        used = generator.integers(1, masked + 1)
        positions = np.sort(generator.choice(np.arange(1, length), masked, replace=False))
        positions[used:] = 0
        ids = np.where(np.arange(masked) < used, text[positions], 0)
        hidden = text.copy()
        hidden[positions[:used]] = 0
        rows.append(
            {
                "input_ids": hidden,
                "input_mask": np.ones(length, np.int64),
                "segment_ids": (np.arange(length) >= half).astype(np.int64),
                "masked_lm_positions": positions,
                "masked_lm_ids": ids,
                "masked_lm_weights": (np.arange(masked) < used).astype(np.float32),
                "next_sentence_labels": np.int64(follows),
            }
        )
    write_records(os.path.join(settings["data_dir"], "part-{}.tfrecords"), rows, files=4)

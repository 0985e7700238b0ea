"""Pairs of sentences with masked tokens: from TFRecord files, or made up of a Markov chain.

A batch is `(features, next_sentence_labels [batch] int32)`. Features, int32 where nothing else is said:
`input_ids`, `input_mask`, `segment_ids` [batch, max_sequence_length]; `masked_lm_positions`, `masked_lm_ids`
and `masked_lm_weights` (float32) [batch, max_predictions_per_seq]. Unused places hold 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from models.common.tf.input import DataError
from models.common.tf.text import from_arrays, from_tf_records, markov_text, with_label

LABEL = "next_sentence_labels"
CLS, SEP, MASK = 1, 2, 3
FIRST_TOKEN = 4
"""Tokens below are special; 0 is padding."""
SHORTEST = 10
"""Records that are made up need so many places: half of them for a pair of sentences and three marks."""
MASKED_FRACTION = 0.15

Array = NDArray[Any]


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Shuffled batches of this task's shard of the training split, without end."""
    return _dataset(params, "train_input", training=True)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Batches of this task's shard of the test split, once, in order."""
    return _dataset(params, "eval_input", training=False)


def _dataset(params: dict[str, Any], group: str, *, training: bool) -> tf.data.Dataset:
    settings = params[group]
    if settings["data_dir"] is None:
        seed = 2 * settings["mask_seed"] + training
        records = made_up(settings, params["model"]["vocab_size"], seed)
        dataset = from_arrays(records, settings, training=training)
    else:
        dataset = from_tf_records(settings["data_dir"], _features(settings), settings, training=training)

    def shaped(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, LABEL: tf.reshape(batch[LABEL], [settings["batch_size"]])}

    return dataset.map(shaped).map(with_label(LABEL)).prefetch(tf.data.AUTOTUNE)


def _features(settings: dict[str, Any]) -> dict[str, tuple[int, Any]]:
    length, predictions = settings["max_sequence_length"], settings["max_predictions_per_seq"]
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (length, tf.int32))
    masked = dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (predictions, tf.int32))
    return {**tokens, **masked, "masked_lm_weights": (predictions, tf.float32), LABEL: (1, tf.int32)}


def made_up(settings: dict[str, Any], vocab_size: int, seed: int) -> dict[str, Array]:
    """Records of `[CLS] a [SEP] b [SEP]`, where b goes on from a, or (label 1) is any text.

    Raises:
        DataError: there is no place for two sentences, or no word.
    """
    count, length = settings["num_examples"], settings["max_sequence_length"]
    if length < SHORTEST or vocab_size <= FIRST_TOKEN:
        raise DataError(
            f"sentences are made up with max_sequence_length {SHORTEST} or more, got {length}, and a "
            f"vocab_size of {FIRST_TOKEN + 1} or more, got {vocab_size}; enlarge them, or give a data_dir"
        )
    rng = np.random.default_rng(seed)
    tokens = range(FIRST_TOKEN, vocab_size)
    texts = markov_text(count, length, tokens, seed)
    others = markov_text(count, length, tokens, seed + 1_000_000)
    records = {
        name: np.zeros((count, size), np.float32 if dtype == tf.float32 else np.int32)
        for name, (size, dtype) in _features(settings).items()
    }
    for i in range(count):
        total = int(rng.integers(length // 2, length + 1)) - 3
        cut = int(rng.integers(1, total))
        is_other = int(rng.integers(2))
        second = others[i, : total - cut] if is_other else texts[i, cut:total]
        record = np.concatenate([[CLS], texts[i, :cut], [SEP], second, [SEP]])
        records["input_ids"][i, : len(record)] = record
        records["input_mask"][i, : len(record)] = 1
        records["segment_ids"][i, cut + 2 : len(record)] = 1
        records[LABEL][i] = is_other
        _mask(rng, {name: array[i] for name, array in records.items()}, len(record), vocab_size)
    return records


def _mask(rng: np.random.Generator, record: dict[str, Array], length: int, vocab_size: int) -> None:
    """Hides 15 % of the tokens: behind MASK, or (one in ten each) behind any token or not at all."""
    ids = record["input_ids"]
    ordinary = np.flatnonzero(ids >= FIRST_TOKEN)
    wanted = min(len(record["masked_lm_ids"]), max(1, round(MASKED_FRACTION * length)))
    positions = np.sort(rng.choice(ordinary, min(wanted, len(ordinary)), replace=False))
    count = len(positions)
    record["masked_lm_positions"][:count] = positions
    record["masked_lm_ids"][:count] = ids[positions]
    record["masked_lm_weights"][:count] = 1.0
    kind = rng.random(count)
    drawn = rng.integers(FIRST_TOKEN, vocab_size, count)
    ids[positions] = np.where(kind < 0.8, MASK, np.where(kind < 0.9, drawn, ids[positions]))

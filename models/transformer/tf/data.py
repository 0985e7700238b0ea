"""Sentences and their translations: TFRecord files, or generated.

A batch is `(features, labels)`, all int32: `encoder_input_ids` and `encoder_mask` [batch, source length],
`decoder_input_ids` and `decoder_mask` [batch, target length]; the labels are the target's tokens, its inputs
are the same shifted by one position, after BEGIN. Padding is 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from models.common.data import DataError
from models.common.tf.text import from_arrays, from_tf_records, markov_text, with_label

LABEL = "labels"
BEGIN, END = 1, 2
FIRST_TOKEN = 3
"""Lower tokens are special; 0 is padding."""

Array = NDArray[np.int32]


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return shuffled, repeated batches of this task's shard of the training split."""
    return _dataset(params, "train_input", training=True)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Return the batches of this task's shard of the test split, once, in order."""
    return _dataset(params, "eval_input", training=False)


def _dataset(params: dict[str, Any], group: str, *, training: bool) -> tf.data.Dataset:
    settings = params[group]
    if settings["data_dir"] is None:
        records = generate_translations(settings, params["model"], 2 * settings["data_seed"] + training)
        dataset = from_arrays(records, settings, training=training)
    else:
        lengths = _lengths(settings)
        shapes = {name: (length, tf.int32) for name, length in lengths.items()}
        dataset = from_tf_records(settings["data_dir"], shapes, settings, training=training)
    return dataset.map(with_label(LABEL)).prefetch(tf.data.AUTOTUNE)


def _lengths(settings: dict[str, Any]) -> dict[str, int]:
    source, target = settings["src_max_sequence_length"], settings["tgt_max_sequence_length"]
    return {
        **dict.fromkeys(("encoder_input_ids", "encoder_mask"), source),
        **dict.fromkeys(("decoder_input_ids", "decoder_mask", LABEL), target),
    }


def generate_translations(settings: dict[str, Any], model: dict[str, Any], seed: int) -> dict[str, Array]:
    """Generate sentences of a Markov chain; the translation replaces each word, in the same order.

    Raises:
        DataError: There is no room for a word, or no word.
    """
    count = settings["num_examples"]
    lengths = _lengths(settings)
    longest = min(lengths["encoder_input_ids"], lengths[LABEL]) - 1
    tokens = range(FIRST_TOKEN, min(model["src_vocab_size"], model["tgt_vocab_size"]))
    if longest < 1 or not tokens:
        raise DataError(
            f"generated sentences need max_sequence_length 2 or more, got {longest + 1}, and "
            f"vocabularies of {FIRST_TOKEN + 1} or more, got {tokens.stop}; increase them, or set a data_dir"
        )
    text = markov_text(count, longest, tokens, seed)
    dictionary = FIRST_TOKEN + np.random.default_rng(0).permutation(len(tokens)).astype(np.int32)
    rng = np.random.default_rng(seed)
    words = rng.integers(max(1, longest // 2), longest + 1, count)
    place = np.arange(longest + 1)
    is_word, is_end = place < words[:, None], place == words[:, None]

    def sentence(translated: Array) -> Array:
        padded = np.pad(translated, ((0, 0), (0, 1)))
        return np.where(is_word, padded, np.where(is_end, END, 0)).astype(np.int32)

    source, target = sentence(text), sentence(dictionary[text - FIRST_TOKEN])
    mask = (is_word | is_end).astype(np.int32)
    shifted = np.pad(target, ((0, 0), (1, 0)))[:, :-1] * mask
    shifted[:, 0] = BEGIN
    arrays = {
        "encoder_input_ids": source,
        "encoder_mask": mask,
        "decoder_input_ids": shifted,
        "decoder_mask": mask,
        LABEL: target,
    }
    return {
        name: np.pad(array, ((0, 0), (0, lengths[name] - array.shape[1]))) for name, array in arrays.items()
    }

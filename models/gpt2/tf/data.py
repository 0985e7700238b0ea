"""Texts for a causal language model: TFRecord files, token files, or made up of a Markov chain.

A batch is `(features, labels)`: `input_ids` and `attention_mask` [batch, max_sequence_length] int32; labels
are the tokens that follow, of the same shape. A mask of 0 leaves a position out of the loss.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from models.common.data import DataError
from models.common.tf.text import from_arrays, from_tf_records, markov_text, with_label

LABEL = "labels"
FEATURES = ("input_ids", "attention_mask", LABEL)


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Shuffled batches of this task's shard of the training split, without end."""
    return _dataset(params, "train", training=True)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Batches of this task's shard of the test split, once, in order."""
    return _dataset(params, "eval", training=False)


def _dataset(params: dict[str, Any], split: str, *, training: bool) -> tf.data.Dataset:
    settings = params[f"{split}_input"]
    length, vocab_size = settings["max_sequence_length"], params["model"]["vocab_size"]
    data_dir = settings["data_dir"]
    if data_dir is None:
        text = markov_text(
            settings["num_examples"], length + 1, range(vocab_size), 2 * settings["data_seed"] + training
        )
        dataset = from_arrays(_records(text), settings, training=training)
    elif (path := Path(data_dir) / ("train.bin" if training else "val.bin")).exists():
        dataset = from_arrays(_records(token_rows(path, length + 1, vocab_size)), settings, training=training)
    else:
        shapes = dict.fromkeys(FEATURES, (length, tf.int32))
        dataset = from_tf_records(data_dir, shapes, settings, training=training)
    return dataset.map(with_label(LABEL)).prefetch(tf.data.AUTOTUNE)


def _records(text: NDArray[np.int32]) -> dict[str, Any]:
    return {
        "input_ids": text[:, :-1],
        "attention_mask": np.ones_like(text[:, 1:]),
        LABEL: text[:, 1:],
    }


def token_rows(path: Path, length: int, vocab_size: int) -> NDArray[np.int32]:
    """A file of unsigned 16-bit tokens as rows [records, length]; what is left at its end is not used.

    Raises:
        DataError: it has not one row, or tokens beyond the vocabulary.
    """
    tokens = np.fromfile(path, "<u2")
    count = len(tokens) // length
    if count == 0:
        raise DataError(f"'{path}' has {len(tokens)} tokens, expected at least {length}")
    if (largest := int(tokens.max())) >= vocab_size:
        raise DataError(f"'{path}' has the token {largest}, but model.vocab_size is {vocab_size}")
    return tokens[: count * length].reshape(count, length).astype(np.int32)

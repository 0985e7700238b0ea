"""Sentences with masked tokens, or questions to texts: from TFRecord files, or made up of a Markov chain.

A batch is `(features, labels)`, int32 where nothing else is said. Features are `input_ids`, `input_mask` and
`segment_ids` [batch, max_sequence_length]; for pre-training also `masked_lm_positions`, `masked_lm_ids` and
`masked_lm_weights` (float32) [batch, max_predictions_per_seq]. Unused places hold 0. Labels are
`next_sentence_labels` [batch], or the first and the last position of each answer [batch, 2].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from models.common.data import DataError
from models.common.tf.text import from_arrays, from_tf_records, markov_text

LABEL = "next_sentence_labels"
POSITIONS = ("start_positions", "end_positions")
CLS, SEP, MASK = 1, 2, 3
FIRST_TOKEN = 4
"""Tokens below are special; 0 is padding."""
SHORTEST = 10
"""Records that are made up need so many places: half of them for a pair of sentences and three marks."""
MASKED_FRACTION = 0.15
TOPICS = 2
LONGEST_ANSWER = 4
LONGEST_QUESTION = 3

Array = NDArray[Any]


def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Shuffled batches of this task's shard of the training split, without end."""
    return _dataset(params, "train_input", training=True)


def eval_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    """Batches of this task's shard of the test split, once, in order."""
    return _dataset(params, "eval_input", training=False)


def _dataset(params: dict[str, Any], group: str, *, training: bool) -> tf.data.Dataset:
    settings, model = params[group], params["model"]
    asks = model["head"] == "question_answering"
    if settings["data_dir"] is None:
        seed = 2 * settings["mask_seed"] + training
        records = (made_up_questions if asks else made_up)(settings, model["vocab_size"], seed)
        dataset = from_arrays(records, settings, training=training)
    else:
        dataset = from_tf_records(settings["data_dir"], _features(settings), settings, training=training)
    labels, shape = (POSITIONS, [2]) if asks else ((LABEL,), [])

    def split(batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        features = {name: values for name, values in batch.items() if name not in labels}
        joined = tf.concat([batch[name] for name in labels], axis=1)
        return features, tf.reshape(joined, [settings["batch_size"], *shape])

    return dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _features(settings: dict[str, Any]) -> dict[str, tuple[int, Any]]:
    length, predictions = settings["max_sequence_length"], settings["max_predictions_per_seq"]
    tokens = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (length, tf.int32))
    if predictions is None:
        return {**tokens, **dict.fromkeys(POSITIONS, (1, tf.int32))}
    masked = dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (predictions, tf.int32))
    return {**tokens, **masked, "masked_lm_weights": (predictions, tf.float32), LABEL: (1, tf.int32)}


def _empty(settings: dict[str, Any]) -> dict[str, Array]:
    """Zeros for the features of all records that are made up."""
    return {
        name: np.zeros((settings["num_examples"], size), dtype.as_numpy_dtype)
        for name, (size, dtype) in _features(settings).items()
    }


def _check_sizes(settings: dict[str, Any], vocab_size: int, words: int) -> None:
    length = settings["max_sequence_length"]
    if length < SHORTEST or vocab_size < FIRST_TOKEN + words:
        raise DataError(
            f"sentences are made up with max_sequence_length {SHORTEST} or more, got {length}, and a "
            f"vocab_size of {FIRST_TOKEN + words} or more, got {vocab_size}; enlarge them, or give a data_dir"
        )


def made_up(settings: dict[str, Any], vocab_size: int, seed: int) -> dict[str, Array]:
    """Records of `[CLS] a [SEP] b [SEP]`, where b goes on from a, or (label 1) is any text.

    Raises:
        DataError: there is no place for two sentences, or no word.
    """
    _check_sizes(settings, vocab_size, words=1)
    count, length = settings["num_examples"], settings["max_sequence_length"]
    rng = np.random.default_rng(seed)
    tokens = range(FIRST_TOKEN, vocab_size)
    texts = markov_text(count, length, tokens, seed)
    others = markov_text(count, length, tokens, seed + 1_000_000)
    records = _empty(settings)
    for i in range(count):
        total = int(rng.integers(length // 2, length + 1)) - 3
        cut = int(rng.integers(1, total))
        is_other = int(rng.integers(2))
        second = others[i, : total - cut] if is_other else texts[i, cut:total]
        record = {name: array[i] for name, array in records.items()}
        _write(record, texts[i, :cut], second)
        record[LABEL][:] = is_other
        _mask(rng, record, total + 3, vocab_size)
    return records


def _write(record: dict[str, Array], first: Array, second: Array) -> None:
    """Writes `[CLS] first [SEP] second [SEP]` into an empty record."""
    tokens = np.concatenate([[CLS], first, [SEP], second, [SEP]])
    record["input_ids"][: len(tokens)] = tokens
    record["input_mask"][: len(tokens)] = 1
    record["segment_ids"][len(first) + 2 : len(tokens)] = 1


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


def made_up_questions(settings: dict[str, Any], vocab_size: int, seed: int) -> dict[str, Array]:
    """Records of `[CLS] question [SEP] text [SEP]`; the text tells about two topics, the question names one.

    Each topic has a third of the words and the rest of the text the other third, so that the answer is where
    words of the question's topic stand. One half of the text tells about either topic.

    Raises:
        DataError: there is no place for question and text, or a topic has no word.
    """
    _check_sizes(settings, vocab_size, words=1 + TOPICS)
    count, length = settings["num_examples"], settings["max_sequence_length"]
    rng = np.random.default_rng(seed)
    words = (vocab_size - FIRST_TOKEN) // (1 + TOPICS)
    texts, *topics = (
        markov_text(count, length, range(start, start + words), seed + 1_000_000 * start)
        for start in range(FIRST_TOKEN, FIRST_TOKEN + words * (1 + TOPICS), words)
    )
    records = _empty(settings)
    for i in range(count):
        total = int(rng.integers(length // 2 + 1, length + 1)) - 3
        asked = int(rng.integers(1, min(LONGEST_QUESTION, total - TOPICS) + 1))
        text, part = texts[i, : total - asked], (total - asked) // TOPICS
        for place, topic in zip(rng.permutation(TOPICS), rng.permutation(TOPICS), strict=True):
            size = int(rng.integers(1, min(LONGEST_ANSWER, part) + 1))
            start = place * part + int(rng.integers(part - size + 1))
            text[start : start + size] = topics[topic][i, :size]
        # What is asked for is the topic that the text was given last.
        record = {name: array[i] for name, array in records.items()}
        _write(record, topics[topic][i, length - asked :], text)
        record["start_positions"][:] = asked + 2 + start
        record["end_positions"][:] = asked + 1 + start + size
    return records

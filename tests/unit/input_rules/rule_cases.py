"""Pipelines that the rules speak of, one for each finding, and what tests of rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from input_rules.findings import Finding
from input_rules.pipeline import Pipeline
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.pipeline import trace

AUTOTUNE = tf.data.AUTOTUNE


RECORDS = np.zeros((100, 4), np.float32)


def slices(array: Any = RECORDS) -> Any:
    return tf.data.Dataset.from_tensor_slices(array)


def good() -> Any:
    dataset = slices().shuffle(100, seed=1).repeat().batch(8, drop_remainder=True)
    return dataset.map(tf.nn.relu, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)


def finish(dataset: Any) -> Any:
    return dataset.repeat().batch(8, drop_remainder=True).prefetch(AUTOTUNE)


def pipeline_of(make: Callable[[], Any]) -> Pipeline:
    return trace(make).pipeline


def found(make: Callable[[], Any], **context: Any) -> dict[str, Finding]:
    return {finding.id: finding for finding in find(pipeline_of(make), Context(**context))}


def from_generator() -> Any:
    spec = tf.TensorSpec([4], tf.float32)
    return tf.data.Dataset.from_generator(lambda: iter(RECORDS), output_signature=spec)


def files() -> Any:
    return tf.data.Dataset.from_tensor_slices([f"/data/{number}" for number in range(5)])


def parsed(dataset: Any, **settings: Any) -> Any:
    return dataset.map(lambda record: tf.io.decode_png(record)[:4, 0, 0], **settings)


CASES: dict[str, Callable[[], Any]] = {
    "shard-after-shuffle": lambda: finish(slices().shuffle(100, seed=1).shard(2, 0)),
    "shard-after-batch": lambda: slices().repeat().batch(8, drop_remainder=True).shard(2, 0).prefetch(2),
    "shard-late": lambda: finish(slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE).shard(2, 0)),
    "shuffle-after-batch": lambda: slices().repeat().batch(8, drop_remainder=True).shuffle(9, 1).prefetch(2),
    "shuffle-buffer-small": lambda: finish(slices().shuffle(79, seed=1)),
    "drop-remainder-missing": lambda: slices().repeat().batch(8).prefetch(2),
    "map-before-batch": lambda: finish(slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE)),
    "repeat-missing": lambda: slices().batch(8, drop_remainder=True).prefetch(2),
    "repeat-finite": lambda: slices().repeat(3).batch(8, drop_remainder=True).prefetch(2),
    "prefetch-missing": lambda: slices().repeat().batch(8, drop_remainder=True),
    "prefetch-not-last": lambda: finish(slices()).map(tf.nn.relu, num_parallel_calls=AUTOTUNE),
    "prefetch-empty": lambda: slices().repeat().batch(8, drop_remainder=True).prefetch(0),
    "parallel-calls-missing": lambda: finish(slices()).map(tf.nn.relu).prefetch(2),
    "parallel-calls-fixed": lambda: finish(slices()).map(tf.nn.relu, num_parallel_calls=4).prefetch(2),
    "cycle-length-fixed": lambda: finish(
        parsed(
            files().interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=AUTOTUNE),
            num_parallel_calls=AUTOTUNE,
        )
    ),
    "flat-map-of-files": lambda: finish(files().flat_map(tf.data.TextLineDataset)),
    "parallel-reads-missing": lambda: finish(tf.data.TextLineDataset(["/data/1", "/data/2"])),
    "cache-after-random": lambda: finish(slices().shuffle(100, seed=1).cache()),
    "python-generator": lambda: finish(from_generator()),
    "python-function": lambda: finish(
        slices().map(lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [4]))
    ),
    "order-not-deterministic": lambda: finish(
        slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE, deterministic=False)
    ),
    "random-state": lambda: finish(slices().map(lambda x: x + tf.random.normal([4]))),
    "shuffle-without-seed": lambda: finish(slices().shuffle(100)),
    "dtype-wide": lambda: finish(slices(RECORDS.astype(np.float64))),
}

"""A TensorFlow program of random fault tests: `tensorflow_training.py CS_IP MODEL_DIR LAST_STEP`.

A small network with dropout and Adam, so that a wrong random number, a lost record or an optimizer state of
another step changes the final weights. STEP_S in the environment is the time in which the workers together
provide a batch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, import_tensorflow, report_errors

import_tensorflow()
import tensorflow as tf  # noqa: E402
from tensorflow.python.data.experimental.ops.testing import sleep  # noqa: E402

v1 = tf.compat.v1
BATCH, FEATURES, CLASSES, SAVE_EVERY = 4, 8, 3, 10
STEP_S = float(os.environ.get("STEP_S", "0"))


def input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(1_000_000)
    readers = 1
    if input_context is not None:
        readers = input_context.num_input_pipelines
        numbers = numbers.shard(readers, input_context.input_pipeline_id)

    def read(number: Any) -> tuple[Any, Any]:
        return tf.random.stateless_normal([FEATURES], [number, 5]), tf.cast(number % CLASSES, tf.int32)

    records = numbers.shuffle(64, seed=5).map(read).batch(BATCH, drop_remainder=True)
    if STEP_S:  # not a Python function, with which TensorFlow could not save the position of the input
        records = records.apply(sleep(round(1e6 * STEP_S * readers)))
    return records


def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
    hidden = v1.layers.dense(features, 16, tf.nn.relu, name="hidden")
    hidden = v1.layers.dropout(hidden, 0.2, training=True)
    logits = v1.layers.dense(hidden, CLASSES, name="logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


@report_errors()
def main(cs_ip: str, model_dir: str, last_step: str) -> None:
    config = CSRunConfig(
        cs_ip=cs_ip,
        tf_random_seed=1,
        save_checkpoints_steps=SAVE_EVERY,
        log_step_count_steps=SAVE_EVERY,
        num_csx=int(os.environ["NUM_CSX"]),
        input_shards=3,
    )
    estimator = CerebrasEstimator(model_fn, model_dir, config=config, compile_dir=os.environ["COMPILE_DIR"])
    estimator.train(input_fn, max_steps=int(last_step))


if __name__ == "__main__":
    main(*sys.argv[1:])

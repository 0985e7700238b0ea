"""A user's program for fault tests: a small model whose input misbehaves as FAULT in the environment says.

`faulty_program.py` is the same for tests in which TensorFlow is not the point.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import numpy as np

from estimator import CerebrasEstimator, CSRunConfig, EstimatorSpec, import_tensorflow, report_errors

import_tensorflow()
import tensorflow as tf  # noqa: E402

v1 = tf.compat.v1
FAULT = os.environ.get("FAULT", "")
ROLE = os.environ.get("CSRUN_ROLE", "chief") + os.environ.get("CSRUN_TASK_INDEX", "0")


def records() -> Iterator[tuple[np.ndarray, np.int32]]:
    generator = np.random.default_rng(1)
    for number in range(1_000_000):
        if number == 20 * 8 and ROLE == "worker0" and FAULT == "raise":
            raise RuntimeError("record 160 cannot be parsed")
        if number == 0 and FAULT == "asked early":
            os.kill(os.getpid(), signal.SIGUSR1)
        if FAULT == "slow":
            time.sleep(0.002)
        yield generator.random(4, dtype=np.float32), np.int32(number % 3)


def input_fn() -> tf.data.Dataset:
    signature = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((), tf.int32))
    dataset = tf.data.Dataset.from_generator(records, output_signature=signature)
    return dataset.batch(8, drop_remainder=True)


def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> EstimatorSpec:
    weights = v1.get_variable("weights", [4, 3], initializer=v1.glorot_uniform_initializer(seed=1))
    logits = tf.matmul(features, weights)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


@report_errors()
def main(cs_ip: str, model_dir: str, max_steps: str) -> None:
    save_every = int(os.environ.get("SAVE_EVERY", "10"))
    config = CSRunConfig(
        cs_ip=cs_ip or None, tf_random_seed=1, save_checkpoints_steps=save_every, log_step_count_steps=10
    )
    limit = {os.environ.get("LIMIT", "max_steps"): int(max_steps)}
    CerebrasEstimator(model_fn, model_dir, config=config).train(input_fn, **limit)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A user's program for fault tests: a small model whose input misbehaves as FAULT in the environment says.

`faulty_program.py` is the same for tests in which TensorFlow is not the point.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from estimator import CerebrasEstimator, CSRunConfig, import_tensorflow, report_errors

import_tensorflow()
import tensorflow as tf  # noqa: E402

sys.path.append(str(Path(__file__).parents[3]))
from tests.programs.tf.linear_classifier import BATCH, CLASSES, FEATURES, linear_classifier  # noqa: E402

FAULT = os.environ.get("FAULT", "")
ROLE = os.environ.get("CSRUN_ROLE", "chief") + os.environ.get("CSRUN_TASK_INDEX", "0")


def records() -> Iterator[tuple[np.ndarray, np.int32]]:
    generator = np.random.default_rng(1)
    for number in range(1_000_000):
        if number == 20 * BATCH and ROLE == "worker0" and FAULT == "raise":
            raise RuntimeError("record 160 cannot be parsed")
        if number == 0 and FAULT == "asked early":
            os.kill(os.getpid(), signal.SIGUSR1)
        if FAULT == "slow":
            time.sleep(0.002)
        yield generator.random(FEATURES, dtype=np.float32), np.int32(number % CLASSES)


def input_fn() -> tf.data.Dataset:
    signature = (tf.TensorSpec((FEATURES,), tf.float32), tf.TensorSpec((), tf.int32))
    dataset = tf.data.Dataset.from_generator(records, output_signature=signature)
    return dataset.batch(BATCH, drop_remainder=True)


@report_errors()
def main(cs_ip: str, model_dir: str, max_steps: str) -> None:
    save_every = int(os.environ.get("SAVE_EVERY", "10"))
    config = CSRunConfig(
        cs_ip=cs_ip or None, tf_random_seed=1, save_checkpoints_steps=save_every, log_step_count_steps=10
    )
    limit = {os.environ.get("LIMIT", "max_steps"): int(max_steps)}
    CerebrasEstimator(linear_classifier(), model_dir, config=config).train(
        input_fn, **limit, use_cs=bool(cs_ip)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

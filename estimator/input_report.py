"""What a run can tell of its input function before it reads it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import cs_runtime.input_source
from csrun.schedulers.tasks import worker_config, worker_variables
from csrun.tasks.environment import variables
from estimator.input import InputSource, names_by
from estimator.modes import ModeKeys

PATIENCE_S = 2.0
"""A run does not call an input function that takes longer as other workers would."""


def log_report(source: InputSource, *, shared: bool = True) -> None:
    """Logs what the input function could do better, see `cs_runtime.input_source.log_report`.

    Args:
        source: The input of the run.
        shared: Whether several workers may read it; each has to read a part of its own then.
    """
    from input_rules.tf.inspection import inspect

    cs_runtime.input_source.log_report(
        lambda: inspect(
            lambda workers, index: _made_by(source, workers, index),
            workers=source.num_shards,
            training=source.mode == ModeKeys.TRAIN,
            shared=shared,
            seed=source.config.tf_random_seed,
            names=lambda spec: names_by(source, spec),
            patience_s=PATIENCE_S,
        )
    )


def _made_by(source: InputSource, workers: int, index: int) -> Any:
    """What the input function gives one of several workers; with one worker, what it gives this process."""
    if workers == 1:
        return source.call()
    config = worker_config(workers, index)
    with variables(worker_variables(os.environ, workers, index)):
        return replace(source, tf_config=config, num_shards=workers, shard=index).call()

"""The Input Function Report of a run, in its log."""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from csrun.environment import variables
from csrun.roles import tf_config
from csrun.schedulers.registry import task_variables
from estimator.input import InputSource, names_by
from estimator.modes import ModeKeys

log = logging.getLogger("estimator")

PATIENCE_S = 2.0
"""A run does not call an input function that takes longer as other workers would."""


def log_report(source: InputSource, *, shared: bool = True) -> None:
    """Logs what the input function could do better. A report never ends a run.

    Args:
        source: The input of the run.
        shared: Whether several workers may read it; each has to read a part of its own then.

    An input function that raises does so again when the run reads its input, which tells the user. One that
    draws random numbers while it is called gives the run the batches that it would give without a report.
    """
    from input_rules.report import lines
    from input_rules.tf.inspection import inspect

    try:
        with _random_numbers_kept():
            inspection = inspect(
                lambda workers, index: _made_by(source, workers, index),
                workers=source.num_shards,
                training=source.mode == ModeKeys.TRAIN,
                shared=shared,
                seed=source.config.tf_random_seed,
                names=lambda spec: names_by(source, spec),
                patience_s=PATIENCE_S,
            )
    except Exception as error:
        log.debug("no Input Function Report: %s: %s", type(error).__name__, error)
        return
    for level, line in lines(inspection.findings, ["python", *sys.orig_argv[1:]], inspection.notes):
        log.log(level, "%s", line)


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """The generators that programs share go on from where they are now, whatever is drawn inside."""
    plain, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)


def _made_by(source: InputSource, workers: int, index: int) -> Any:
    """What the input function gives one of several workers; with one worker, what it gives this process."""
    if workers == 1:
        return source.call()
    config = tf_config(index + 1, ["localhost"] * (workers + 1))
    with variables(task_variables(os.environ, index + 1, workers + 1)):
        return replace(source, tf_config=config, num_shards=workers, shard=index).call()

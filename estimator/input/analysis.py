"""Hands the input function to cs_input_analyzer, where that has started the user's program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import cs_runtime.input_source
from csrun.schedulers.tasks import worker_config, worker_variables
from csrun.tasks.environment import environment_variables
from estimator.input.dataset import InputSource, describe, names_by, read
from estimator.spec import ModeKeys
from input_rules.input_export import InputProgram, Shard, export_input, export_requested


def hand_over(source: InputSource, artifact_dirs: tuple[Path, ...], *, compiles: bool = False) -> None:
    """Gives the input function to the analyzer that has started this process; nothing without one.

    Ends the process, except before a compilation (`compiles`) whose report the analyzer wants.

    Args:
        source: the input of the run that would begin here.
        artifact_dirs: folders with the artifacts of compilations.
        compiles: a compilation would begin here, not a training.
    """
    if not export_requested():
        return

    def build(shard: Shard) -> Any:
        with _told(shard):
            return _as_worker(source, shard).call()

    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        return read(_as_worker(source, shard), source.config.tf_random_seed, 0)

    @cache
    def names() -> tuple[str, ...]:
        # Refuses what cannot be streamed, as a run does.
        return tuple(component.name for component in describe(source).components)

    program = InputProgram(
        framework="tensorflow",
        function=source.input_fn,
        build=build,
        batches=batches,
        component_names=names,
        artifact_dirs=artifact_dirs,
        seed=source.config.tf_random_seed,
        role=_told,
    )
    export_input(program, compiles=compiles)


def _told(shard: Shard) -> AbstractContextManager[None]:
    """What a worker finds in its environment, for what it reads there later, in any thread."""
    return environment_variables(worker_variables(os.environ, shard.count, shard.index))


def _as_worker(source: InputSource, shard: Shard) -> InputSource:
    """The input as one worker of a job reads it; alone, as a job of one task does."""
    config = worker_config(shard.count, shard.index)
    return replace(source, tf_config=config, num_shards=shard.count, shard=shard.index)


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
    with environment_variables(worker_variables(os.environ, workers, index)):
        return replace(source, tf_config=config, num_shards=workers, shard=index).call()

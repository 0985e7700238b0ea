"""Analysis of the input function: sending it to cs_input_analyzer, and the report in the log of a run."""

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
from estimator.input.dataset import InputSource, describe, read, spec_component_names
from estimator.spec import ModeKeys
from input_rules.input_export import InputProgram, Shard, export_input, export_requested

# If a call of the input function takes longer, a run does not call it again as other workers would.
SLOW_CALL_S = 2.0


def export_to_analyzer(
    source: InputSource, artifact_dirs: tuple[Path, ...], *, compiles: bool = False
) -> None:
    """If cs_input_analyzer started this process, send it the input function; otherwise do nothing.

    This ends the process, except before a compile whose report the analyzer needs.

    Args:
        source: The input of the run that would start here.
        artifact_dirs: Folders with compile artifacts.
        compiles: A compile would start here, not a training run.
    """
    if not export_requested():
        return

    def build(shard: Shard) -> Any:
        with _worker_environment(shard):
            return _as_worker(source, shard).call()

    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        return read(_as_worker(source, shard), source.config.tf_random_seed, 0)

    @cache
    def names() -> tuple[str, ...]:
        # As in a run, `describe` refuses components that cannot be streamed.
        return tuple(component.name for component in describe(source).components)

    program = InputProgram(
        framework="tensorflow",
        function=source.input_fn,
        build=build,
        batches=batches,
        component_names=names,
        artifact_dirs=artifact_dirs,
        seed=source.config.tf_random_seed,
        role=_worker_environment,
    )
    export_input(program, compiles=compiles)


def _worker_environment(shard: Shard) -> AbstractContextManager[None]:
    """Set the environment variables of a worker, which the input function may read later, in any thread."""
    return environment_variables(worker_variables(os.environ, shard.count, shard.index))


def _as_worker(source: InputSource, shard: Shard) -> InputSource:
    """Return the input as one worker of a job reads it."""
    config = worker_config(shard.count, shard.index)
    return replace(source, tf_config=config, num_shards=shard.count, shard=shard.index)


def log_report(source: InputSource, *, shared: bool = True) -> None:
    """Log the Input Function Report of a run, before it reads its input.

    Args:
        source: The input of the run.
        shared: Several workers may read the input, so each has to read its own part.
    """
    from input_rules.tf.inspection import inspect

    def call_as_worker(workers: int, index: int) -> Any:
        if workers == 1:
            return source.call()  # in this process, with its own environment
        config = worker_config(workers, index)
        with environment_variables(worker_variables(os.environ, workers, index)):
            return replace(source, tf_config=config, num_shards=workers, shard=index).call()

    cs_runtime.input_source.log_report(
        lambda: inspect(
            call_as_worker,
            workers=source.num_shards,
            training=source.mode == ModeKeys.TRAIN,
            shared=shared,
            seed=source.config.tf_random_seed,
            names=lambda spec: spec_component_names(source, spec),
            patience_s=SLOW_CALL_S,
        )
    )

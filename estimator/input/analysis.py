"""Analysis of the input function: sending it to cs_input_analyzer, and the report in the log of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cs_runtime import input_source
from csrun.schedulers.tasks import worker_config
from estimator.input.dataset import InputSource, describe, read, spec_component_names
from estimator.spec import ModeKeys
from input_rules.input_export import InputProgram, Shard


def export_to_analyzer(
    source: InputSource, artifact_dirs: tuple[Path, ...], *, compiles: bool = False
) -> None:
    """If cs_input_analyzer has started this process, send it the input function (`cs_runtime.input_source`).

    Args:
        source: The input of the run that would start here.
        artifact_dirs: Folders with compile artifacts.
        compiles: A compile would start here, not a training run.
    """
    input_source.export_to_analyzer(lambda: _program(source, artifact_dirs), compiles=compiles)


def _program(source: InputSource, artifact_dirs: tuple[Path, ...]) -> InputProgram:
    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        return read(_as_worker(source, shard), source.config.tf_random_seed, 0)

    @cache
    def names() -> tuple[str, ...]:
        # As in a run, `describe` refuses components that cannot be streamed.
        return tuple(component.name for component in describe(source).components)

    return InputProgram(
        framework="tensorflow",
        function=source.input_fn,
        build=lambda shard: _call_as_worker(source, shard),
        batches=batches,
        component_names=names,
        artifact_dirs=artifact_dirs,
        seed=source.config.tf_random_seed,
        role=input_source.worker_environment,
    )


def _call_as_worker(source: InputSource, shard: Shard) -> Any:
    with input_source.worker_environment(shard):
        return _as_worker(source, shard).call()


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
        return _call_as_worker(source, Shard(workers, index))

    input_source.log_report(
        lambda: inspect(
            call_as_worker,
            workers=source.num_shards,
            training=source.mode == ModeKeys.TRAIN,
            shared=shared,
            seed=source.config.tf_random_seed,
            names=lambda spec: spec_component_names(source, spec),
            patience_s=input_source.SLOW_INPUT_S,
        )
    )

"""Calls of the estimator that run on the CS system: the only module that calls `cs_runtime`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cs_runtime.inference
import cs_runtime.training
from cs_runtime.failures import noted_failures
from cs_runtime.settings import InputPosition, RunSettings
from estimator import checkpoints, cpu, tasks
from estimator.errors import UnsupportedOnCsError
from estimator.events import EventWriter, StepEvents
from estimator.files import plain
from estimator.front_end import TensorFlowFrontEnd, prediction_name
from estimator.run_config import CSRunConfig

log = logging.getLogger("estimator")


@dataclass(frozen=True)
class Place:
    """Where a run happens and what the user calls it.

    Attributes:
        command: The user's word for the run: `train`, `eval`, `predict`, `compile_only`, `validate_only`.
        model_dir: Where checkpoints and summaries go.
        compile_dir: Where artifacts go; None for `model_dir`.
        config: The estimator's configuration.
        params: The estimator's parameters.
        input_position: Who leaves out used batches where a training continues.
    """

    command: str
    model_dir: Path
    compile_dir: Path | None
    config: CSRunConfig
    params: Mapping[str, Any]
    input_position: InputPosition = "toolkit"


def compile_only(front_end: TensorFlowFrontEnd, place: Place, validate_only: bool) -> None:
    """Validates or compiles; needs no CS system, but asks the one at `cs_ip` for its fabric."""
    from cs_runtime.compile import compile_program, validate_program  # late: workers have no compiler

    settings = _settings(front_end, place)
    if validate_only:
        validate_program(front_end, settings)
    else:
        compile_program(front_end, settings)


def train(front_end: TensorFlowFrontEnd, place: Place, steps: int | None, max_steps: int | None) -> None:
    """Trains `steps` more steps, or to the global step `max_steps`; streams where this task is a worker."""
    settings = _settings(front_end, place, steps=steps, last_step=max_steps)
    with EventWriter(place.model_dir) as writer:
        events = StepEvents(writer, place.config.save_summary_steps, settings.batch_size)
        try:
            cs_runtime.training.train(front_end, settings, events)
        finally:
            front_end.close()


def evaluate(
    front_end: TensorFlowFrontEnd,
    place: Place,
    steps: int,
    checkpoint: str | None,
    name: str | None,
) -> dict[str, Any]:
    """Metrics over `steps` batches; empty in a worker.

    The system keeps the running totals of the metrics; their values are computed here, from the last totals.
    A host call that it cannot compute runs here, after every step.
    """
    results: dict[str, Any] = {}
    done = 0
    try:
        settings = _settings(front_end, place)
        for outputs in cs_runtime.inference.run(
            front_end, settings, steps, lambda state: results.update(front_end.metric_values(state))
        ):
            front_end.add_to_metrics(outputs)
            done += 1
    finally:
        front_end.close()
    if not results:
        return {}
    log.info("evaluated %d batches", done)
    if done < steps:
        log.warning("the input ended after %d of %d batches", done, steps)
    results["global_step"] = checkpoints.step_of(checkpoints.chosen(checkpoint, place.model_dir))
    return cpu.report(place.model_dir, results, name)


def predict(
    front_end: TensorFlowFrontEnd, place: Place, steps: int | None
) -> Iterator[dict[str, np.ndarray]]:
    """Predictions of one batch after the other; none in a worker."""
    try:
        for outputs in cs_runtime.inference.run(front_end, _settings(front_end, place), steps):
            named = {prediction_name(name): np.asarray(value) for name, value in outputs.items()}
            yield {name: value for name, value in named.items() if name is not None}
    finally:
        front_end.close()


def steps_for_samples(front_end: TensorFlowFrontEnd, num_samples: int | None) -> int | None:
    """Number of batches that hold so many samples; None for all of the input.

    Raises:
        UnsupportedOnCsError: not a positive number.
    """
    if num_samples is None:
        return None
    if num_samples <= 0:
        raise UnsupportedOnCsError(f"num_samples must be > 0 or None, got {num_samples}")
    return -(-num_samples // front_end.batch_size)


def _batch_size(front_end: TensorFlowFrontEnd, place: Place) -> int:
    """The batch size, for which the input is built: what is wrong with it shows here first."""
    if not tasks.is_chief():
        return front_end.batch_size
    with noted_failures(place.compile_dir or place.model_dir):
        return front_end.batch_size


def _settings(
    front_end: TensorFlowFrontEnd,
    place: Place,
    steps: int | None = None,
    last_step: int | None = None,
) -> RunSettings:
    config = place.config
    return RunSettings(
        mode=place.command,
        model_dir=place.model_dir,
        batch_size=_batch_size(front_end, place),
        compile_dir=place.compile_dir,
        cs_ip=config.cs_ip,
        steps=steps,
        last_step=last_step,
        save_every_steps=config.save_checkpoints_steps,
        save_every_s=config.save_checkpoints_secs,
        log_every_steps=config.log_step_count_steps,
        seed=config.tf_random_seed,
        precision=config.precision,
        input_position=place.input_position,
        params=plain(place.params),
    )

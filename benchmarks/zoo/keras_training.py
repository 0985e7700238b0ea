"""Trains Keras models by Keras, and through KerasEstimator as a program of a user does."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.architecture import SEED, STEPS, SkippedError, Workload
from benchmarks.zoo.training import (
    LEARNING_RATE,
    MOMENTUM,
    Difference,
    Reference,
    State,
    Trained,
    all_finite,
    difference,
    of_worker,
    preload_compiler,
)


def preload() -> None:
    """Imports what all trainings need, before processes are forked; starts no thread."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in ("estimator", "estimator.cs.run", "estimator.cs.keras_program"):
        import_module(name)
    preload_compiler()


def state_of(model: Any) -> State:
    """Weights of a model by their paths."""
    return {variable.path: np.array(variable) for variable in model.weights}


def compile_model(model: Any) -> None:
    """Give a model of images the optimizer and the loss that it is trained with."""
    import keras

    model.compile(
        keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


def _set_state(model: Any, state: State) -> None:
    for variable in model.weights:
        variable.assign(state[variable.path])
    for variable in model.optimizer.variables:
        if variable.path != "sgd/learning_rate":
            variable.assign(np.zeros_like(np.array(variable)))


def _train_on_cpu(workload: Workload, first: State) -> Trained:
    """Trains the model by Keras, and gives it its first weights back."""
    model = workload.model
    model.optimizer.build(model.trainable_variables)
    _set_state(model, first)
    losses = [float(model.train_on_batch(*batch, return_dict=True)["loss"]) for batch in workload.batches]
    # An estimator logs means since the start of the run, as `fit` does.
    means = [float(np.mean(losses[: count + 1])) for count in range(len(losses))]
    trained = Trained(means, state_of(model))
    _set_state(model, first)
    return trained


def expected(workload: Workload) -> Reference:
    """Keras' training.

    The statistics of batch normalization are fixed where they make the training ill-conditioned, as over the
    few values that the last layers have of a small image.

    Raises:
        SkippedError: the loss overflows.
    """
    reference = _reference(workload)
    if reference.rounding.is_ill_conditioned:
        _fix_statistics(workload.model)
        reference = _reference(workload)
    return reference


def _reference(workload: Workload) -> Reference:
    first = state_of(workload.model)
    trained = _train_on_cpu(workload, first)
    if not all_finite(trained):
        raise SkippedError("the loss overflows within five steps of Keras")
    return Reference((trained,), _rounding(workload, first, trained))


def _fix_statistics(model: Any) -> None:
    """Let batch normalization use its moving statistics, as Keras does for layers that are not trained."""
    import keras

    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    compile_model(model)


def _rounding(workload: Workload, first: State, trained: Trained) -> Difference:
    """Return the drift of Keras' training when the last bits of all weights change."""
    generator = np.random.default_rng(SEED)
    changed = {
        name: (value * (1 + 2**-23 * generator.normal(size=value.shape))).astype(value.dtype)
        for name, value in first.items()
    }
    found = _train_on_cpu(workload, changed)
    _set_state(workload.model, first)
    return difference(first, trained, found)


def train_on_system(
    workload: Workload, model_dir: Path, execution: str = "pipelined", validate_only: bool = False
) -> Trained:
    """Trains the model on the CS system that the environment names.

    Args:
        workload: The model and its batches. The model gets the trained weights.
        model_dir: For the files of the run.
        execution: "pipelined" or "weight_streaming".
        validate_only: Trace and check the step, and train nothing.
    """
    import tensorflow as tf

    from estimator import CSRunConfig, KerasEstimator

    def input_fn(params: dict[str, Any], input_context: Any = None) -> Any:
        rank, workers = 0, 1
        if input_context is not None:
            rank, workers = input_context.input_pipeline_id, input_context.num_input_pipelines
        columns = zip(*of_worker(workload.batches, rank, workers), strict=True)
        return tf.data.Dataset.from_tensor_slices(tuple(np.stack(column) for column in columns))

    config = CSRunConfig(cs_ip=os.environ.get("CS_IP"), execution=execution, save_summary_steps=1)
    estimator = KerasEstimator(workload.model, model_dir, config=config)
    if validate_only:
        estimator.compile(input_fn, validate_only=True)
        return Trained([], {})
    estimator.train(input_fn, max_steps=STEPS)
    return Trained(_losses(model_dir), state_of(workload.model))


def _losses(model_dir: Path) -> list[float]:
    """The losses that a run has written for TensorBoard."""
    import tensorflow as tf

    events = [
        event
        for path in model_dir.glob("events.out.tfevents.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
    ]
    logged = sorted((e.step, v.simple_value) for e in events for v in e.summary.value if v.tag == "loss")
    return [value for _, value in logged]

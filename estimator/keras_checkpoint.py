"""A checkpoint of a training on the CS system in a Keras model."""

from __future__ import annotations

import logging
from typing import Any

from estimator import checkpoints
from estimator.errors import CheckpointReadError

log = logging.getLogger("estimator")

_STEP = "global_step"


def load_into(model: Any, prefix: str) -> None:
    """Puts the values of a checkpoint into a Keras model, and into its optimizer where it is compiled.

    Variables that the checkpoint lacks keep their values, unless they are trained: those of layers that the
    step does not use.

    Raises:
        CheckpointReadError: it cannot be read, or is of another model; the model is as it was.
    """
    from cgc.importers.tensorflow import keras_variables

    variables = keras_variables(model)
    with checkpoints.reading(prefix) as reader:
        shapes = reader.get_variable_to_shape_map()
        _check(model, prefix, variables, shapes)
        for name, variable in variables.items():
            if name in shapes:
                variable.assign(reader.get_tensor(name))
        iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
        if iterations is not None and _STEP in shapes and not _has_own_count(variables, iterations, shapes):
            iterations.assign(reader.get_tensor(_STEP))
    log.info("Restoring parameters from %s", prefix)


def _check(model: Any, prefix: str, variables: dict[str, Any], shapes: dict[str, Any]) -> None:
    handles = {id(variable.handle): name for name, variable in variables.items()}
    trained = [v if hasattr(v, "handle") else v.value for v in model.trainable_variables]
    unnamed = [v for v in trained if id(v.handle) not in handles]
    if unnamed:
        raise CheckpointReadError(
            prefix,
            f"several variables of the model are called '{unnamed[0].name}'; give layers names of their own",
        )
    lacking = [handles[id(v.handle)] for v in trained if handles[id(v.handle)] not in shapes]
    if lacking:
        raise CheckpointReadError(prefix, f"it lacks the variables {', '.join(lacking)}")
    for name, variable in variables.items():
        if name in shapes and not variable.shape.is_compatible_with(shapes[name]):
            raise CheckpointReadError(
                prefix,
                f"variable '{name}' has the shape {tuple(shapes[name])} in it, "
                f"the model's has {tuple(variable.shape.as_list())}",
            )


def _has_own_count(variables: dict[str, Any], iterations: Any, shapes: dict[str, Any]) -> bool:
    """Whether the checkpoint has the optimizer's count beside that of the steps."""
    holder = iterations if hasattr(iterations, "handle") else iterations.value
    return any(v.handle is holder.handle and name in shapes for name, v in variables.items())

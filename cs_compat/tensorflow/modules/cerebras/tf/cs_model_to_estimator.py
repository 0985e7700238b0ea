"""Keras models as estimators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from estimator import EstimatorSpec, KerasEstimator, keras_model_fn
from estimator.config import as_cs_config


def KerasModelToCerebrasEstimator(  # noqa: N802 - the original name
    model: Any, model_dir: str | Path | None = None, config: Any = None, **arguments: Any
) -> KerasEstimator:
    """An estimator for a compiled Keras model; further arguments are those of `estimator.KerasEstimator`.

    As in `CerebrasEstimator`, the program is in charge of its input when a training continues.
    """
    own = as_cs_config(config)
    position = own.input_position or "program"
    return KerasEstimator(model, model_dir, config=own.replace(input_position=position), **arguments)


def KerasModelToModelFn(keras_model: Any) -> Callable[..., EstimatorSpec]:  # noqa: N802 - the original name
    """A `model_fn(features, labels, mode, params)` for a compiled Keras model, see `keras_model_fn`."""
    return keras_model_fn(keras_model)

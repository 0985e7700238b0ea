"""Keras models as estimators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from estimator import EstimatorSpec, KerasEstimator, keras_model_fn


def KerasModelToCerebrasEstimator(  # noqa: N802 - the original name
    model: Any, model_dir: str | Path | None = None, config: Any = None, **arguments: Any
) -> KerasEstimator:
    """An estimator for a compiled Keras model; further arguments are those of `estimator.KerasEstimator`."""
    return KerasEstimator(model, model_dir, config=config, **arguments)


def KerasModelToModelFn(keras_model: Any) -> Callable[..., EstimatorSpec]:  # noqa: N802 - the original name
    """A `model_fn(features, labels, mode, params)` for a compiled Keras model, see `keras_model_fn`."""
    return keras_model_fn(keras_model)

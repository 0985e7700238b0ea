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
    """Make an estimator of a compiled Keras model; other arguments are those of `estimator.KerasEstimator`.

    As with `CerebrasEstimator`, the program skips used batches itself when training resumes.
    """
    own = as_cs_config(config)
    position = own.input_position or "program"
    return KerasEstimator(model, model_dir, config=own.replace(input_position=position), **arguments)


def KerasModelToModelFn(keras_model: Any) -> Callable[..., EstimatorSpec]:  # noqa: N802 - the original name
    """Make a `model_fn(features, labels, mode, params)` of a compiled Keras model."""
    return keras_model_fn(keras_model)

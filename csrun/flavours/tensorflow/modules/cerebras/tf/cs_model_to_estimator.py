"""Keras models as estimators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator import KerasEstimator


def KerasModelToCerebrasEstimator(  # noqa: N802 - the original name
    model: Any, model_dir: str | Path | None = None, config: Any = None, **arguments: Any
) -> KerasEstimator:
    """An estimator for a compiled Keras model; further arguments are those of `estimator.KerasEstimator`."""
    return KerasEstimator(model, model_dir, config=config, **arguments)

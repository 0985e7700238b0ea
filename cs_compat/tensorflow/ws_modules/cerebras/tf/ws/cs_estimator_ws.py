"""The estimator for weight streaming, under its original name."""

from __future__ import annotations

from typing import Any

from cerebras.tf import cs_estimator  # type: ignore[import-not-found]  # in another folder

from estimator.config import as_cs_config


class CerebrasEstimator(cs_estimator.CerebrasEstimator):  # type: ignore[misc]
    """`cerebras.tf.cs_estimator.CerebrasEstimator` with weight streaming.

    Args:
        model_fn: As for that class, as are the other arguments.
        config: The configuration; its `execution` is ignored.
    """

    def __init__(self, model_fn: Any, model_dir: Any = None, config: Any = None, **arguments: Any) -> None:
        streamed = as_cs_config(config).replace(execution="weight_streaming")
        super().__init__(model_fn, model_dir, streamed, **arguments)

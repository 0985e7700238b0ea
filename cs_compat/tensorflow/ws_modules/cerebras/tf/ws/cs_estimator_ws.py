"""The estimator for weight streaming, under its original name."""

from __future__ import annotations

from typing import Any

from cerebras.tf import cs_estimator  # type: ignore[import-not-found]  # in another folder

from estimator.config import as_cs_config


class CerebrasEstimator(cs_estimator.CerebrasEstimator):  # type: ignore[misc]
    """`cerebras.tf.cs_estimator.CerebrasEstimator` whose steps are executed by weight streaming.

    Args:
        config: As there; its `execution` does not matter.
        arguments: As there.
    """

    def __init__(self, model_fn: Any, model_dir: Any = None, config: Any = None, **arguments: Any) -> None:
        streamed = as_cs_config(config).replace(execution="weight_streaming")
        super().__init__(model_fn, model_dir, streamed, **arguments)

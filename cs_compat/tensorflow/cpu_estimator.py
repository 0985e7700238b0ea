"""The class `tf.estimator.Estimator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from estimator import CerebrasEstimator
from estimator.config import as_cs_config


class Estimator(CerebrasEstimator):
    """Trains, evaluates and predicts on this CPU, with the arguments of the removed class in its order."""

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        own = as_cs_config(config).replace(cs_ip=None)
        super().__init__(
            model_fn, model_dir=model_dir, config=own, params=params, warm_start_from=warm_start_from
        )

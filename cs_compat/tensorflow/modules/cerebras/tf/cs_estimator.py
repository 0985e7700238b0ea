"""The estimator, under its original name and with its original order of arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from estimator import estimators
from estimator.config import as_cs_config
from estimator.errors import UnsupportedOnCsError


class CerebrasEstimator(estimators.CerebrasEstimator):
    """`estimator.CerebrasEstimator` with its arguments in the order of tf.estimator.Estimator.

    Programs written for it skip used batches themselves when training resumes. So the toolkit skips none,
    unless the config has `input_position="toolkit"`.

    Args:
        model_fn: As for `estimator.CerebrasEstimator`; so are the others.
        use_cs: False runs on this CPU regardless of the config, as in programs for the CS-1.
    """

    _input_position = "program"

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
        compile_dir: str | Path | None = None,
        use_cs: bool = True,
    ) -> None:
        own = as_cs_config(config)
        super().__init__(
            model_fn,
            model_dir=model_dir,
            compile_dir=compile_dir,
            config=own if use_cs else own.replace(cs_ip=None),
            params=params,
            warm_start_from=warm_start_from,
        )

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
        sparsifier: Any = None,
    ) -> CerebrasEstimator:
        """Train as `estimator.CerebrasEstimator` does; refuse a sparsifier."""
        if sparsifier is not None:
            raise UnsupportedOnCsError(
                f"train() got sparsifier={sparsifier!r}, expected None: train without sparsity here, or with "
                "the algorithms of cstorch.sparse in PyTorch"
            )
        super().train(input_fn, hooks, steps, max_steps, saving_listeners, use_cs)
        return self

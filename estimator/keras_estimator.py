"""KerasEstimator: the calls of CerebrasEstimator for a compiled Keras model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.cs_estimator import CerebrasEstimator
from estimator.errors import CallError
from estimator.input import InputSource
from estimator.keras_graph import keras_model_fn
from estimator.spec import EstimatorSpec

if TYPE_CHECKING:
    from estimator.front_end import StateOptions, TensorFlowFrontEnd


class KerasEstimator(CerebrasEstimator):
    """Compiles, trains, evaluates and predicts on the CS system what `fit` does on a CPU.

    A step is one call of the model's `train_step`; logged values are those that `fit` shows, means since the
    start of the run. After `train` the model has the trained weights, so that its own `evaluate`, `predict`
    and `save` follow on this CPU. A batch is x, (x, y) or (x, y, sample_weight). A training continues from
    the newest checkpoint of `model_dir`; `evaluate` and `predict` take that, or another one, on this CPU too,
    and leave the model as it is.

    Args:
        model: A Keras 3 or tf_keras model, built, and compiled with optimizer and loss.
        model_dir: Where checkpoints, events and summaries go; that of the config, else a temporary directory.
        compile_dir: Where compile artifacts go; `model_dir` when None.
        config: A CSRunConfig with `cs_ip`.
        params: Given to `input_fn`; copied.
    """

    _parts = ("features", "labels", "sample_weight")

    def __init__(
        self,
        model: Any,
        model_dir: str | Path | None = None,
        compile_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
            return keras_model_fn(model)(features, labels, mode, params)

        super().__init__(model_fn, model_dir, compile_dir, config, params)
        self.model = model

    def _front_end(self, source: InputSource, options: StateOptions | None = None) -> TensorFlowFrontEnd:
        from estimator.keras_front_end import KerasFrontEnd

        source = replace(source, parts=self._parts)
        return KerasFrontEnd(self.model, source, self._params, self._config, self._model_dir, options)

    def _whole_source(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        return replace(super()._whole_source(input_fn, mode), parts=self._parts)

    def _train_on_cpu(self, *args: Any, **kwargs: Any) -> None:
        raise CallError(
            "train() of a KerasEstimator runs on the CS system, but config.cs_ip is None or use_cs False; "
            "on this CPU call fit() of the Keras model itself"
        )

"""KerasEstimator: the calls of CerebrasEstimator for a compiled Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from estimator.cs_estimator import CerebrasEstimator
from estimator.errors import CallError
from estimator.input import InputSource
from estimator.spec import EstimatorSpec

if TYPE_CHECKING:
    from estimator.front_end import StateOptions, TensorFlowFrontEnd


class KerasEstimator(CerebrasEstimator):
    """Compiles, trains, evaluates and predicts on the CS system what `fit` does on a CPU.

    A step is one call of the model's `train_step`; logged values are those that `fit` shows, means since the
    start of the run. After `train` the model has the trained weights, so that its own `evaluate`, `predict`
    and `save` follow on this CPU. A batch is x, (x, y) or (x, y, sample_weight). A training continues from
    the newest checkpoint of `model_dir`.

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
        super().__init__(no_graph, model_dir, compile_dir, config, params)
        self.model = model

    def _front_end(self, source: InputSource, options: StateOptions | None = None) -> TensorFlowFrontEnd:
        from estimator.keras_front_end import KerasFrontEnd

        source = replace(source, parts=self._parts)
        return KerasFrontEnd(self.model, source, self._params, self._config, self._model_dir, options)

    def _train_on_cpu(self, *args: Any, **kwargs: Any) -> None:
        _refuse("train", "fit")

    def _evaluate_on_cpu(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        _refuse("evaluate", "evaluate")

    def _batches_from_cpu(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("predict", "predict")


def no_graph(features: Any, labels: Any, mode: str, params: Any, config: Any) -> EstimatorSpec:
    """In the place of the `model_fn` that a Keras model does not have."""
    raise CallError("a KerasEstimator has a Keras model and no model_fn")


def _refuse(call: str, own: str) -> NoReturn:
    raise CallError(
        f"{call}() of a KerasEstimator runs on the CS system, but config.cs_ip is None or use_cs False; "
        f"on this CPU call {own}() of the Keras model itself"
    )

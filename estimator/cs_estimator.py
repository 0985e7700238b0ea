"""CerebrasEstimator: compile, train, evaluate and predict on the CS system or on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.backend import Backend
from estimator.calling import check_model_fn
from estimator.facade import EstimatorFacade
from estimator.warm_start import settings_of

if TYPE_CHECKING:
    from estimator.front_end import TensorFlowFrontEnd
    from estimator.input import InputSource
    from estimator.model_state import StateOptions
    from estimator.on_cs import CsBackend


class CerebrasEstimator(EstimatorFacade):
    """Runs a `model_fn` with the calls of the removed `tf.estimator.Estimator`.

    `EstimatorFacade` says what runs where.

    Args:
        model_fn: Builds the model in a `tf.compat.v1` graph. Called with those of (features, labels, mode,
            params, config) that it declares, returns an EstimatorSpec.
        model_dir: Where checkpoints, events and summaries go; that of the config, else a temporary directory.
        compile_dir: Where compile artifacts go; `model_dir` when None.
        config: A CSRunConfig or RunConfig; defaults when None.
        params: Given to `model_fn` and `input_fn`; copied.
        warm_start_from: A checkpoint, a directory with one, or WarmStartSettings: first values of the
            variables of a training that starts in an empty `model_dir`.

    Raises:
        ValueError: `model_fn` has the wrong arguments, or `model_dir` contradicts the config.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | Path | None = None,
        compile_dir: str | Path | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        check_model_fn(model_fn, has_params=bool(params))
        super().__init__(model_dir, compile_dir, config, params)
        self._model_fn = model_fn
        self._warm_start = settings_of(warm_start_from)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The user's function."""
        return self._model_fn

    def _cpu(self) -> Backend:
        from estimator.cpu import CpuBackend

        return CpuBackend(self._setup(), self._model_fn, self._warm_start)

    def _cs(self) -> CsBackend:
        from estimator.on_cs import CsBackend

        return CsBackend(self._setup(), self._front_end, self._warm_start)

    def _front_end(
        self, source: InputSource, options: StateOptions, hooks: tuple[Any, ...]
    ) -> TensorFlowFrontEnd:
        from estimator.front_end import TensorFlowFrontEnd

        return TensorFlowFrontEnd(
            self._model_fn, source, self._params, self._config, self._model_dir, options, hooks
        )

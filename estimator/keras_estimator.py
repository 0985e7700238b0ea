"""KerasEstimator: the calls of an estimator for a compiled Keras model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator import checkpoints
from estimator.backend import Backend, Batches, Setup
from estimator.errors import CallError, CheckpointReadError
from estimator.facade import EstimatorFacade
from estimator.keras_graph import keras_model_fn
from estimator.spec import EstimatorSpec

if TYPE_CHECKING:
    from estimator.cpu import CpuBackend
    from estimator.input import InputSource
    from estimator.keras_front_end import KerasFrontEnd
    from estimator.model_state import StateOptions
    from estimator.on_cs import CsBackend


class KerasEstimator(EstimatorFacade):
    """Compiles, trains, evaluates and predicts on the CS system what `fit` does on a CPU.

    A step is one call of the model's `train_step`; logged values are those that `fit` shows, means since the
    start of the run. A batch is x, (x, y) or (x, y, sample_weight). A training continues from the newest
    checkpoint of `model_dir`; `evaluate` and `predict` take that, or another one, in this process or a later
    one, on the CS system or this CPU, and leave the model as it is.

    After `train` the model has the trained weights, so that its own `evaluate`, `predict` and `save` follow
    on this CPU. In another process `load_checkpoint()` puts them there.

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
        super().__init__(model_dir, compile_dir, config, params)
        self.model = model

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model as a `model_fn`, see `keras_model_fn`."""
        return keras_model_fn(self.model)

    def load_checkpoint(self, checkpoint_path: str | None = None) -> Any:
        """Puts a checkpoint into the model, and into its optimizer where it is compiled.

        `estimator.load_checkpoint().evaluate(x, y)` then is Keras' own evaluation of what was trained, and
        `fit` trains on.

        Args:
            checkpoint_path: The checkpoint, or a directory for the newest in it; None for the newest of
                `model_dir`.

        Returns:
            The model.

        Raises:
            CheckpointReadError: there is none, it cannot be read, or it is of another model.
        """
        from estimator.keras_checkpoint import load_into

        prefix = checkpoints.chosen(checkpoint_path, self._model_dir)
        if prefix is None:
            raise CheckpointReadError(self.model_dir, "the directory has no checkpoint")
        load_into(self.model, prefix)
        return self.model

    def _cpu(self) -> Backend:
        return _KerasOnCpu(self._setup(), self.model)

    def _cs(self) -> CsBackend:
        from estimator.on_cs import CsBackend

        return CsBackend(self._setup(), self._front_end)

    def _front_end(self, source: InputSource, options: StateOptions, hooks: tuple[Any, ...]) -> KerasFrontEnd:
        from estimator.keras_front_end import KerasFrontEnd

        return KerasFrontEnd(self.model, source, self._config, self._model_dir, options, hooks)


class _KerasOnCpu:
    """Evaluates and predicts on this CPU from checkpoints; training there is the model's own `fit`."""

    def __init__(self, setup: Setup, model: Any) -> None:
        self._setup = setup
        self._model = model

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        """Refuses.

        Raises:
            CallError: in the chief.
        """
        from estimator.cpu import is_mine

        if is_mine("train"):
            cause = "config.cs_ip is None" if self._setup.config.cs_ip is None else "use_cs is False"
            raise CallError(
                f"train() of a KerasEstimator runs on the CS system, and {cause}; on this CPU call fit() of "
                "the Keras model itself, behind load_checkpoint() to train on"
            )

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        """As `CpuBackend.evaluate`, with a graph of the model's `test_step`."""
        return self._backend().evaluate(input_fn, steps, hooks, checkpoint_path, name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Batches:
        """As `CpuBackend.predict`, with a graph of the model's `predict_step`."""
        yield from self._backend().predict(input_fn, hooks, checkpoint_path, num_samples)

    def _backend(self) -> CpuBackend:
        from estimator.cpu import CpuBackend

        return CpuBackend(self._setup, keras_model_fn(self._model))

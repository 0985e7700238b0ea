"""The calls of an estimator, whatever the model is written in: a facade over two backends."""

from __future__ import annotations

import copy
import logging
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cs_runtime import terminal
from estimator import checkpoints
from estimator.backend import Backend, Setup
from estimator.calling import copy_of
from estimator.errors import CallError
from estimator.evaluation import eval_dir
from estimator.input import FEATURES_AND_LABELS
from estimator.input_analysis import hand_over
from estimator.modes import MODES, ModeKeys
from estimator.predictions import chosen_predictions
from estimator.run_config import CSRunConfig, as_cs_config

if TYPE_CHECKING:
    from cs_runtime.options import InputPosition
    from estimator.on_cs import CsBackend

log = logging.getLogger("estimator")


class EstimatorFacade(ABC):
    """Checks the calls, hands the input function to an analysis that wants it, and chooses the backend.

    With `config.cs_ip`, `train` runs on the CS system, and so do `evaluate` and `predict` with `use_cs=True`.
    Everything else runs on this CPU with TensorFlow itself. In a job of several tasks, a run on the CS system
    takes all of them, one chief and the workers that stream; a run on the CPU is the chief's alone.
    """

    _parts: tuple[str, ...] = FEATURES_AND_LABELS  # members that a batch may have
    _input_position: InputPosition = "toolkit"  # where the config leaves it open

    def __init__(
        self,
        model_dir: str | Path | None,
        compile_dir: str | Path | None,
        config: Any,
        params: Mapping[str, Any] | None,
    ) -> None:
        self._config = as_cs_config(config)
        self._model_dir = _model_dir(model_dir, self._config)
        self._compile_dir = None if compile_dir is None else Path(compile_dir)
        self._params: Any = copy_of(params if params is not None else {})
        terminal.set_up("estimator")
        for name in ("train_distribute", "eval_distribute"):
            if getattr(self._config, name) is not None:
                log.warning("%s has no effect: the estimator runs on one device", name)

    @abstractmethod
    def _cpu(self) -> Backend:
        """What runs on this CPU."""

    @abstractmethod
    def _cs(self) -> CsBackend:
        """What runs on the CS system."""

    @property
    def model_dir(self) -> str:
        """Where checkpoints, events and summaries go."""
        return str(self._model_dir)

    @property
    def params(self) -> Any:
        """A copy of the parameters."""
        return copy_of(self._params)

    @property
    def config(self) -> CSRunConfig:
        """A copy of the configuration."""
        return copy.deepcopy(self._config)

    def eval_dir(self, name: str | None = None) -> str:
        """Where the events of an evaluation go."""
        return str(eval_dir(self._model_dir, name))

    def latest_checkpoint(self) -> str | None:
        """Prefix of the newest checkpoint of `model_dir`; None where there is none."""
        return checkpoints.latest(self._model_dir)

    def get_variable_names(self) -> list[str]:
        """Names of the variables in the newest checkpoint.

        Raises:
            CheckpointReadError: there is none.
        """
        with checkpoints.reading(self.model_dir) as reader:
            return sorted(reader.get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Value of a variable in the newest checkpoint.

        Raises:
            CheckpointReadError: there is none.
            CallError: it has no variable of that name.
        """
        with checkpoints.reading(self.model_dir) as reader:
            if not reader.has_tensor(name):
                raise CallError(
                    f"the newest checkpoint of '{self.model_dir}' has no variable '{name}'; "
                    f"it has {', '.join(sorted(reader.get_variable_to_shape_map()))}"
                )
            return np.asarray(reader.get_tensor(name))

    def compile(
        self, input_fn: Callable[..., Any], validate_only: bool = False, mode: str = ModeKeys.TRAIN
    ) -> None:
        """Compiles the step for the CS system, or only checks that it can be compiled.

        Needs no CS system; with `config.cs_ip` it compiles for the fabric of that system.

        Raises:
            EstimatorError: the model or the input cannot run on the CS system.
            cgc.errors.CompileError: the graph has something that the compiler does not know.
        """
        if mode not in MODES:
            raise CallError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._hand_over(input_fn, mode, compiles=not validate_only)
        self._cs().compile(input_fn, mode, validate_only=validate_only)

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
    ) -> Self:
        """Trains, from the newest checkpoint where there is one.

        Args:
            input_fn: Returns a Dataset, tensors, or `(features, labels)`. Called with those of (params, mode,
                config, input_context) that it declares.
            hooks: Session hooks; on this CPU only.
            steps: Number of steps to train.
            max_steps: Global step to train to; exclusive with `steps`. On this CPU both may be None: then
                the training ends with the input.
            saving_listeners: Told before and after every checkpoint.
            use_cs: Train on the CS system when the config has one.

        Raises:
            ValueError: `steps` and `max_steps` are both given, or not positive.
            EstimatorError: the model, the input or a checkpoint cannot be used.
        """
        _check_limits(steps, max_steps)
        self._hand_over(input_fn, ModeKeys.TRAIN)
        done = 0 if max_steps is None else checkpoints.step_of(self.latest_checkpoint())
        if max_steps is not None and done >= max_steps:
            log.info(
                "Skipping training since max_steps = %d has already been reached: the newest checkpoint is "
                "of step %d. To train on give a higher max_steps (%d: as many again), or steps, which count "
                "on from there; another model_dir begins again",
                max_steps,
                done,
                done + max_steps,
            )
            return self
        self._backend(use_cs).train(input_fn, hooks, steps, max_steps, saving_listeners)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
        use_cs: bool = False,
    ) -> dict[str, Any]:
        """Metrics of a checkpoint, with the mean `loss` and `global_step`.

        Args:
            input_fn: As in `train`.
            steps: Number of batches; None for all of the input, which only this CPU can do.
            hooks: Session hooks; on this CPU only.
            checkpoint_path: The checkpoint; None for the newest of `model_dir`.
            name: Tells several evaluations apart in TensorBoard.
            use_cs: Evaluate on the CS system when the config has one.

        Returns:
            The metrics; empty in a task that is not the chief.
        """
        if steps is not None and steps <= 0:
            raise CallError(f"evaluate() needs steps > 0 or None, got {steps}")
        return self._backend(use_cs).evaluate(input_fn, steps, hooks, checkpoint_path, name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | str | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
        num_samples: int | None = None,
        use_cs: bool = False,
    ) -> Iterator[Any]:
        """Predictions of a checkpoint for all of the input, in its order.

        Args:
            input_fn: As in `train`; labels are left out.
            predict_keys: Names of the predictions to yield; all when None.
            hooks: Session hooks; on this CPU only.
            checkpoint_path: The checkpoint; None for the newest of `model_dir`.
            yield_single_examples: Yield examples; else batches.
            num_samples: Yield at most so many examples.
            use_cs: Predict on the CS system when the config has one.

        Returns:
            A generator of dicts, or of arrays where `model_fn` predicts a single tensor. It is empty in a
            task that is not the chief.
        """
        if num_samples is not None and num_samples <= 0:
            raise CallError(f"predict() needs num_samples > 0 or None, got {num_samples}")
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        batches = self._backend(use_cs).predict(input_fn, hooks, checkpoint_path, num_samples)
        return chosen_predictions(
            batches, keys, yield_single_examples, num_samples, ends=self._on_system(use_cs)
        )

    def _on_system(self, use_cs: bool) -> bool:
        return use_cs and self._config.cs_ip is not None

    def _backend(self, use_cs: bool) -> Backend:
        return self._cs() if self._on_system(use_cs) else self._cpu()

    def _setup(self) -> Setup:
        position = self._config.input_position or self._input_position
        return Setup(self._params, self._config, self._model_dir, self._compile_dir, self._parts, position)

    def _hand_over(self, input_fn: Callable[..., Any], mode: str, *, compiles: bool = False) -> None:
        """To cs_input_analyzer, where that has started this process; it goes no further then."""
        setup = self._setup()
        hand_over(setup.whole_input(input_fn, mode), (setup.artifact_dir,), compiles=compiles)


def _model_dir(given: str | Path | None, config: CSRunConfig) -> Path:
    if given is not None and config.model_dir is not None and str(given) != str(config.model_dir):
        raise CallError(
            f"model_dir is '{given}' and the config says '{config.model_dir}'; give one of them, or the same"
        )
    chosen = given if given is not None else config.model_dir
    if chosen is None:
        chosen = tempfile.mkdtemp(prefix="model_dir_")
        log.warning("no model_dir was given: using the temporary directory '%s'", chosen)
    return Path(chosen)


def _check_limits(steps: int | None, max_steps: int | None) -> None:
    if steps is not None and max_steps is not None:
        raise CallError(f"train() got both steps={steps} and max_steps={max_steps}; give one of them")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value <= 0:
            raise CallError(f"train() needs {name} > 0, got {value}")

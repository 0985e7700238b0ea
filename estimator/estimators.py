"""CerebrasEstimator and the calls that all estimators have: compile, train, evaluate and predict."""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cs_runtime import terminal
from estimator.backend import Backend, Batches, Setup
from estimator.calling import check_model_fn, copy_of
from estimator.checkpoints import checkpoint_step, latest_checkpoint, open_checkpoint
from estimator.config import CSRunConfig, as_cs_config
from estimator.errors import CallError, InputFnError
from estimator.input.analysis import hand_over
from estimator.input.dataset import FEATURES_AND_LABELS
from estimator.spec import MODES, SINGLE, EvalSpec, ModeKeys, TrainSpec, settings_of
from estimator.summaries import eval_dir

if TYPE_CHECKING:
    from cs_runtime.options import InputPosition
    from estimator.cs.program import TensorFlowFrontEnd
    from estimator.cs.run import CsBackend
    from estimator.cs.state import StateOptions
    from estimator.input.dataset import InputSource

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
        terminal.configure_logging("estimator")
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
        return latest_checkpoint(self._model_dir)

    def get_variable_names(self) -> list[str]:
        """Names of the variables in the newest checkpoint.

        Raises:
            CheckpointReadError: there is none.
        """
        with open_checkpoint(self.model_dir) as reader:
            return sorted(reader.get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Value of a variable in the newest checkpoint.

        Raises:
            CheckpointReadError: there is none.
            CallError: it has no variable of that name.
        """
        with open_checkpoint(self.model_dir) as reader:
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
        done = 0 if max_steps is None else checkpoint_step(self.latest_checkpoint())
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
        from estimator.cs.run import CsBackend

        return CsBackend(self._setup(), self._front_end, self._warm_start)

    def _front_end(
        self, source: InputSource, options: StateOptions, hooks: tuple[Any, ...]
    ) -> TensorFlowFrontEnd:
        from estimator.cs.program import TensorFlowFrontEnd

        return TensorFlowFrontEnd(
            self._model_fn, source, self._params, self._config, self._model_dir, options, hooks
        )


def chosen_predictions(
    batches: Batches,
    keys: Sequence[str] | None,
    single: bool,
    num_samples: int | None,
    *,
    ends: bool,
) -> Iterator[Any]:
    """Examples or batches of the chosen predictions.

    Args:
        batches: What a backend gives.
        keys: Names of the predictions; None for all.
        single: Examples; else batches.
        num_samples: At most so many examples in all; None for all.
        ends: `batches` ends by itself behind the last of them, and is read to its end: a run on the CS system
            that is closed before counts as stopped.

    Raises:
        CallError: there is no prediction of such a name.
        InputFnError: predictions are no examples.
    """
    left = num_samples
    # An error here ends the run too: its traceback would keep the run, and the system, open.
    with closing(batches):
        for batch in batches:
            chosen = _chosen(batch, keys)
            size = _length(chosen) if single or left is not None else 0
            if left is not None:
                size = min(size, left)
                chosen = {name: value[:size] for name, value in chosen.items()}
                left -= size
            if single:
                for index in range(size):
                    yield _unwrapped({name: value[index] for name, value in chosen.items()})
            else:
                yield _unwrapped(chosen)
            if left == 0 and not ends:
                return


def _chosen(batch: dict[str, np.ndarray], keys: Sequence[str] | None) -> dict[str, np.ndarray]:
    if keys is None:
        return batch
    unknown = [key for key in keys if key not in batch]
    if unknown:
        raise CallError(f"predict_keys has '{unknown[0]}', the model predicts {', '.join(batch)}")
    return {key: batch[key] for key in keys}


def _length(batch: Mapping[str, np.ndarray]) -> int:
    lengths = {name: value.shape[0] if value.ndim else 0 for name, value in batch.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InputFnError(
            f"predictions must have the batch as first dimension, all of one size; got sizes {lengths}. "
            "Use yield_single_examples=False for predictions of a whole batch"
        )
    return next(iter(lengths.values()))


def _unwrapped(prediction: dict[str, Any]) -> Any:
    return prediction.get(SINGLE, prediction)


def train_and_evaluate(
    estimator: EstimatorFacade, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, Any]:
    """Trains to `train_spec.max_steps`, evaluates every new checkpoint that is due, and the last one.

    With a CS system the training runs there. The evaluations run on this CPU, in the chief: the system keeps
    its program, and waits for them at the checkpoint.

    Returns:
        The metrics of the last evaluation; empty in a worker.

    Raises:
        CallError: no `max_steps`.
    """
    if train_spec.max_steps is None:
        raise CallError("train_and_evaluate() needs TrainSpec(max_steps=...), got None")
    listener = _EvaluatingListener(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn,
        hooks=list(train_spec.hooks),
        max_steps=train_spec.max_steps,
        saving_listeners=[listener],
    )
    return listener.last()


class _EvaluatingListener:
    """Evaluates after a checkpoint, at most every `throttle_secs`.

    It has the methods of `tf.compat.v1.train.CheckpointSaverListener`, which are called by name.
    """

    def __init__(self, estimator: EstimatorFacade, spec: EvalSpec) -> None:
        self._estimator = estimator
        self._spec = spec
        self._not_before = time.monotonic() + spec.start_delay_secs
        self._checkpoint: str | None = None
        self._metrics: dict[str, Any] = {}

    def begin(self) -> None:
        """Adds nothing to the graph."""

    def before_save(self, session: Any, global_step: int) -> None:
        """Nothing to do."""

    def after_save(self, session: Any, global_step: int) -> None:
        """Evaluates when it is time to; never at step 0, where nothing is trained."""
        if global_step > 0 and time.monotonic() >= self._not_before:
            self._evaluate()

    def end(self, session: Any, global_step: int) -> None:
        """The last checkpoint is evaluated when the training has returned."""

    def last(self) -> dict[str, Any]:
        """Metrics of the newest checkpoint."""
        checkpoint = self._estimator.latest_checkpoint()
        if checkpoint is not None and checkpoint != self._checkpoint:
            self._evaluate()
        return self._metrics

    def _evaluate(self) -> None:
        self._checkpoint = self._estimator.latest_checkpoint()
        self._metrics = self._estimator.evaluate(
            self._spec.input_fn, steps=self._spec.steps, hooks=list(self._spec.hooks), name=self._spec.name
        )
        self._not_before = time.monotonic() + self._spec.throttle_secs

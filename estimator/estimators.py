"""CerebrasEstimator, and the calls of every estimator: compile, train, evaluate and predict."""

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

from cs_runtime import tasks, terminal
from cs_runtime.destination import Destination, choose_destination, given_address, surrounding_address
from estimator.backend import Backend, Batches, Setup
from estimator.calling import check_model_fn, copy_params
from estimator.checkpoints import checkpoint_step, latest_checkpoint, open_checkpoint
from estimator.config import CSRunConfig, as_cs_config
from estimator.errors import CallError, InputFnError
from estimator.generated_files import contain_generated_files
from estimator.input.analysis import export_to_analyzer
from estimator.input.dataset import FEATURES_AND_LABELS
from estimator.spec import MODES, SINGLE_PREDICTION, EvalSpec, ModeKeys, TrainSpec, parse_warm_start
from estimator.summaries import eval_dir

if TYPE_CHECKING:
    from cs_toolkit.execution_options import InputPosition
    from estimator.cs.program import TensorFlowFrontEnd
    from estimator.cs.run import CsBackend
    from estimator.cs.state import StateOptions
    from estimator.input.dataset import InputSource

log = logging.getLogger("estimator")


class EstimatorFacade(ABC):
    """Base class of the estimators: checks the arguments of a call and passes it to a backend.

    Calls with `use_cs=True`, the default of `train`, run on the CS system at `config.cs_ip`, else on that of
    `CS_IP` or the site, else on an embedded simulated one. Calls with `use_cs=False`, the default of
    `evaluate` and `predict`, run on this CPU with TensorFlow itself. In a job of several tasks, a run on the
    CS system takes all of them: the chief and the workers, which stream batches. A run on the CPU takes the
    chief only.
    """

    _parts: tuple[str, ...] = FEATURES_AND_LABELS  # members of a batch
    _input_position: InputPosition = "toolkit"  # unless the config sets it
    _use_cs = True  # False runs all calls on this CPU

    def __init__(
        self,
        model_dir: str | Path | None,
        compile_dir: str | Path | None,
        config: Any,
        params: Mapping[str, Any] | None,
    ) -> None:
        self._config = as_cs_config(config)
        self._model_dir = _choose_model_dir(model_dir, self._config)
        self._compile_dir = None if compile_dir is None else Path(compile_dir)
        self._params: Any = copy_params(params if params is not None else {})
        terminal.configure_logging("estimator")
        contain_generated_files()
        for name in ("train_distribute", "eval_distribute"):
            if getattr(self._config, name) is not None:
                log.warning("%s has no effect: the estimator runs on one device", name)

    @abstractmethod
    def _cpu_backend(self, destination: Destination) -> Backend:
        """Make the backend that runs calls on this CPU."""

    @abstractmethod
    def _cs_backend(self, destination: Destination) -> CsBackend:
        """Make the backend that runs calls on the CS system."""

    @property
    def model_dir(self) -> str:
        """Directory of checkpoints, events and summaries."""
        return str(self._model_dir)

    @property
    def params(self) -> Any:
        """A copy of the parameters."""
        return copy_params(self._params)

    @property
    def config(self) -> CSRunConfig:
        """A copy of the configuration."""
        return copy.deepcopy(self._config)

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory of the events of an evaluation."""
        return str(eval_dir(self._model_dir, name))

    def latest_checkpoint(self) -> str | None:
        """Return the prefix of the newest checkpoint in `model_dir`, or None if it has no checkpoint."""
        return latest_checkpoint(self._model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint.

        Raises:
            CheckpointReadError: There is no checkpoint.
        """
        with open_checkpoint(self.model_dir) as reader:
            return sorted(reader.get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value of a variable in the newest checkpoint.

        Raises:
            CheckpointReadError: There is no checkpoint.
            CallError: The checkpoint has no variable of that name.
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
        """Compile the step for the CS system, or only check that it can be compiled.

        This needs no CS system. If the address of one is known, it compiles for the fabric of that system.

        Raises:
            EstimatorError: The model or the input cannot run on the CS system.
            cgc.errors.CompileError: The compiler does not support something in the graph.
        """
        if mode not in MODES:
            raise CallError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self._export_to_analyzer(input_fn, mode, compiles=not validate_only)
        backend = self._cs_backend(self._destination(use_cs=True, compiles=True))
        backend.compile(input_fn, mode, validate_only=validate_only)

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
    ) -> Self:
        """Train, resuming from the newest checkpoint if there is one.

        Args:
            input_fn: Returns a Dataset, tensors, or `(features, labels)`. It is called with those of (params,
                mode, config, input_context) that it declares.
            hooks: Session hooks. On the CS system a hook can only look at values (docs/how-to/hooks.md).
            steps: Number of steps to train.
            max_steps: Global step to train to; exclusive with `steps`. On this CPU both may be None, which
                trains to the end of the input.
            saving_listeners: Called before and after every checkpoint.
            use_cs: Train on the CS system; False trains on this CPU.

        Raises:
            ValueError: `steps` and `max_steps` are both given, or not positive.
            EstimatorError: The model, the input or a checkpoint cannot be used.
        """
        if steps is not None and max_steps is not None:
            raise CallError(f"train() got both steps={steps} and max_steps={max_steps}; set one of them")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise CallError(f"train() needs {name} > 0, got {value}")
        self._export_to_analyzer(input_fn, ModeKeys.TRAIN)
        done = 0 if max_steps is None else checkpoint_step(self.latest_checkpoint())
        if max_steps is not None and done >= max_steps:
            log.info(
                "Skipping training since max_steps = %d has already been reached: the newest checkpoint is "
                "of step %d. To train further, set a higher max_steps (%d trains as many steps again), or "
                "steps, which counts from that checkpoint; to start over, use another model_dir",
                max_steps,
                done,
                done + max_steps,
            )
            return self
        self._backend(self._destination(use_cs)).train(input_fn, hooks, steps, max_steps, saving_listeners)
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
        """Evaluate a checkpoint and return its metrics, with the mean `loss` and `global_step`.

        Args:
            input_fn: As in `train`.
            steps: Number of batches. None evaluates all of the input, which works on this CPU only.
            hooks: Session hooks, as in `train`.
            checkpoint_path: The checkpoint; None for the newest one in `model_dir`.
            name: Distinguishes several evaluations in TensorBoard.
            use_cs: Evaluate on the CS system instead of this CPU.

        Returns:
            The metrics; empty in a task that is not the chief.
        """
        if steps is not None and steps <= 0:
            raise CallError(f"evaluate() needs steps > 0 or None, got {steps}")
        backend = self._backend(self._destination(use_cs))
        return backend.evaluate(input_fn, steps, hooks, checkpoint_path, name)

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
        """Yield the predictions of a checkpoint for all of the input, in its order.

        Args:
            input_fn: As in `train`; labels are ignored.
            predict_keys: Names of the predictions to yield; None yields all.
            hooks: Session hooks, as in `train`.
            checkpoint_path: The checkpoint; None for the newest one in `model_dir`.
            yield_single_examples: Yield single examples instead of batches.
            num_samples: Maximum number of examples to yield.
            use_cs: Predict on the CS system instead of this CPU.

        Returns:
            A generator of dicts, or of arrays if `model_fn` predicts a single tensor. It is empty in a task
            that is not the chief.
        """
        if num_samples is not None and num_samples <= 0:
            raise CallError(f"predict() needs num_samples > 0 or None, got {num_samples}")
        keys = [predict_keys] if isinstance(predict_keys, str) else predict_keys
        destination = self._destination(use_cs)
        batches = self._backend(destination).predict(input_fn, hooks, checkpoint_path, num_samples)
        return select_predictions(
            batches, keys, yield_single_examples, num_samples, ends=not destination.on_cpu
        )

    def _destination(self, use_cs: bool, *, compiles: bool = False) -> Destination:
        on_cs = use_cs and self._use_cs
        return choose_destination(
            given_address(self._config.cs_ip, "cs_ip"),
            surrounding_address() if on_cs or compiles else None,
            "" if on_cs else "use_cs=False",
            compiles=compiles,
            num_tasks=tasks.current().num_tasks,
        )

    def _backend(self, destination: Destination) -> Backend:
        make = self._cpu_backend if destination.on_cpu else self._cs_backend
        return make(destination)

    def _setup(self, destination: Destination) -> Setup:
        options = self._config.execution_options(self._input_position)
        return Setup(
            self._params,
            self._config,
            self._model_dir,
            options,
            destination,
            self._compile_dir,
            self._parts,
        )

    def _export_to_analyzer(self, input_fn: Callable[..., Any], mode: str, *, compiles: bool = False) -> None:
        """If cs_input_analyzer started this process, send it the input function and exit."""
        setup = self._setup(Destination("none", "an analysis of the input"))
        export_to_analyzer(setup.whole_input(input_fn, mode), (setup.artifact_dir,), compiles=compiles)


def _choose_model_dir(given: str | Path | None, config: CSRunConfig) -> Path:
    if given is not None and config.model_dir is not None and str(given) != str(config.model_dir):
        raise CallError(
            f"model_dir is '{given}', but the config has '{config.model_dir}'; set one of them, or "
            "both to the same directory"
        )
    chosen = given if given is not None else config.model_dir
    if chosen is None:
        chosen = tempfile.mkdtemp(prefix="model_dir_")
        log.warning("no model_dir was given: using the temporary directory '%s'", chosen)
    return Path(chosen)


class CerebrasEstimator(EstimatorFacade):
    """Runs a `model_fn` with the calls of the removed `tf.estimator.Estimator`.

    Args:
        model_fn: Builds the model in a `tf.compat.v1` graph and returns an EstimatorSpec. It is called with
            those of (features, labels, mode, params, config) that it declares.
        model_dir: Directory of checkpoints, events and summaries. If None, that of the config, or else a
            temporary directory.
        compile_dir: Directory of compile artifacts; `model_dir` if None.
        config: A CSRunConfig or RunConfig; None for the defaults.
        params: Passed to `model_fn` and `input_fn` as a copy.
        warm_start_from: A checkpoint, a directory that has one, or WarmStartSettings: the initial values of
            variables if `model_dir` has no checkpoint yet.
        use_cs: False runs all calls on this CPU.

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
        use_cs: bool = True,
    ) -> None:
        check_model_fn(model_fn, has_params=bool(params))
        super().__init__(model_dir, compile_dir, config, params)
        self._use_cs = use_cs
        self._model_fn = model_fn
        self._warm_start = parse_warm_start(warm_start_from)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The user's `model_fn`."""
        return self._model_fn

    def _cpu_backend(self, destination: Destination) -> Backend:
        from estimator.cpu import CpuBackend

        return CpuBackend(self._setup(destination), self._model_fn, self._warm_start)

    def _cs_backend(self, destination: Destination) -> CsBackend:
        from estimator.cs.run import CsBackend

        return CsBackend(self._setup(destination), self._front_end, self._warm_start)

    def _front_end(
        self, source: InputSource, options: StateOptions, hooks: tuple[Any, ...]
    ) -> TensorFlowFrontEnd:
        from estimator.cs.program import TensorFlowFrontEnd

        return TensorFlowFrontEnd(
            self._model_fn, source, self._params, self._config, self._model_dir, options, hooks
        )


def select_predictions(
    batches: Batches,
    keys: Sequence[str] | None,
    single: bool,
    num_samples: int | None,
    *,
    ends: bool,
) -> Iterator[Any]:
    """Yield the selected predictions, by example or by batch.

    Args:
        batches: The predictions of a backend.
        keys: Names of the predictions; None for all.
        single: Yield single examples instead of batches.
        num_samples: Maximum number of examples; None for all.
        ends: Read `batches` to its end, which follows the last example. A run on the CS system that is closed
            earlier counts as stopped.

    Raises:
        CallError: No prediction has one of these names.
        InputFnError: The predictions have no common batch dimension.
    """
    left = num_samples
    # Close the run on an error, too: its traceback would keep the run, and the system, open.
    with closing(batches):
        for batch in batches:
            unknown = [key for key in keys or () if key not in batch]
            if unknown:
                raise CallError(f"predict_keys has '{unknown[0]}', but the model predicts {', '.join(batch)}")
            chosen = batch if keys is None else {key: batch[key] for key in keys}
            size = _batch_length(chosen) if single or left is not None else 0
            if left is not None:
                size = min(size, left)
                chosen = {name: value[:size] for name, value in chosen.items()}
                left -= size
            if single:
                for index in range(size):
                    yield _unwrap({name: value[index] for name, value in chosen.items()})
            else:
                yield _unwrap(chosen)
            if left == 0 and not ends:
                return


def _batch_length(batch: Mapping[str, np.ndarray]) -> int:
    lengths = {name: value.shape[0] if value.ndim else 0 for name, value in batch.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InputFnError(
            f"predictions must all have the batch as their first dimension; got sizes {lengths}. "
            "Use yield_single_examples=False for predictions of a whole batch"
        )
    return next(iter(lengths.values()))


def _unwrap(prediction: dict[str, Any]) -> Any:
    return prediction.get(SINGLE_PREDICTION, prediction)


def train_and_evaluate(
    estimator: EstimatorFacade, train_spec: TrainSpec, eval_spec: EvalSpec
) -> dict[str, Any]:
    """Train to `train_spec.max_steps`, evaluating checkpoints in between and the last one at the end.

    With a CS system, training runs there and evaluation on this CPU, in the chief. Meanwhile the system keeps
    its program and waits at the checkpoint.

    Returns:
        The metrics of the last evaluation; empty in a worker.

    Raises:
        CallError: `max_steps` is None.
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
    return listener.final_metrics()


class _EvaluatingListener:
    """A `CheckpointSaverListener` that evaluates checkpoints, at most every `throttle_secs`."""

    # Not a subclass: that would import TensorFlow with this module. The methods are called by name.

    def __init__(self, estimator: EstimatorFacade, spec: EvalSpec) -> None:
        self._estimator = estimator
        self._spec = spec
        self._not_before = time.monotonic() + spec.start_delay_secs
        self._checkpoint: str | None = None
        self._metrics: dict[str, Any] = {}

    def begin(self) -> None:
        """Add nothing to the graph."""

    def before_save(self, session: Any, global_step: int) -> None:
        """Do nothing before a checkpoint."""

    def after_save(self, session: Any, global_step: int) -> None:
        """Evaluate the checkpoint if an evaluation is due; never at step 0, before any training."""
        if global_step > 0 and time.monotonic() >= self._not_before:
            self._evaluate()

    def end(self, session: Any, global_step: int) -> None:
        """Do nothing: `final_metrics` evaluates the last checkpoint after training."""

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics of the newest checkpoint, evaluating it if necessary."""
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

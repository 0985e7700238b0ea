"""CerebrasEstimator: compile, train, evaluate and predict on the CS system or on this CPU."""

from __future__ import annotations

import copy
import json
import logging
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_runtime.garbage import leave_at_exit, seldom_searched
from cs_runtime.goals import last_step_of_job
from csrun.roles import TaskInfo
from estimator import checkpoints, logs, tasks
from estimator.calling import check_model_fn, copy_of
from estimator.errors import CallError, InputFnError, UnsupportedOnCsError
from estimator.files import write_params
from estimator.input import FEATURES_AND_LABELS, InputSource
from estimator.input_analysis import hand_over
from estimator.input_report import log_report
from estimator.modes import MODES, ModeKeys
from estimator.run_config import CSRunConfig, as_cs_config
from estimator.spec import SINGLE, checked_hooks
from estimator.warm_start import settings_of

if TYPE_CHECKING:
    from cs_runtime.settings import InputPosition
    from estimator.front_end import StateOptions, TensorFlowFrontEnd
    from estimator.on_cs import Place

log = logging.getLogger("estimator")


class CerebrasEstimator:
    """Runs a `model_fn` with the calls of the removed `tf.estimator.Estimator`.

    With `config.cs_ip`, `train` runs on the CS system, and so do `evaluate` and `predict` with `use_cs=True`.
    Everything else runs on this CPU with TensorFlow itself. In a job of several tasks, a run on the CS system
    takes all of them, one chief and the workers that stream; a run on the CPU is the chief's alone.

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

    _parts: tuple[str, ...] = FEATURES_AND_LABELS  # members that a batch may have
    _input_position: InputPosition = "toolkit"  # where the config leaves it open

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
        self._model_fn = model_fn
        self._config = as_cs_config(config)
        self._model_dir = _model_dir(model_dir, self._config)
        self._compile_dir = None if compile_dir is None else Path(compile_dir)
        self._params: Any = copy_of(params if params is not None else {})
        self._warm_start = settings_of(warm_start_from)
        logs.set_up()
        for name in ("train_distribute", "eval_distribute"):
            if getattr(self._config, name) is not None:
                log.warning("%s has no effect: the estimator runs on one device", name)

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

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The user's function."""
        return self._model_fn

    def eval_dir(self, name: str | None = None) -> str:
        """Where the events of an evaluation go."""
        return str(self._model_dir / (f"eval_{name}" if name else "eval"))

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

    @seldom_searched()
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
        if not tasks.is_chief():
            log.info("nothing to do for worker %d: the chief compiles", tasks.current().index)
            return
        # A compile run belongs to no job, whatever started it: its input function sees no shards.
        log.info("TF_CONFIG environment variable: {}")
        log.info("Running %s for the CS system", "validate" if validate_only else "compile")
        from estimator import on_cs

        place = self._place("validate_only" if validate_only else "compile_only")
        source = InputSource(input_fn, mode, self._params, self._config, {})
        log_report(source, shared=mode == ModeKeys.TRAIN)
        on_cs.compile_only(self._front_end(source), place, validate_only)
        leave_at_exit()

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
        use_cs: bool = True,
    ) -> CerebrasEstimator:
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
        on_system = use_cs and self._config.cs_ip is not None
        if on_system and steps is None and max_steps is None:
            raise UnsupportedOnCsError(
                "train() on the CS system needs the number of steps, got neither steps nor max_steps; "
                "give one of them (--steps or --max_steps)"
            )
        if max_steps is not None and checkpoints.step_of(self.latest_checkpoint()) >= max_steps:
            log.info(
                "Skipping training since max_steps = %d has already been reached. "
                "Give a higher max_steps, or steps, or another model_dir to train on",
                max_steps,
            )
            return self
        if on_system:
            self._train_on_cs(input_fn, hooks, steps, max_steps, saving_listeners)
        elif self._is_mine("train"):
            self._train_on_cpu(input_fn, hooks, steps, max_steps, saving_listeners)
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
        if not (use_cs and self._config.cs_ip is not None):
            return self._evaluate_on_cpu(input_fn, steps, hooks, checkpoint_path, name)
        if steps is None:
            raise UnsupportedOnCsError(
                "evaluate() on the CS system needs the number of steps, got None; give steps (--eval_steps)"
            )
        from estimator import on_cs
        from estimator.front_end import StateOptions

        self._announce("eval", hooks)
        place = self._place("eval")
        front_end = self._front_end(
            self._whole_source(input_fn, ModeKeys.EVAL), StateOptions(checkpoint_path)
        )
        return on_cs.evaluate(front_end, place, steps, checkpoint_path, name)

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
        on_system = use_cs and self._config.cs_ip is not None
        if on_system:
            batches = self._batches_from_cs(input_fn, hooks, checkpoint_path, num_samples)
        else:
            batches = self._batches_from_cpu(input_fn, hooks, checkpoint_path)
        return _predictions(batches, keys, yield_single_examples, num_samples, ends=on_system)

    def _train_on_cs(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        from estimator import on_cs
        from estimator.front_end import StateOptions

        self._announce("train", hooks)
        options = StateOptions(None, self._warm_start, tuple(saving_listeners or ()))
        source = self._shared_source(input_fn, ModeKeys.TRAIN)
        if tasks.is_chief():
            log_report(source)
        front_end = self._front_end(source, options)
        on_cs.train(front_end, self._place("train"), steps, max_steps)

    def _train_on_cpu(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> None:
        from estimator import cpu

        last_step = None
        if steps is not None or max_steps is not None:
            first_step = checkpoints.step_of(self.latest_checkpoint())
            task = TaskInfo.from_environment()
            last_step = last_step_of_job(self._model_dir, task, first_step, steps, max_steps)
        write_params(self._model_dir, self._params)
        log_report(self._whole_source(input_fn, ModeKeys.TRAIN), shared=False)
        job = self._cpu_job(input_fn, ModeKeys.TRAIN, hooks)
        cpu.train(job, last_step, tuple(saving_listeners or ()), self._warm_start)

    def _evaluate_on_cpu(
        self,
        input_fn: Callable[..., Any],
        steps: int | None,
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        name: str | None,
    ) -> dict[str, Any]:
        from estimator import cpu

        if not self._is_mine("eval"):
            return {}
        return cpu.evaluate(self._cpu_job(input_fn, ModeKeys.EVAL, hooks), steps, checkpoint_path, name)

    def _batches_from_cpu(
        self, input_fn: Callable[..., Any], hooks: Sequence[Any] | None, checkpoint_path: str | None
    ) -> Generator[dict[str, np.ndarray], None, None]:
        from estimator import cpu

        if self._is_mine("predict"):
            yield from cpu.predict(self._cpu_job(input_fn, ModeKeys.PREDICT, hooks), checkpoint_path)

    def _batches_from_cs(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        checkpoint_path: str | None,
        num_samples: int | None,
    ) -> Generator[dict[str, np.ndarray], None, None]:
        from estimator import on_cs
        from estimator.front_end import StateOptions

        self._announce("predict", hooks)
        place = self._place("predict")
        source = self._whole_source(input_fn, ModeKeys.PREDICT)
        front_end = self._front_end(source, StateOptions(checkpoint_path))
        yield from on_cs.predict(front_end, place, on_cs.steps_for_samples(front_end, num_samples))

    def _cpu_job(self, input_fn: Callable[..., Any], mode: str, hooks: Sequence[Any] | None) -> Any:
        from estimator.cpu import CpuJob

        log.info("Running %s on this CPU", _word(mode))
        if self._config.precision != "float32":
            log.info("precision=%s concerns the CS system only", self._config.precision)
        source = self._whole_source(input_fn, mode)
        return CpuJob(
            self._model_fn, source, self._params, self._config, self._model_dir, checked_hooks("hooks", hooks)
        )

    def _whole_source(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        """The input of a run in which one task reads all records, in their order."""
        return InputSource(input_fn, mode, self._params, self._config, tasks.alone_config())

    def _hand_over(self, input_fn: Callable[..., Any], mode: str, *, compiles: bool = False) -> None:
        """To cs_input_analyzer, where that has started this process; it goes no further then."""
        source = replace(self._whole_source(input_fn, mode), parts=self._parts)
        hand_over(source, (self._compile_dir or self._model_dir,), compiles=compiles)

    def _shared_source(self, input_fn: Callable[..., Any], mode: str) -> InputSource:
        task = tasks.current()
        return InputSource(
            input_fn, mode, self._params, self._config, tasks.shared_config(), task.num_workers, task.index
        )

    def _front_end(self, source: InputSource, options: StateOptions | None = None) -> TensorFlowFrontEnd:
        from estimator.front_end import TensorFlowFrontEnd

        return TensorFlowFrontEnd(
            self._model_fn, source, self._params, self._config, self._model_dir, options
        )

    def _place(self, command: str) -> Place:
        """Where a run happens; a chief that compiles or trains leaves the parameters there."""
        from estimator.on_cs import Place

        if tasks.is_chief() and command not in ("eval", "predict"):
            write_params(self._model_dir, self._params)
        position = self._config.input_position or self._input_position
        return Place(command, self._model_dir, self._compile_dir, self._config, self._params, position)

    def _announce(self, command: str, hooks: Sequence[Any] | None) -> None:
        from estimator.front_end import warn_of_hooks

        log.info("TF_CONFIG environment variable: %s", json.dumps(tasks.shared_config()))
        log.info("Running %s on the CS system at %s", command, self._config.cs_ip)
        warn_of_hooks(hooks or ())

    def _is_mine(self, command: str) -> bool:
        if tasks.is_chief():
            return True
        log.info("nothing to do for worker %d: %s runs on a CPU, the chief's", tasks.current().index, command)
        return False


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


def _predictions(
    batches: Generator[dict[str, np.ndarray], None, None],
    keys: Sequence[str] | None,
    single: bool,
    num_samples: int | None,
    *,
    ends: bool,
) -> Iterator[Any]:
    """Examples or batches of the chosen predictions, at most `num_samples` examples in all.

    Where `batches` ends by itself behind the last of them, it is read to its end: a run on the CS system that
    is closed before counts as stopped.
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


def _word(mode: str) -> str:
    return {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "eval", ModeKeys.PREDICT: "predict"}[mode]

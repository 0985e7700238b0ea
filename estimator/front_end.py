"""The TensorFlow side of a run on the CS system: a traced step, its batches, its state, its checkpoints."""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_runtime.files import write_text
from cs_runtime.garbage import seldom_searched
from cs_runtime.program import StepProgram
from cs_runtime.ranges import RangeCheck
from cs_toolkit.step import Mode, TensorSpec
from estimator import checkpoints
from estimator.capture import TracedModel, scalar_summaries, trace
from estimator.events import SUMMARY_PREFIX
from estimator.host_metrics import HostMetrics
from estimator.input import Element, InputSource, describe, read
from estimator.model_state import ModelState
from estimator.modes import ModeKeys
from estimator.run_config import CSRunConfig
from estimator.spec import WarmStartSettings, named_predictions

if TYPE_CHECKING:
    from cgc.importers.tensorflow import ImportedStep

log = logging.getLogger("estimator")

PREDICTION = "prediction"
_PROGRAM_MODES: Mapping[str, Mode] = {
    ModeKeys.TRAIN: "train",
    ModeKeys.EVAL: "eval",
    ModeKeys.PREDICT: "infer",
}


@dataclass(frozen=True)
class StateOptions:
    """Where the state comes from and how checkpoints are kept.

    Attributes:
        checkpoint: Checkpoint to restore; None for the newest of `model_dir`.
        warm_start: First values where there is no checkpoint.
        saving_listeners: The user's `CheckpointSaverListener`s.
    """

    checkpoint: str | None = None
    warm_start: WarmStartSettings | None = None
    saving_listeners: tuple[Any, ...] = ()


class TensorFlowFrontEnd:
    """Implements `cs_runtime.program.FrontEnd` for a `model_fn` and an `input_fn`.

    The graph is built when `program` or a state is asked for first; `inputs`, `input_facts` and `batches`,
    all that a worker needs, build the input alone.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        source: InputSource,
        params: Mapping[str, Any],
        config: CSRunConfig,
        model_dir: Path,
        options: StateOptions | None = None,
    ) -> None:
        self._model_fn = model_fn
        self._source = source
        self._params = params
        self._config = config
        self._model_dir = model_dir
        self._options = options or StateOptions()
        self._state: ModelState | None = None
        self._host_metrics: HostMetrics | None = None

    @seldom_searched()
    def program(self) -> StepProgram:
        """Traces the step.

        Raises:
            estimator.errors.EstimatorError: `model_fn` or `input_fn` cannot be used on the CS system.
            cgc.errors.CompileError: the graph has something that the compiler does not know.
        """
        mode = _PROGRAM_MODES[self._source.mode]
        return StepProgram(self._imported.module, mode, self.batch_size, self._ranges)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors of one batch in streaming order, with the types that `input_fn` declares."""
        return tuple(
            TensorSpec(f"input_{index}", component.dtype.name, component.shape)
            for index, component in enumerate(self._element.components)
        )

    def input_facts(self) -> dict[str, str]:
        """The mode, the program's files, the input function's name, and name, type and shape of every tensor.

        Parameters are not among them: a program may change them while it runs, in one task only.
        """
        function = self._source.input_fn
        while isinstance(function, partial):
            function = function.func
        tensors = {
            f"tensor {index}": f"{c.name} {c.dtype.name}{list(c.shape)}"
            for index, c in enumerate(self._element.components)
        }
        return {
            "mode": self._source.mode,
            "program": _file_mark(getattr(sys.modules.get("__main__"), "__file__", None)),
            "input function": f"{getattr(function, '__qualname__', type(function).__name__)} in "
            f"{_file_mark(_source_file(function))}",
            "number of tensors": str(len(tensors)),
            **tensors,
        }

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        """A freshly built input without its first `skip` batches."""
        return read(self._source, self._config.tf_random_seed, skip)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Arrays by resource name.

        Raises:
            CheckpointReadError: the checkpoint cannot be read or is of another model.
        """
        state = self._model_state
        checkpoint = checkpoints.chosen(self._options.checkpoint, self._model_dir)
        if checkpoint is None and self._source.mode != ModeKeys.TRAIN:
            log.warning(
                "there is no checkpoint in '%s': running with freshly initialized variables", self._model_dir
            )
        state.start(checkpoint, self._options.warm_start)
        variables = self._imported.variables
        values = state.read([_key(name) for name in variables.values()])
        if self._source.mode == ModeKeys.TRAIN:
            write_text(self._model_dir / "graph.pbtxt", str(self._model.graph.as_graph_def()))
        # Only metrics may be float64, which the importer makes float32.
        narrow = [value.astype(np.float32) if value.dtype == np.float64 else value for value in values]
        return dict(zip(variables, narrow, strict=True))

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Writes `model.ckpt-<step>`; returns whether one of the user's listeners asks to stop.

        Raises:
            CheckpointWriteError: no space or permission; older checkpoints are as they were.
        """
        variables = self._imported.variables
        known = {_key(variables[name]): value for name, value in state.items() if name in variables}
        self._model_state.assign(known)
        return self._model_state.save(step)

    def add_to_metrics(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Counts a step of an evaluation, where its metrics are computed on this host."""
        if self._host_metrics is not None:
            self._host_metrics.update(outputs)

    def metric_values(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Values of the metrics for the totals in a state; NumPy arrays and scalars by name."""
        if self._host_metrics is not None:
            return self._host_metrics.values()
        variables = self._imported.variables
        self._model_state.assign({_key(variables[name]): value for name, value in state.items()})
        values = {name: value for name, (value, _) in self._model.metrics.items()}
        return self._model_state.evaluate(values)

    def close(self) -> None:
        """Frees the sessions that hold variables and metrics."""
        if self._host_metrics is not None:
            self._host_metrics.close()
        if self._state is not None:
            self._state.close()

    @property
    def batch_size(self) -> int:
        """First dimension of the first component that has one; 1 where none has."""
        return next((c.shape[0] for c in self._element.components if c.shape), 1)

    @cached_property
    def _element(self) -> Element:
        return describe(self._source)

    @cached_property
    def _model(self) -> TracedModel:
        model = trace(self._model_fn, self._element, self._source.mode, self._params, self._config)
        if self._source.mode == ModeKeys.TRAIN:
            warn_of_hooks((*model.spec.training_hooks, *model.spec.training_chief_hooks))
        return model

    @cached_property
    def _imported(self) -> ImportedStep:
        from cgc.errors import GraphImportError  # late: workers have no compiler
        from estimator.skipped_steps import count_skipped_steps

        try:
            imported = self._import()
        except GraphImportError as error:
            if self._source.mode != ModeKeys.EVAL or self._model.spec.host_call is None:
                raise
            self._host_metrics = HostMetrics(self._model.spec)
            imported = self._import()  # without what the metrics need: other faults remain
            ops = ", ".join(sorted({fault.op for fault in error.details if fault.op}))
            log.info("the metrics of host_call are computed on this host: the CS system lacks %s", ops)
        if self._source.mode == ModeKeys.TRAIN:
            count_skipped_steps(imported.module)
        return imported

    def _import(self) -> ImportedStep:
        from cgc.importers.tensorflow import import_step

        model, mode = self._model, self._source.mode
        return import_step(
            model.graph,
            inputs=model.inputs,
            outputs=_outputs(model, mode, self._host_metrics),
            updates=_updates(model, mode) if self._host_metrics is None else [],
            mode=_PROGRAM_MODES[mode],
            # Without a seed the initial weights differ from run to run. The masks of dropout do not: a seed
            # drawn here would be another program, to be compiled again every time.
            seed=self._config.tf_random_seed or 0,
            global_step=model.global_step,
        )

    @cached_property
    def _ranges(self) -> tuple[RangeCheck, ...]:
        """Lets the imported step put out the ranges of its labels and ids, once."""
        from estimator.ranges import watch_ranges

        return watch_ranges(self._imported.module, [c.name for c in self._element.components])

    @property
    def _model_state(self) -> ModelState:
        if self._state is None:
            self._state = ModelState(
                self._model,
                self._model_dir,
                self._config.keep_checkpoint_max,
                self._options.saving_listeners,
                self._config.session_config,
            )
        return self._state


def warn_of_hooks(hooks: Sequence[Any]) -> None:
    """Names session hooks that a run on the CS system ignores, as there is no session that runs steps."""
    if hooks:
        names = ", ".join(type(hook).__name__ for hook in hooks)
        log.warning("hooks run on a CPU only; on the CS system these are ignored: %s", names)


def prediction_output(name: str) -> str:
    """Name of the step's output that carries a prediction."""
    return f"{PREDICTION}/{name}" if name else PREDICTION


def prediction_name(output_name: str) -> str | None:
    """The prediction that an output of the step carries: inverse of `prediction_output`; None for others."""
    kind, _, name = output_name.removeprefix("output_").partition("/")
    return name if kind == PREDICTION else None


def _outputs(model: TracedModel, mode: str, host_metrics: HostMetrics | None) -> dict[str, Any]:
    if mode == ModeKeys.TRAIN:
        summaries = scalar_summaries(model.graph)
        return {
            "loss": model.spec.loss,
            **{f"{SUMMARY_PREFIX}{tag}": tensor for tag, tensor in summaries.items()},
        }
    if mode == ModeKeys.EVAL:
        # Metrics are read from their totals at the end; a step has to put out something.
        return {"loss": model.spec.loss, **(host_metrics.outputs if host_metrics is not None else {})}
    return {prediction_output(name): tensor for name, tensor in named_predictions(model.spec).items()}


def _updates(model: TracedModel, mode: str) -> Sequence[Any]:
    if mode == ModeKeys.TRAIN:
        return [model.spec.train_op]
    from cgc.importers.tensorflow import variable_writes

    # Of an update only what it writes: its own value may need what the system cannot compute.
    return variable_writes([update for _, update in model.metrics.values()])


def _source_file(function: Any) -> str | None:
    for candidate in (function, type(function)):  # an object with __call__ has the file of its class
        try:
            return inspect.getsourcefile(candidate)
        except (TypeError, OSError):
            continue
    return None


def _file_mark(path: str | None) -> str:
    """Name and content of a file, the same wherever a machine has it: `run.py (sha256 1f3870be274f)`."""
    if path is None:
        return "no file"
    try:
        content = Path(path).read_bytes()
    except OSError:
        return Path(path).name
    return f"{Path(path).name} (sha256 {hashlib.sha256(content).hexdigest()[:12]})"


def _key(variable_name: str) -> str:
    """`dense/kernel:0` -> `dense/kernel`."""
    return variable_name.split(":")[0]

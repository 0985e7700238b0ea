"""The program of a `model_fn` on the CS system: its traced step, input, state and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_runtime.files import write_text
from cs_runtime.input_source import Sharding, describe_function, input_facts
from cs_runtime.program import StepProgram
from cs_toolkit.garbage import infrequent_collection
from cs_toolkit.step import TensorSpec
from csrun.schedulers.tasks import worker_config
from estimator.checkpoints import checkpoint_step, resolve_checkpoint
from estimator.config import CSRunConfig
from estimator.cs.graph import HostMetrics, TracedModel, trace
from estimator.cs.hooks import HookScope, StepHooks
from estimator.cs.state import (
    LargeState,
    ModelState,
    RenamedTensors,
    StateOptions,
    can_be_held_in_parts,
    check_checkpoint,
)
from estimator.input.dataset import Element, InputSource, describe, read
from estimator.spec import PROGRAM_MODES, ModeKeys, predictions_by_name
from estimator.summaries import Summaries
from input_rules.input_export import Shard

if TYPE_CHECKING:
    from cgc.errors import GraphImportError
    from cgc.importers.tensorflow import ImportedStep

log = logging.getLogger("estimator")

PREDICTION = "prediction"


class ProgramInput:
    """Implements `cs_runtime.input_source.InputSource` for an `input_fn`, without building a model.

    Args:
        source: The input of the run.
    """

    def __init__(self, source: InputSource) -> None:
        self._source = source

    @cached_property
    def element(self) -> Element:
        """The structure of a batch, and its tensors."""
        return describe(self._source)

    @property
    def input_names(self) -> list[str]:
        """The user's names of the tensors of a batch."""
        return [component.name for component in self.element.components]

    @property
    def batch_size(self) -> int:
        """First dimension of the first component that has one; 1 if none has."""
        return next((c.shape[0] for c in self.element.components if c.shape), 1)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of a batch in streaming order, with the types that `input_fn` declares."""
        return tuple(
            TensorSpec(f"input_{index}", component.dtype.name, component.shape)
            for index, component in enumerate(self.element.components)
        )

    def input_facts(self) -> dict[str, str]:
        """Return the facts that identify this input, which worker and chief compare."""
        tensors = (f"{c.name} {c.dtype.name}{list(c.shape)}" for c in self.element.components)
        return input_facts(self._source.mode, self._source.input_fn, tensors)

    def sharding(self) -> Sharding:
        """Return how a worker's share is determined: by the toolkit if `input_fn` asks when it is called."""
        return "shards" if self.element.asks_for_shard else "program"

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Build the input again and yield its batches after the first `skip`."""
        return read(self._source, self._source.config.tf_random_seed, skip)

    def part(self, shard: Shard, first: int, stride: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Build the input of any shard, and yield its batches `first`, `first + stride` and so on.

        Raises:
            ShardingError: `input_fn` does not ask for its shard when it is called.
        """
        # States of a shard that several workers read would be written by all of them.
        folder = self._source.states if stride == 1 else None
        source = replace(
            self._source,
            tf_config=worker_config(shard.count, shard.index),
            num_shards=shard.count,
            shard=shard.index,
            states=None if folder is None else replace(folder, shard=shard.index, num_shards=shard.count),
            as_worker=True,
        )
        return islice(read(source, source.config.tf_random_seed, first), 0, None, stride)


class TensorFlowFrontEnd(ProgramInput):
    """Implements `cs_runtime.program.MeasuredFrontEnd` for a `model_fn` and an `input_fn`.

    The graph is built on the first use of `program` or of the state.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        source: InputSource,
        params: Mapping[str, Any],
        config: CSRunConfig,
        model_dir: Path,
        options: StateOptions | None = None,
        hooks: Sequence[Any] = (),
    ) -> None:
        super().__init__(source)
        self._model_fn = model_fn
        self._params = params
        self._config = config
        self._model_dir = model_dir
        self._options = options or StateOptions()
        self._own_hooks = tuple(hooks)
        self._state: ModelState | None = None
        self._host_metrics: HostMetrics | None = None

    @infrequent_collection()
    def program(self) -> StepProgram:
        """Trace the step.

        Raises:
            estimator.errors.EstimatorError: `model_fn` or `input_fn` cannot be used on the CS system.
            cgc.errors.CompileError: The compiler does not support something in the graph.
        """
        return self._program

    def check_checkpoint(self) -> None:
        """Check that the checkpoint to start from, if there is one, is of this model.

        Raises:
            CheckpointReadError: The checkpoint cannot be read or is of another model.
        """
        checkpoint = resolve_checkpoint(self._options.checkpoint, self._model_dir)
        if checkpoint is not None:
            check_checkpoint(self._model.graph, self._model.spec.scaffold, checkpoint)

    def initial_state(self) -> Mapping[str, np.ndarray]:
        """Return the initial values by resource name; those of a large model are read on access.

        Raises:
            CheckpointReadError: The checkpoint cannot be read or is of another model.
        """
        checkpoint = resolve_checkpoint(self._options.checkpoint, self._model_dir)
        if checkpoint is None and self._source.mode != ModeKeys.TRAIN:
            log.warning("no checkpoint in '%s': running with freshly initialized variables", self._model_dir)
        variables = self._imported.variables
        if self._source.mode == ModeKeys.TRAIN:
            write_text(self._model_dir / "graph.pbtxt", str(self._model.graph.as_graph_def()))
        if self._large_state is not None:
            return self._large_state.start(checkpoint, _keys(variables))
        state = self._model_state
        state.start(checkpoint)
        values = state.read([_key(name) for name in variables.values()])
        # Only metrics may be float64; the importer converts them to float32.
        narrow = [value.astype(np.float32) if value.dtype == np.float64 else value for value in values]
        return dict(zip(variables, narrow, strict=True))

    @property
    def saves_between_steps(self) -> bool:
        """True if there are saving listeners, which may look at the state and ask to stop."""
        return bool(self._options.saving_listeners)

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Write `model.ckpt-<step>`; return True if one of the user's listeners asks to stop.

        Raises:
            CheckpointWriteError: No space or no permission; older checkpoints are unchanged.
        """
        variables = self._imported.variables
        if self._large_state is not None:
            names = {key: name for name, key in _keys(variables).items() if name in state}
            return self._large_state.save(step, RenamedTensors(state, names))
        known = {_key(variables[name]): value for name, value in state.items() if name in variables}
        self._model_state.assign(known)
        return self._model_state.save(step)

    def add_to_metrics(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Show the session hooks a step of an evaluation; update the metrics that this host computes."""
        self.hooks.show_evaluation_step(outputs)
        if self._host_metrics is not None:
            self._host_metrics.update(outputs)

    def metric_values(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the values of the metrics for the totals in a state: NumPy arrays and scalars by name."""
        if self._host_metrics is not None:
            return self._host_metrics.values()
        variables = self._imported.variables
        self._model_state.assign({_key(variables[name]): value for name, value in state.items()})
        values = {name: value for name, (value, _) in self._model.metrics.items()}
        return self._model_state.evaluate(values)

    def close(self) -> None:
        """Close the sessions that hold variables, metrics and summaries."""
        if "summaries" in vars(self):
            self.summaries.close()
        if self._host_metrics is not None:
            self._host_metrics.close()
        if self._state is not None:
            self._state.close()

    @cached_property
    def _program(self) -> StepProgram:
        from cs_runtime.step_program import step_program  # late: workers have no compiler

        mode = PROGRAM_MODES[self._source.mode]
        model = describe_function(self._model_fn)
        program = step_program(self._imported.module, mode, self.batch_size, self.input_names, model)
        if self._source.mode != ModeKeys.TRAIN:
            return program
        steps = self._config.save_summary_steps
        return replace(program, every={f"output_{name}": steps for name in self.summaries.shown})

    @cached_property
    def _model(self) -> TracedModel:
        return trace(self._model_fn, self.element, self._source.mode, self._params, self._config)

    @property
    def graph(self) -> Any:
        """The graph of the model, for TensorBoard."""
        return self._model.graph

    @cached_property
    def summaries(self) -> Summaries:
        """The summaries of a training run."""
        return Summaries(self._model.graph, shows_tensors=bool(self._config.save_summary_steps))

    @cached_property
    def hooks(self) -> StepHooks:
        """The session hooks of the call and of the `model_fn`; the first use traces the step.

        Raises:
            UnsupportedOnCsError: A hook cannot run on the CS system.
        """
        model, mode = self._model, self._source.mode
        known = {tensor.name: name for name, tensor in self._model_outputs().items()}
        checkpoint = resolve_checkpoint(self._options.checkpoint, self._model_dir)
        scope = HookScope(model.graph, known, True, model.global_step, checkpoint_step(checkpoint))
        of_mode: Sequence[Any] = model.spec.prediction_hooks
        if mode == ModeKeys.TRAIN:
            of_mode = (*model.spec.training_hooks, *model.spec.training_chief_hooks)
        elif mode == ModeKeys.EVAL:
            of_mode = model.spec.evaluation_hooks
        hooks = StepHooks((*self._own_hooks, *of_mode), scope, self._model_dir)
        listeners = (*self._options.saving_listeners, *hooks.listeners)
        self._options = replace(self._options, saving_listeners=listeners)
        return hooks

    @cached_property
    def _imported(self) -> ImportedStep:
        from cgc.errors import GraphImportError  # late: workers have no compiler

        while True:
            try:
                imported = self._import()
            except GraphImportError as error:
                if not self._drop_unsupported(error):
                    raise
            else:
                warn_of_dropped_ops(imported.dropped)
                return imported

    def _drop_unsupported(self, error: GraphImportError) -> bool:
        """Drop summaries, or move metrics to this host, that cannot be imported; return True to try again."""
        details = error.details
        if self._source.mode == ModeKeys.TRAIN:
            dropped = self.summaries.drop_dependents([detail.node for detail in details if detail.node])
            if dropped:
                log.warning(
                    "the CS system cannot compute the summaries %s: they are not written", ", ".join(dropped)
                )
            return bool(dropped)
        if self._source.mode != ModeKeys.EVAL or not self._model.spec.host_call or self._host_metrics:
            return False
        self._host_metrics = HostMetrics(self._model.spec)
        ops = ", ".join(sorted({detail.op for detail in details if detail.op}))
        log.info("computing the metrics of host_call on this host: the CS system does not support %s", ops)
        return True

    def _model_outputs(self) -> dict[str, Any]:
        """Return the outputs of the step that the `model_fn` defines, without summaries of tensors."""
        spec, mode = self._model.spec, self._source.mode
        if mode == ModeKeys.TRAIN:
            return {"loss": spec.loss, **self.summaries.scalars}
        if mode == ModeKeys.EVAL:
            # Metrics are read from their totals at the end; but a step needs an output.
            return {"loss": spec.loss}
        return {prediction_output(name): tensor for name, tensor in predictions_by_name(spec).items()}

    def _import(self) -> ImportedStep:
        from cgc.importers.tensorflow import import_step, variable_writes

        model, mode = self._model, self._source.mode
        updates: Sequence[Any] = [model.spec.train_op]
        if self._host_metrics is not None:
            updates = []
        elif mode != ModeKeys.TRAIN:
            # Only the writes of an update: its value may need ops that the system does not support.
            updates = variable_writes([update for _, update in model.metrics.values()])
        return import_step(
            model.graph,
            inputs=model.inputs,
            outputs={
                **self._model_outputs(),
                **(self.summaries.shown if mode == ModeKeys.TRAIN else {}),
                **(self._host_metrics.outputs if self._host_metrics is not None else {}),
                **self.hooks.outputs,
            },
            updates=updates,
            mode=PROGRAM_MODES[mode],
            # Without a seed, initial weights differ from run to run, but dropout masks do not: a random seed
            # would make another program, which would have to be compiled for every run.
            seed=self._config.tf_random_seed or 0,
            global_step=model.global_step,
        )

    @cached_property
    def _large_state(self) -> LargeState | None:
        """The state of a training run that is too large for a session; None if a session can hold it."""
        scaffold, options = self._model.spec.scaffold, self._options
        # These need a session with all variables.
        needs_session = (
            options.saving_listeners or options.warm_start or (scaffold is not None and scaffold.saver)
        )
        if self._source.mode != ModeKeys.TRAIN or needs_session:
            return None
        graph, keys = self._model.graph, _keys(self._imported.variables).values()
        return LargeState(graph, self._model_dir, self._config) if can_be_held_in_parts(graph, keys) else None

    @property
    def _model_state(self) -> ModelState:
        if self._state is None:
            model = self._model
            self._state = ModelState(
                model.graph, model.spec.scaffold, self._model_dir, self._config, self._options
            )
        return self._state


def warn_of_dropped_ops(dropped: Iterable[str]) -> None:
    """Warn, once for each, of operations that a step on the CS system omits.

    Args:
        dropped: `cgc.importers.tensorflow.ImportedStep.dropped`.
    """
    for what in dropped:
        _warn_of_dropped(what)


@cache
def _warn_of_dropped(what: str) -> None:
    log.warning(
        "%s is omitted on the CS system, where a step cannot call this host; it runs on this CPU. To see "
        "values of every step, use a hook or a summary (docs/how-to/hooks.md)",
        what,
    )


def prediction_output(name: str) -> str:
    """Return the name of the step output that has a prediction."""
    return f"{PREDICTION}/{name}" if name else PREDICTION


def prediction_name(output_name: str) -> str | None:
    """Return the prediction that a step output has, or None: the inverse of `prediction_output`."""
    kind, _, name = output_name.removeprefix("output_").partition("/")
    return name if kind == PREDICTION else None


def _keys(variables: Mapping[str, str]) -> dict[str, str]:
    """Return names in a checkpoint by resource name."""
    return {name: _key(variable) for name, variable in variables.items()}


def _key(variable_name: str) -> str:
    """Return the name of a variable in a checkpoint: `dense/kernel:0` -> `dense/kernel`."""
    return variable_name.split(":")[0]

"""The program of a Keras model on the CS system: its traced step, state and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_runtime.program import StepProgram
from cs_toolkit.garbage import infrequent_collection
from cs_toolkit.step import GLOBAL_STEP, LOSS, METRIC_STATE
from estimator.checkpoints import checkpoint_step, resolve_checkpoint
from estimator.config import CSRunConfig
from estimator.cs.graph import op_name
from estimator.cs.hooks import HookScope, StepHooks
from estimator.cs.program import ProgramInput, warn_of_dropped_ops
from estimator.cs.state import ModelState, StateOptions
from estimator.errors import ModelFnError
from estimator.input.dataset import InputSource
from estimator.layer_lines import line_of
from estimator.spec import PROGRAM_MODES

if TYPE_CHECKING:
    from cgc.importers.tensorflow import ImportedKerasStep

_STEP_KEY = "global_step"


class KerasFrontEnd(ProgramInput):
    """Implements `cs_runtime.program.MeasuredFrontEnd` for a Keras model and an `input_fn`.

    A step is one call of the model's `train_step`, `test_step` or `predict_step`. Checkpoints have the
    variables, except those of metrics, under their Keras paths. In training, the values of every checkpoint
    are also written to the model itself.
    """

    def __init__(
        self,
        model: Any,
        source: InputSource,
        config: CSRunConfig,
        model_dir: Path,
        options: StateOptions,
        hooks: Sequence[Any] = (),
    ) -> None:
        super().__init__(source)
        self._model = model
        self._config = config
        self._model_dir = model_dir
        self._options = options
        self._own_hooks = tuple(hooks)

    @infrequent_collection()
    def program(self) -> StepProgram:
        """Trace the step.

        Raises:
            estimator.errors.EstimatorError: The model or `input_fn` cannot be used on the CS system.
            cgc.errors.CompileError: The compiler does not support something in the step.
        """
        program = self._program
        _ = self.hooks  # refuses a hook that cannot run, before anything is compiled
        return program

    def check_checkpoint(self) -> None:
        """Check that the checkpoint to start from, if there is one, is of this model.

        Raises:
            CheckpointReadError: The checkpoint cannot be read or is of another model.
        """
        checkpoint = resolve_checkpoint(self._options.checkpoint, self._model_dir)
        if checkpoint is not None:
            self._state.check(checkpoint)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the values of a checkpoint, or else of the model, by resource name; metrics are reset.

        Raises:
            CheckpointReadError: The checkpoint cannot be read or is of another model.
        """
        imported, state = self._imported, self._state
        self._model.reset_metrics()
        values = imported.initial_state()
        checkpoint = resolve_checkpoint(self._options.checkpoint, self._model_dir)
        state.start(checkpoint)
        given = {name: v for name, v in values.items() if checkpoint is None or name.startswith(METRIC_STATE)}
        state.assign({imported.variables[name]: value for name, value in given.items()})
        return dict(zip(imported.variables, state.read(list(imported.variables.values())), strict=True))

    @property
    def saves_between_steps(self) -> bool:
        """True if there are saving listeners, which may look at the state and ask to stop."""
        return bool(self._options.saving_listeners)

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Write the state to the model and to `model.ckpt-<step>`; return True if a listener asks to stop.

        Raises:
            CheckpointWriteError: No space or no permission; older checkpoints are unchanged.
        """
        self._imported.assign(state)
        paths = self._imported.variables
        self._state.assign({paths[name]: value for name, value in state.items() if name in paths})
        return self._state.save(step)

    def add_to_metrics(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Show the session hooks a step of an evaluation; the step itself updates all metrics."""
        self.hooks.show_evaluation_step(outputs)

    def metric_values(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the values of the metrics for the totals in a state."""
        self._imported.assign(state)
        values = self._model.get_metrics_result()
        return {name: np.asarray(value) for name, value in values.items()}

    def close(self) -> None:
        """Close the session that holds the variables."""
        if "_state" in vars(self):
            self._state.close()

    @property
    def summaries(self) -> None:
        """None: a Keras step has no summaries other than the values that it logs."""

    @property
    def graph(self) -> Any:
        """The graph of the model, for TensorBoard."""
        return self._imported.graph

    @cached_property
    def hooks(self) -> StepHooks:
        """The session hooks of the call; the first use traces the step.

        They look at the outputs of the step through a graph of placeholders with the names of the outputs.

        Raises:
            UnsupportedOnCsError: A hook cannot run on the CS system.
        """
        import tensorflow as tf

        checkpoint = resolve_checkpoint(self._options.checkpoint, self._model_dir)
        known = {}
        with tf.Graph().as_default() as graph:
            global_step = tf.compat.v1.train.create_global_step()
            shown = self._program.output_names
            for spec in (spec for spec in self._program.interface.outputs if spec.name in shown):
                name = spec.name.removeprefix("output_")
                known[tf.compat.v1.placeholder(spec.dtype, spec.shape, op_name(name)).name] = name
        scope = HookScope(graph, known, False, global_step, checkpoint_step(checkpoint))
        hooks = StepHooks(self._own_hooks, scope, self._model_dir)
        listeners = (*self._options.saving_listeners, *hooks.listeners)
        self._options = replace(self._options, saving_listeners=listeners)
        return hooks

    @cached_property
    def _program(self) -> StepProgram:
        from cs_runtime.step_program import step_program  # late: workers have no compiler

        mode = PROGRAM_MODES[self._source.mode]
        name = f"Keras model '{self._model.name}'"
        program = step_program(self._imported.module, mode, self.batch_size, self.input_names, name)
        if mode == "train" and LOSS not in program.output_names:
            logs = ", ".join(name.removeprefix("output_") for name in program.output_names) or "nothing"
            raise ModelFnError(
                f"train_step of the Keras model returns {logs}, expected the loss among them, as 'loss'"
            )
        scalars = [spec.name for spec in program.interface.outputs if not spec.shape and spec.name != LOSS]
        return replace(program, metrics=tuple(n for n in scalars if n in program.output_names))

    @cached_property
    def _imported(self) -> ImportedKerasStep:
        import tensorflow as tf

        from cgc.importers.tensorflow import import_keras_step

        specs = [tf.TensorSpec(c.shape, c.dtype) for c in self.element.components]
        batch = tf.nest.pack_sequence_as(self.element.structure, specs)
        imported = import_keras_step(
            self._model,
            batch if len(batch) > 1 else batch[0],
            mode=PROGRAM_MODES[self._source.mode],
            seed=self._config.tf_random_seed or 0,
            layer_line=line_of,
        )
        warn_of_dropped_ops(imported.dropped)
        names = {
            name: _STEP_KEY if name == GLOBAL_STEP else path for name, path in imported.variables.items()
        }
        return replace(imported, variables=names)

    @cached_property
    def _state(self) -> ModelState:
        """The variables in a separate graph, for checkpoints; metrics are local ones, which are not saved."""
        import tensorflow as tf

        v1 = tf.compat.v1
        local, saved = [v1.GraphKeys.LOCAL_VARIABLES], [v1.GraphKeys.GLOBAL_VARIABLES]
        with tf.Graph().as_default() as graph:
            for spec in self._program.interface.state:
                v1.get_variable(
                    self._imported.variables[spec.name],
                    spec.shape,
                    spec.dtype,
                    v1.zeros_initializer(),
                    trainable=False,
                    collections=local if spec.name.startswith(METRIC_STATE) else saved,
                    use_resource=True,
                )
        return ModelState(graph, None, self._model_dir, self._config, self._options)

"""Session hooks in a run on the CS system.

No session runs the steps there: the system computes ahead, and outputs arrive several steps at a time. A hook
that only looks at values gets them for every step, in order, through the calls that a session would make. All
other hooks are refused by name before anything is compiled.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_runtime.options import RunSettings
from estimator.checkpoints import CHECKPOINT_PREFIX
from estimator.errors import UnsupportedOnCsError

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

log = logging.getLogger("estimator")

# Prefix of the names of step outputs that only hooks use.
HOOK_OUTPUTS = "output_hook/"

# The output name of the global step, which is not an output of the step.
_STEP = ""

_HOST_TYPES = ("string", "resource", "variant")

# Advice for TensorFlow's hooks that do more than look at values, by class.
_ALTERNATIVES: Mapping[str, str] = {
    "FeedFnHook": "Provide the tensors by input_fn",
    "FinalOpsHook": "Compute the values from the checkpoint, with evaluate() or predict()",
    "GlobalStepWaiterHook": "Remove it: all tasks start together",
    "ProfilerHook": "Remove it: compile_report.html has the time of every kernel, performance.json the rates",
    "SummarySaverHook": "Remove it: the run itself writes summaries, every save_summary_steps steps",
}

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class HookScope:
    """The tensors that hooks can look at.

    Attributes:
        graph: The default graph of the hooks.
        outputs: Names of tensors in this graph -> names of the step outputs that have their values.
        is_extensible: More tensors of the graph can become outputs of the step.
        global_step: The variable that counts steps.
        step: The value of `global_step` before the first step.
    """

    graph: Any
    outputs: Mapping[str, str]
    is_extensible: bool
    global_step: Any
    step: int


class StepHooks:
    """Runs the hooks of a run; calls their `begin` methods when created.

    Args:
        hooks: Those of the call and of the `model_fn`.
        scope: The tensors that they can look at.
        model_dir: Directory of checkpoints.

    Attributes:
        outputs: Name -> tensor of the additional outputs of the step that the hooks need.
        listeners: The listeners of a `CheckpointSaverHook`.
        first_step: Global step before the first step.

    Raises:
        UnsupportedOnCsError: A hook cannot run on the CS system.
    """

    def __init__(self, hooks: Sequence[Any], scope: HookScope, model_dir: Path) -> None:
        import tensorflow as tf

        self.outputs: dict[str, Any] = {}
        self.listeners: tuple[Any, ...] = ()
        self.first_step = scope.step
        self._scope = scope
        self._savers: list[Any] = []
        self._hooks: list[Any] = []
        self._stop_at_step_hooks: list[Any] = []
        self._session = _ReadOnlySession(scope.graph, self._value)
        self._step = scope.step
        self._values: Values = {}
        self._stop_requested_by: str | None = None
        for hook in hooks:
            self._add(hook, model_dir)
        with scope.graph.as_default():
            for hook in self._hooks:
                hook.begin()
            for hook in self._hooks:
                self._session.user = _name(hook)
                hook.after_create_session(self._session, tf.compat.v1.train.Coordinator())
                self._record_fetches(hook)

    @property
    def last_step(self) -> int | None:
        """The global step at which a `StopAtStepHook` ends the run; None without one."""
        return min((hook._last_step for hook in self._stop_at_step_hooks), default=None)

    def adjust_settings(self, settings: RunSettings) -> RunSettings:
        """Return settings with the last step and the checkpoint interval that hooks set."""
        ends = [end for end in (settings.last_step, self.last_step) if end is not None]
        settings = replace(settings, last_step=min(ends, default=None))
        if not self._savers:
            return settings
        timer = self._savers[0]._timer
        return replace(settings, save_every_steps=timer._every_steps, save_every_s=timer._every_secs)

    def show_steps(self, outputs: StepOutputs) -> bool:
        """Show the hooks consecutive steps; return True if one of them asks to stop."""
        if not self._hooks:
            return False
        for row in range(outputs.count):
            values = {name: rows[row] for name, rows in outputs.outputs.items()}
            self.show_step(outputs.first_step + row + 1, values)
        return self._stop_requested_by is not None

    def show_step(self, step: int, values: Values) -> bool:
        """Show the hooks the outputs of a step.

        Args:
            step: Global step after it.
            values: Its outputs by name.

        Returns:
            True if a hook asks to stop, or did so before.
        """
        import tensorflow as tf

        if self._stop_requested_by is not None:
            return True
        with self._scope.graph.as_default():
            for hook in self._hooks:
                self._session.user = _name(hook)
                context = _context(self._session)
                # As in a session, before_run sees the global step before the step, after_run the one after.
                self._step, self._values = step - 1, values
                asked = hook.before_run(context)
                _list_fetches(hook, asked)  # refuses a hook that feeds tensors
                results = None
                if asked is not None:
                    tensors = tf.nest.map_structure(partial(self._resolve_fetch, hook), asked.fetches)
                    results = tf.nest.map_structure(self._value, tensors)
                self._step = step
                hook.after_run(context, tf.compat.v1.train.SessionRunValues(results, None, None))
                if context.stop_requested and self._stop_requested_by is None:
                    self._stop_requested_by = _name(hook)
                    log.info("%s asks to stop at global step %d", self._stop_requested_by, step)
        return self._stop_requested_by is not None

    def show_evaluation_step(self, values: Values) -> None:
        """Show the hooks a step of an evaluation.

        Raises:
            UnsupportedOnCsError: A hook asks to stop.
        """
        # The system has already added later batches to the metrics.
        if self.show_step(self.first_step, values):
            raise UnsupportedOnCsError(
                f"the hook {self._stop_requested_by} asks to stop an evaluation, which the CS system "
                "does not support; set the number of batches with steps, or evaluate on this CPU "
                "(use_cs=False)"
            )

    def end(self) -> None:
        """Call the `end` methods of the hooks after a successful run."""
        with self._scope.graph.as_default():
            for hook in self._hooks:
                hook.end(self._session)

    def _add(self, hook: Any, model_dir: Path) -> None:
        import tensorflow as tf

        train = tf.compat.v1.train
        for name, advice in _ALTERNATIVES.items():
            if isinstance(hook, getattr(train, name)):
                raise _refusal(hook, advice)
        if isinstance(hook, train.CheckpointSaverHook):
            if self._savers:
                raise _refusal(hook, "A run supports one of them: set one interval")
            base = model_dir / CHECKPOINT_PREFIX
            if hook._saver is not None or Path(hook._save_path).absolute() != base.absolute():
                raise _refusal(
                    hook,
                    f"It writes '{hook._save_path}' or has its own saver, while a run writes "
                    f"'{base}': pass the model_dir and no saver, and put a saver into the scaffold",
                )
            self._savers.append(hook)
            self.listeners = tuple(hook._listeners)
        else:
            self._hooks.append(hook)
        if isinstance(hook, train.StopAtStepHook):
            self._stop_at_step_hooks.append(hook)

    def _record_fetches(self, hook: Any) -> None:
        """Add the tensors that a hook fetches to the outputs of the step."""
        # A copy of the hook is called, because the call may change its counters.
        asked = copy.copy(hook).before_run(_context(self._session))
        for leaf in _list_fetches(hook, asked):
            tensor = self._resolve_fetch(hook, leaf)
            if self._output_name(tensor) is not None:
                continue
            if not self._scope.is_extensible:
                names = ", ".join(sorted(self._scope.outputs))
                raise _refusal(hook, f"It looks at '{tensor.name}', but the outputs of the step are {names}")
            self.outputs[f"hook/{len(self.outputs)}"] = tensor

    def _value(self, tensor: Any) -> np.ndarray:
        """Return the value of a tensor in the current step.

        Raises:
            UnsupportedOnCsError: The tensor is not an output of the step.
        """
        name = self._output_name(tensor)
        if name == _STEP:
            return np.asarray(self._step, tensor.dtype.as_numpy_dtype)[()]
        value = None if name is None else self._values.get(f"output_{name}")
        if value is None:
            raise UnsupportedOnCsError(
                f"the hook {self._session.user} asks for '{tensor.name}', which is not an output of the "
                "step: on the CS system a hook sees what its first before_run asks for. Ask for it there"
            )
        return np.asarray(value, tensor.dtype.as_numpy_dtype)[()]

    def _output_name(self, tensor: Any) -> str | None:
        """Return the name of the step output that has the value of a tensor, or None."""
        if self._is_global_step(tensor):
            return _STEP
        if tensor.name in self._scope.outputs:
            return self._scope.outputs[tensor.name]
        return next((name for name, known in self.outputs.items() if known is tensor), None)

    def _is_global_step(self, tensor: Any) -> bool:
        """Return True if a tensor reads the global step, as do reads that TensorFlow adds for hooks."""
        handle = self._scope.global_step.handle
        if tensor.graph is not handle.graph:
            return False
        if any(tensor is known for known in tensor.graph.get_collection("global_step_read_op_cache")):
            return True
        op = tensor.op
        while op.type in ("Identity", "Cast"):
            op = op.inputs[0].op
        return bool(op.type == "ReadVariableOp" and op.inputs[0] is handle)

    def _resolve_fetch(self, hook: Any, fetch: Any) -> Any:
        """Return the tensor that a hook fetches."""
        import tensorflow as tf

        try:
            element = self._scope.graph.as_graph_element(fetch)
        except (KeyError, TypeError, ValueError) as error:
            raise _refusal(
                hook, f"It asks for {fetch!r}, which is not a tensor of the model ({error})"
            ) from error
        if isinstance(element, tf.Operation):
            raise _refusal(hook, f"It runs '{element.name}'; make that part of the train_op")
        if element.dtype.base_dtype.name in _HOST_TYPES:
            raise _refusal(
                hook,
                f"It asks for '{element.name}' of type {element.dtype.name}; a step outputs numbers only",
            )
        return element


class _ReadOnlySession:
    """The session that hooks get: it returns the global step and outputs of the step, and refuses all else.

    Attributes:
        graph: The graph of the model.
        user: Name of the hook that is using it.
    """

    def __init__(self, graph: Any, value: Callable[[Any], Any]) -> None:
        self.graph = graph
        self.user = ""
        self._value = value

    def run(self, fetches: Any, feed_dict: Any = None, **options: Any) -> Any:
        """Return the values of tensors that are outputs of the current step."""
        import tensorflow as tf

        def value(fetch: Any) -> Any:
            element = self.graph.as_graph_element(fetch)
            if isinstance(element, tf.Operation):
                raise self._refusal(f"run '{element.name}'")
            return self._value(element)

        if feed_dict:
            raise self._refusal("feed tensors")
        return tf.nest.map_structure(value, fetches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refusal(f"use Session.{name}")

    def _refusal(self, what: str) -> UnsupportedOnCsError:
        return UnsupportedOnCsError(
            f"the hook {self.user} wants to {what}, but on the CS system no session runs the steps. Have it "
            "fetch tensors in before_run, use a saving listener for weights, or train on this CPU "
            "(use_cs=False)"
        )


def is_stop_at_step_hook(hook: Any) -> bool:
    """Return True if a hook ends training at a step that is known from the start."""
    import tensorflow as tf

    return isinstance(hook, tf.compat.v1.train.StopAtStepHook)


def _context(session: Any) -> Any:
    import tensorflow as tf

    train = tf.compat.v1.train
    return train.SessionRunContext(train.SessionRunArgs(None), session)


def _list_fetches(hook: Any, asked: Any) -> list[Any]:
    """Return the fetches of a hook; refuse one that feeds tensors."""
    import tensorflow as tf

    if asked is None:
        return []
    if asked.feed_dict:
        raise _refusal(hook, "It feeds tensors; provide them by input_fn")
    return list(tf.nest.flatten(asked.fetches))


def _refusal(hook: Any, advice: str) -> UnsupportedOnCsError:
    return UnsupportedOnCsError(
        f"the hook {_name(hook)} cannot run on the CS system. {advice}. Every hook runs on this CPU "
        "(use_cs=False)"
    )


def _name(hook: Any) -> str:
    return type(hook).__name__

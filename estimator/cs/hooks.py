"""Session hooks in a run on the CS system.

No session runs the steps there: the system is steps ahead, and what it puts out comes back some steps at a
time. A hook that only looks is shown the values of every step, in order, by the calls that a session makes.
All others are refused by name before anything is compiled.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_runtime.options import RunSettings
from estimator.checkpoints import CHECKPOINT_PREFIX
from estimator.errors import UnsupportedOnCsError

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

log = logging.getLogger("estimator")

OF_HOOKS = "output_hook/"
"""Begins the names of outputs of the step that only hooks have asked for."""

_STEP = ""
"""Stands for the global step among names of outputs."""

_HOST_TYPES = ("string", "resource", "variant")

_INSTEAD: Mapping[str, str] = {
    "FeedFnHook": "Give the tensors by input_fn",
    "FinalOpsHook": "Compute it from the checkpoint, with evaluate() or predict()",
    "GlobalStepWaiterHook": "Drop it: all tasks begin together",
    "ProfilerHook": "Drop it: compile_report.html has the time of every kernel, performance.json the rates",
    "SummarySaverHook": "Drop it: a run writes the summaries itself, every save_summary_steps steps",
}
"""By class, what takes the place of hooks of TensorFlow that do more than look."""

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Watched:
    """What hooks can look at.

    Attributes:
        graph: Their default graph.
        outputs: Names of the outputs of the step, by those of the tensors that they are in this graph.
        is_open: Whether further tensors of the graph can become outputs of the step.
        global_step: The variable that counts steps.
        step: Its value before the first step.
    """

    graph: Any
    outputs: Mapping[str, str]
    is_open: bool
    global_step: Any
    step: int


class StepHooks:
    """The hooks of one run, which have begun.

    Args:
        hooks: Of the call and of the `model_fn`.
        watched: What they can look at.
        model_dir: Where checkpoints go.

    Attributes:
        outputs: Name -> tensor: what the step has to put out for them besides.
        listeners: Those of a `CheckpointSaverHook`.
        first_step: Global step before the first step.

    Raises:
        UnsupportedOnCsError: one of them cannot run on the CS system.
    """

    def __init__(self, hooks: Sequence[Any], watched: Watched, model_dir: Path) -> None:
        self.outputs: dict[str, Any] = {}
        self.listeners: tuple[Any, ...] = ()
        self.first_step = watched.step
        self._watched = watched
        self._savers: list[Any] = []
        self._hooks: list[Any] = []
        self._stops: list[Any] = []
        self._session = _LookingSession(watched.graph, self._value)
        self._step = watched.step
        self._values: Values = {}
        self._asks: str | None = None
        for hook in hooks:
            self._take(hook, model_dir)
        self._begin()

    @property
    def last_step(self) -> int | None:
        """The global step at which `StopAtStepHook`s end the run; None without one."""
        return min((hook._last_step for hook in self._stops), default=None)

    def adjusted(self, settings: RunSettings) -> RunSettings:
        """Settings of a run with what `StopAtStepHook`s and `CheckpointSaverHook`s say in their place."""
        ends = [end for end in (settings.last_step, self.last_step) if end is not None]
        settings = replace(settings, last_step=min(ends, default=None))
        if not self._savers:
            return settings
        timer = self._savers[0]._timer
        return replace(settings, save_every_steps=timer._every_steps, save_every_s=timer._every_secs)

    def see_all(self, outputs: StepOutputs) -> bool:
        """`see` for consecutive steps, stacked."""
        if not self._hooks:
            return False
        for row in range(outputs.count):
            self.see(outputs.first_step + row + 1, {name: v[row] for name, v in outputs.outputs.items()})
        return self._asks is not None

    def see(self, step: int, values: Values) -> bool:
        """Shows the hooks what a step has put out.

        Args:
            step: Global step behind it.
            values: Its outputs by name.

        Returns:
            Whether one of them asks to stop, now or before.
        """
        import tensorflow as tf

        if self._asks is not None:
            return True
        with self._watched.graph.as_default():
            for hook in self._hooks:
                self._session.user = _name(hook)
                context = _context(self._session)
                # As in a session, a hook sees the global step before the step, and reads the one behind it.
                self._step, self._values = step - 1, values
                results = self._results(hook, hook.before_run(context))
                self._step = step
                hook.after_run(context, tf.compat.v1.train.SessionRunValues(results, None, None))
                if context.stop_requested and self._asks is None:
                    self._asks = _name(hook)
                    log.info("%s asks to stop at global step %d", self._asks, step)
        return self._asks is not None

    def watch(self, values: Values) -> None:
        """Shows the hooks a step of an evaluation.

        Raises:
            UnsupportedOnCsError: one of them asks to stop: the metrics of what comes then would be lost.
        """
        if self.see(self.first_step, values):
            raise UnsupportedOnCsError(
                f"the hook {self._asks} asks to stop an evaluation, which the CS system does not do; give "
                "the number of batches as steps, or evaluate on this CPU (use_cs=False)"
            )

    def end(self) -> None:
        """Tells the hooks that the run has ended well."""
        with self._watched.graph.as_default():
            for hook in self._hooks:
                hook.end(self._session)

    def _take(self, hook: Any, model_dir: Path) -> None:
        import tensorflow as tf

        train = tf.compat.v1.train
        for name, advice in _INSTEAD.items():
            if isinstance(hook, getattr(train, name)):
                raise _refusal(hook, advice)
        if isinstance(hook, train.CheckpointSaverHook):
            self._take_saver(hook, model_dir)
        else:
            self._hooks.append(hook)
        if isinstance(hook, train.StopAtStepHook):
            self._stops.append(hook)

    def _take_saver(self, hook: Any, model_dir: Path) -> None:
        if self._savers:
            raise _refusal(hook, "A run takes one of them: give one interval")
        base = model_dir / CHECKPOINT_PREFIX
        if hook._saver is not None or Path(hook._save_path).absolute() != base.absolute():
            raise _refusal(
                hook,
                f"It writes '{hook._save_path}', or with a saver of its own; a run writes "
                f"'{base}': give it the model_dir and no saver, which goes into the scaffold",
            )
        self._savers.append(hook)
        self.listeners = tuple(hook._listeners)

    def _begin(self) -> None:
        import tensorflow as tf

        with self._watched.graph.as_default():
            for hook in self._hooks:
                hook.begin()
            for hook in self._hooks:
                self._session.user = _name(hook)
                hook.after_create_session(self._session, tf.compat.v1.train.Coordinator())
                self._ask_first(hook)

    def _ask_first(self, hook: Any) -> None:
        """Finds out what a hook looks at; a copy of it is asked, which may count what it likes."""
        asked = copy.copy(hook).before_run(_context(self._session))
        for leaf in _leaves(hook, asked):
            tensor = self._tensor(hook, leaf)
            if self._name_of(tensor) is not None:
                continue
            if not self._watched.is_open:
                names = ", ".join(sorted(self._watched.outputs))
                raise _refusal(hook, f"It looks at '{tensor.name}', the step puts out {names}")
            self.outputs[f"hook/{len(self.outputs)}"] = tensor

    def _results(self, hook: Any, asked: Any) -> Any:
        import tensorflow as tf

        if asked is None:
            return None
        _leaves(hook, asked)  # that it feeds nothing
        return tf.nest.map_structure(lambda leaf: self._value(self._tensor(hook, leaf)), asked.fetches)

    def _value(self, tensor: Any) -> np.ndarray:
        """What a tensor was in the present step.

        Raises:
            UnsupportedOnCsError: it is no output of the step.
        """
        name = self._name_of(tensor)
        if name == _STEP:
            return np.asarray(self._step, tensor.dtype.as_numpy_dtype)[()]
        value = None if name is None else self._values.get(f"output_{name}")
        if value is None:
            raise UnsupportedOnCsError(
                f"the hook {self._session.user} asks for '{tensor.name}', which the step does not put out: "
                "on the CS system a hook sees what its first before_run asks for. Ask for it there"
            )
        return np.asarray(value, tensor.dtype.as_numpy_dtype)[()]

    def _name_of(self, tensor: Any) -> str | None:
        """The output that a tensor is; None where it is none."""
        if self._is_global_step(tensor):
            return _STEP
        if tensor.name in self._watched.outputs:
            return self._watched.outputs[tensor.name]
        return next((name for name, known in self.outputs.items() if known is tensor), None)

    def _is_global_step(self, tensor: Any) -> bool:
        """Whether a tensor is a read of the global step, also that which TensorFlow makes for its hooks."""
        handle = self._watched.global_step.handle
        if tensor.graph is not handle.graph:
            return False
        if any(tensor is known for known in tensor.graph.get_collection("global_step_read_op_cache")):
            return True
        op = tensor.op
        while op.type in ("Identity", "Cast"):
            op = op.inputs[0].op
        return bool(op.type == "ReadVariableOp" and op.inputs[0] is handle)

    def _tensor(self, hook: Any, fetch: Any) -> Any:
        """What a hook asks for, as a tensor."""
        import tensorflow as tf

        try:
            element = self._watched.graph.as_graph_element(fetch)
        except (KeyError, TypeError, ValueError) as error:
            raise _refusal(
                hook, f"It asks for {fetch!r}, which is no tensor of the model ({error})"
            ) from error
        if isinstance(element, tf.Operation):
            raise _refusal(hook, f"It runs '{element.name}'; make that part of the train_op")
        if element.dtype.base_dtype.name in _HOST_TYPES:
            raise _refusal(
                hook, f"It asks for '{element.name}' of type {element.dtype.name}; the step gives numbers"
            )
        return element


class _LookingSession:
    """What hooks get for a session: it knows the global step and what the step has put out.

    Attributes:
        graph: That of the model.
        user: Name of the hook that has it.
    """

    def __init__(self, graph: Any, value: Callable[[Any], Any]) -> None:
        self.graph = graph
        self.user = ""
        self._value = value

    def run(self, fetches: Any, feed_dict: Any = None, **options: Any) -> Any:
        """Values of tensors that the present step has put out."""
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
            f"the hook {self.user} wants to {what}, but on the CS system no session runs the steps. Let it "
            "look at what before_run asks for, use a saving listener for weights, or train on this CPU "
            "(use_cs=False)"
        )


def says_when_to_stop(hook: Any) -> bool:
    """Whether a hook ends a training at a step that it knows from the begin."""
    import tensorflow as tf

    return isinstance(hook, tf.compat.v1.train.StopAtStepHook)


def _context(session: Any) -> Any:
    import tensorflow as tf

    train = tf.compat.v1.train
    return train.SessionRunContext(train.SessionRunArgs(None), session)


def _leaves(hook: Any, asked: Any) -> list[Any]:
    """What a hook asks for; it must not feed anything."""
    import tensorflow as tf

    if asked is None:
        return []
    if asked.feed_dict:
        raise _refusal(hook, "It feeds tensors; give them by input_fn")
    return list(tf.nest.flatten(asked.fetches))


def _refusal(hook: Any, advice: str) -> UnsupportedOnCsError:
    return UnsupportedOnCsError(
        f"the hook {_name(hook)} cannot run on the CS system. {advice}. On this CPU (use_cs=False) every "
        "hook runs"
    )


def _name(hook: Any) -> str:
    return type(hook).__name__

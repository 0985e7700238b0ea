"""The state of a TensorFlow program on the CS system: variables as arrays, held whole or in parts."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from estimator.checkpoints import (
    CHECKPOINT_PREFIX,
    CheckpointWriter,
    check_variables,
    explain_restore_errors,
    literal_path,
    model_saver,
    open_checkpoint,
)
from estimator.config import CSRunConfig, one_shot_session_config
from estimator.spec import WarmStartSettings, apply_warm_start

log = logging.getLogger("estimator")

# From this size on, a state is held in parts; a smaller one is held whole, which is faster.
LARGE_BYTES = 1 << 30

# Size of a part, which is a file of the checkpoint; a larger tensor is a part by itself.
PART_BYTES = 128 << 20

_VARIABLES = ("VarHandleOp", "Variable", "VariableV2")


@dataclass(frozen=True)
class StateOptions:
    """The source of the initial state, and the listeners of checkpoints.

    Attributes:
        checkpoint: The checkpoint to restore; None for the newest one in `model_dir`.
        warm_start: The source of initial values if there is no checkpoint.
        saving_listeners: The user's `CheckpointSaverListener`s.
    """

    checkpoint: str | None = None
    warm_start: WarmStartSettings | None = None
    saving_listeners: tuple[Any, ...] = ()


class ModelState:
    """A TensorFlow session on this CPU that holds the variables of a graph and never runs a step.

    Args:
        graph: The graph of the model; a saver and assignments are added to it.
        scaffold: The user's scaffold, or None.
        model_dir: Directory of checkpoints.
        config: Sets the number of checkpoints to keep, and the options of the session.
        options: Where the state is restored from; the listeners of checkpoints.
    """

    def __init__(
        self,
        graph: Any,
        scaffold: Any,
        model_dir: Path,
        config: CSRunConfig,
        options: StateOptions,
    ) -> None:
        import tensorflow as tf

        v1 = tf.compat.v1
        self._graph = graph
        self._session_config = one_shot_session_config(config)
        self._warm_start = options.warm_start
        self._session: Any = None
        with graph.as_default():
            self._variables = {
                variable.op.name: variable for variable in [*v1.global_variables(), *v1.local_variables()]
            }
            self._saver = model_saver(scaffold)
            self._reads = {name: variable.read_value() for name, variable in self._variables.items()}
            self._values = {
                name: v1.placeholder(variable.dtype.base_dtype, variable.shape)
                for name, variable in self._variables.items()
            }
            self._assignments = {
                name: variable.assign(self._values[name], read_value=False)
                for name, variable in self._variables.items()
            }
        self._writer = CheckpointWriter(
            model_dir,
            self._saver,
            graph,
            config.keep_checkpoint_max,
            options.saving_listeners,
            config.keep_checkpoint_every_n_hours,
        )

    def start(self, checkpoint: str | None) -> None:
        """Initialize all variables, then restore a checkpoint; without one, use the warm start, if any.

        Raises:
            CheckpointReadError: The checkpoint cannot be read or is of another model.
        """
        import tensorflow as tf

        v1 = tf.compat.v1
        with self._graph.as_default():
            if checkpoint is None and self._warm_start is not None:
                apply_warm_start(self._warm_start)
            self._session = v1.Session(graph=self._graph, config=self._session_config)
            self._session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            self._session.run(v1.tables_initializer())
            if checkpoint is not None:
                check_variables(checkpoint, v1.global_variables())
                with explain_restore_errors(checkpoint):
                    self._saver.restore(self._session, literal_path(checkpoint))
                if not logging.getLogger("tensorflow").isEnabledFor(logging.INFO):
                    log.info("Restoring parameters from %s", checkpoint)  # otherwise the saver logs it

    def check(self, checkpoint: str) -> None:
        """Check that a checkpoint is of this graph, as `check_checkpoint` does."""
        check_checkpoint(self._graph, None, checkpoint)

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Return the current values of variables, given their names in a checkpoint."""
        values = self._session.run([self._reads[name] for name in names])
        return [np.asarray(value) for value in values]

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Assign values to variables, by their names in a checkpoint; other variables keep theirs."""
        feeds = {
            self._values[name]: np.asarray(value, dtype=self._variables[name].dtype.as_numpy_dtype)
            for name, value in values.items()
        }
        self._session.run([self._assignments[name] for name in values], feeds)

    def evaluate(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Compute tensors of the model's graph from the current values of its variables."""
        values: dict[str, Any] = self._session.run(dict(tensors))
        return values

    def save(self, step: int) -> bool:
        """Write a checkpoint of the current values; return True if a listener asks to stop.

        Raises:
            CheckpointWriteError: No space or no permission; older checkpoints are unchanged.
        """
        return self._writer.write(self._session, step)

    def close(self) -> None:
        """End the listeners and close the session."""
        if self._session is not None:
            if self._writer.last_step is not None:
                self._writer.end(self._session, self._writer.last_step)
            self._session.close()
            self._session = None


def check_checkpoint(graph: Any, scaffold: Any, prefix: str) -> None:
    """Check that a checkpoint is of the model of a graph, without reading its tensors.

    Args:
        graph: The graph of the model.
        scaffold: The user's scaffold, or None.
        prefix: The checkpoint.

    Raises:
        CheckpointReadError: The checkpoint cannot be read or is of another model.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with graph.as_default():
        # A saver of the program may restore a part of the variables, or by other names.
        own_saver = v1.get_collection(v1.GraphKeys.SAVERS) or (scaffold is not None and scaffold.saver)
        check_variables(prefix, v1.global_variables(), all_saved=not own_saver)


class LargeState:
    """The saved variables of a graph, of which this process holds one part at a time.

    Initial values are computed part by part and written as the checkpoint of step 0, from which the CS system
    gets them tensor by tensor.

    Args:
        graph: The graph of the model; a saver is added to it.
        model_dir: Directory of checkpoints.
        config: Sets the number of checkpoints to keep, and the options of sessions.
    """

    def __init__(self, graph: Any, model_dir: Path, config: CSRunConfig) -> None:
        import tensorflow as tf

        self._graph, self._config = graph, config
        with graph.as_default():
            self._variables = _variables_by_name()
            saver = tf.compat.v1.train.Saver(max_to_keep=None)
        self._model_dir = model_dir
        self._writer = CheckpointWriter(
            model_dir,
            PartSaver(saver),
            graph,
            config.keep_checkpoint_max,
            keep_every_hours=config.keep_checkpoint_every_n_hours,
        )
        self._stored = StoredTensors("", ())

    def start(self, checkpoint: str | None, keys: Mapping[str, str]) -> Mapping[str, np.ndarray]:
        """Return the values of a checkpoint, or else the initial values, written as the one of step 0.

        Args:
            checkpoint: Prefix of the checkpoint, or None.
            keys: Names in the result -> names in the checkpoint.

        Raises:
            CheckpointReadError: The checkpoint cannot be read or is of another model.
            CheckpointWriteError: No space or no permission.
        """
        if checkpoint is None:
            with self._graph.as_default():
                values = compute_initial_values(self._variables, one_shot_session_config(self._config))
                self._writer.write(values, 0)
            self._keep(0)
        else:
            check_variables(checkpoint, self._variables.values(), all_saved=True)
            log.info("Restoring parameters from %s", checkpoint)
            self._stored = StoredTensors(checkpoint, self._variables)
        return RenamedTensors(self._stored, keys)

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Write a checkpoint; variables that `state` lacks keep their values.

        Args:
            step: Global step.
            state: Values by their names in a checkpoint; each tensor is read once.

        Returns:
            False: there are no listeners, which could ask to stop.
        """
        if step == self._writer.last_step:  # the initial values, which `start` has written
            return False
        stop = self._writer.write(self._values(state), step)
        self._keep(step)
        return stop

    def close(self) -> None:
        """Do nothing: no session stays open."""

    def _values(self, state: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        for name, variable in self._variables.items():
            value = (state if name in state else self._stored)[name]
            yield name, np.asarray(value, variable.dtype.as_numpy_dtype)

    def _keep(self, step: int) -> None:
        prefix = str(self._model_dir / f"{CHECKPOINT_PREFIX}-{step}")
        self._stored = StoredTensors(prefix, self._variables)


def can_be_held_in_parts(graph: Any, keys: Iterable[str]) -> bool:
    """Return True if a state is large, and `LargeState` can hold it.

    Args:
        graph: The graph of the model.
        keys: Names, in a checkpoint, of the state of its step.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with graph.as_default():
        variables = _variables_by_name()
        own = v1.get_collection(v1.GraphKeys.SAVERS) or v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)
        return (
            sum(_nbytes(variable) for variable in variables.values()) > LARGE_BYTES
            and not own
            and all(key in variables for key in keys)
            and not any(variable._get_save_slice_info() for variable in variables.values())
            and can_initialize_in_parts(variables.values())
        )


def _variables_by_name() -> dict[str, Any]:
    import tensorflow as tf

    return {variable.op.name: variable for variable in tf.compat.v1.global_variables()}


def _nbytes(variable: Any) -> int:
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.base_dtype.size)


class RenamedTensors(Mapping[str, np.ndarray]):
    """A view of tensors under other names, each read on access.

    Args:
        tensors: The tensors under their own names.
        keys: Names in the view -> own names.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], keys: Mapping[str, str]) -> None:
        self._tensors, self._keys = tensors, keys

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[self._keys[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class StoredTensors(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint, each read on access.

    Args:
        prefix: Prefix of the checkpoint.
        names: Names of its tensors.
    """

    def __init__(self, prefix: str, names: Collection[str]) -> None:
        self._prefix, self._names = prefix, names

    def __getitem__(self, name: str) -> np.ndarray:
        with open_checkpoint(self._prefix) as reader:
            return np.asarray(reader.get_tensor(name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class PartSaver:
    """Replaces a `tf.train.Saver`, but saves given values instead of those of a session.

    Args:
        saver: The saver of the graph, which exports the meta graph.
    """

    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def save(
        self,
        values: Iterable[tuple[str, np.ndarray]],
        prefix: str,
        *,
        global_step: int,
        write_state: Literal[False],
        write_meta_graph: Literal[False],
    ) -> None:
        """Write the checkpoint `prefix-global_step`: a data file for each part, then one index of all.

        Raises:
            OSError, tf.errors.OpError: No space or no permission; no part is left.
        """
        import tensorflow as tf

        target = Path(f"{prefix}-{global_step}")
        folder = target.with_name(f"{target.name}-parts")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            parts = []
            for number, part in enumerate(split_into_parts(values)):
                parts.append(str(folder / f"part-{number:05d}"))
                _write_part(parts[-1], part)
                part.clear()  # frees it before the next part is computed
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                session.run(
                    tf.raw_ops.MergeV2Checkpoints(
                        checkpoint_prefixes=parts, destination_prefix=str(target), delete_old_dirs=False
                    )
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def export_meta_graph(self, path: str) -> None:
        """Write the meta graph of the default graph."""
        self._saver.export_meta_graph(path)


def split_into_parts(values: Iterable[tuple[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Group values into parts of about `PART_BYTES`."""
    part: dict[str, np.ndarray] = {}
    nbytes = 0
    for name, value in values:
        part[name] = value
        nbytes += value.nbytes
        if nbytes >= PART_BYTES:
            yield part
            part, nbytes = {}, 0
    if part:
        yield part


def compute_initial_values(variables: Mapping[str, Any], config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Compute the initial values of variables of the default graph, part by part.

    Args:
        variables: The variables by their names in a checkpoint.
        config: The configuration of TensorFlow sessions.
    """
    import tensorflow as tf

    names: list[str] = []
    nbytes = 0
    last = next(reversed(list(variables)), None)
    for name, variable in variables.items():
        names.append(name)
        nbytes += _nbytes(variable)
        if nbytes >= PART_BYTES or name == last:
            # A new session for each part, because a session keeps the constants that it has folded.
            with closing(tf.compat.v1.Session(config=config)) as session:
                values = session.run([variables[name].initial_value for name in names])
            while values:  # pop, to keep no reference to a value that the caller has
                yield names.pop(), np.asarray(values.pop())
            nbytes = 0


def can_initialize_in_parts(variables: Iterable[Any]) -> bool:
    """Return True if the initial value of each variable can be computed without those of the others."""
    # It cannot if it depends on the value of another variable, or if two share a random op.
    taken: set[Any] = set()
    for variable in variables:
        op = variable.initial_value.op
        makers, waiting = {op}, [op]  # the operations that it depends on, and itself
        while waiting:
            current = waiting.pop()
            fresh = {tensor.op for tensor in current.inputs} | set(current.control_inputs)
            waiting += fresh - makers
            makers |= fresh
        if any(op.type in _VARIABLES for op in makers):
            return False
        stateful = {op for op in makers if op.op_def is None or op.op_def.is_stateful}
        if stateful & taken:
            return False
        taken |= stateful
    return True


def _write_part(prefix: str, part: Mapping[str, np.ndarray]) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        fed = [v1.placeholder(value.dtype, value.shape) for value in part.values()]
        save = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(part), shape_and_slices=[""] * len(part), tensors=fed
        )
        session.run(save, dict(zip(fed, part.values(), strict=True)))

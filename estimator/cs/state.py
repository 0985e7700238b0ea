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
    check_shapes,
    explain_restore_errors,
    model_saver,
    open_checkpoint,
)
from estimator.config import CSRunConfig, once_config
from estimator.errors import CheckpointReadError
from estimator.spec import WarmStartSettings, warm_start

log = logging.getLogger("estimator")


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


class ModelState:
    """A TensorFlow session on this CPU that holds the variables of a graph and never runs a step.

    Args:
        graph: That of a model; savers and assignments are added to it.
        scaffold: The user's, or None.
        model_dir: Where checkpoints are written.
        config: Says how many of them are kept, and how the session is configured.
        options: Where the state comes from; the listeners of checkpoints.
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
        self._session_config = once_config(config)
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
        """Initializes all variables, then restores a checkpoint; warm-started values where there is none.

        Raises:
            CheckpointReadError: a checkpoint cannot be read or is of another model.
        """
        import tensorflow as tf

        v1 = tf.compat.v1
        with self._graph.as_default():
            if checkpoint is None and self._warm_start is not None:
                warm_start(self._warm_start)
            self._session = v1.Session(graph=self._graph, config=self._session_config)
            self._session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            self._session.run(v1.tables_initializer())
            if checkpoint is not None:
                check_shapes(checkpoint, v1.global_variables())
                with explain_restore_errors(checkpoint):
                    self._saver.restore(self._session, checkpoint)
                if not logging.getLogger("tensorflow").isEnabledFor(logging.INFO):
                    log.info("Restoring parameters from %s", checkpoint)  # else the saver has said so

    def read(self, names: Sequence[str]) -> list[np.ndarray]:
        """Present values of variables, by the names that a checkpoint has them under."""
        values = self._session.run([self._reads[name] for name in names])
        return [np.asarray(value) for value in values]

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Replaces values; a variable that is not named keeps its own."""
        feeds = {
            self._values[name]: np.asarray(value, dtype=self._variables[name].dtype.as_numpy_dtype)
            for name, value in values.items()
        }
        self._session.run([self._assignments[name] for name in values], feeds)

    def evaluate(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors of the model's graph for the present values of its variables."""
        values: dict[str, Any] = self._session.run(dict(tensors))
        return values

    def save(self, step: int) -> bool:
        """Writes a checkpoint of the present values; returns whether a listener asks to stop.

        Raises:
            CheckpointWriteError: no space or permission; older checkpoints are as they were.
        """
        return self._writer.write(self._session, step)

    def close(self) -> None:
        """Tells the listeners that it is over and frees the session."""
        if self._session is not None:
            if self._writer.last_step is not None:
                self._writer.end(self._session, self._writer.last_step)
            self._session.close()
            self._session = None


LARGE_BYTES = 1 << 30
"""A smaller state is held whole, which is faster."""

PART_BYTES = 128 << 20
"""Of a part: a file of the checkpoint; a larger tensor is one alone."""


class LargeState:
    """The saved variables of a graph, of which this process holds a part at a time.

    Args:
        graph: That of a model; a saver is added to it.
        model_dir: Where checkpoints are written.
        config: Says how many of them are kept, and how sessions are configured.
    """

    def __init__(self, graph: Any, model_dir: Path, config: CSRunConfig) -> None:
        import tensorflow as tf

        self._graph, self._config = graph, config
        with graph.as_default():
            self._variables = _saved_variables()
            saver = tf.compat.v1.train.Saver(max_to_keep=None)
        self._model_dir = model_dir
        self._writer = CheckpointWriter(
            model_dir,
            PartSaver(saver),
            graph,
            config.keep_checkpoint_max,
            keep_every_hours=config.keep_checkpoint_every_n_hours,
        )
        self._stored = Stored("", ())

    def start(self, checkpoint: str | None, keys: Mapping[str, str]) -> Mapping[str, np.ndarray]:
        """The values of a checkpoint; without one the first values, which become that of step 0.

        Args:
            checkpoint: Its prefix.
            keys: Names in the checkpoint by those in the result.

        Raises:
            CheckpointReadError: the checkpoint cannot be read or is of another model.
            CheckpointWriteError: no space or permission.
        """
        if checkpoint is None:
            with self._graph.as_default():
                values = first_values(self._variables, once_config(self._config))
                self._writer.write(values, 0)
            self._keep(0)
        else:
            self._check(checkpoint)
            log.info("Restoring parameters from %s", checkpoint)
            self._stored = Stored(checkpoint, self._variables)
        return Renamed(self._stored, keys)

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Writes a checkpoint; what `state` lacks keeps its value. See `ModelState.save`.

        Args:
            step: Global step.
            state: By the names that a checkpoint has; each tensor is asked for once.
        """
        if step == self._writer.last_step:  # the first values, which `start` has written
            return False
        stop = self._writer.write(self._values(state), step)
        self._keep(step)
        return stop

    def close(self) -> None:
        """Nothing: no session is kept."""

    def _values(self, state: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        for name, variable in self._variables.items():
            value = (state if name in state else self._stored)[name]
            yield name, np.asarray(value, variable.dtype.as_numpy_dtype)

    def _keep(self, step: int) -> None:
        prefix = str(self._model_dir / f"{CHECKPOINT_PREFIX}-{step}")
        self._stored = Stored(prefix, self._variables)

    def _check(self, checkpoint: str) -> None:
        check_shapes(checkpoint, self._variables.values())
        with open_checkpoint(checkpoint) as reader:
            lacking = [name for name in self._variables if not reader.has_tensor(name)]
        if lacking:
            raise CheckpointReadError(checkpoint, f"it lacks the variables {', '.join(lacking)}")


def fits_parts(graph: Any, keys: Iterable[str]) -> bool:
    """Whether `LargeState` can have the state of a graph, which is large and of which it knows all.

    Args:
        graph: That of a model.
        keys: Names in a checkpoint of the state of its step.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with graph.as_default():
        variables = _saved_variables()
        own = v1.get_collection(v1.GraphKeys.SAVERS) or v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS)
        return (
            sum(_nbytes(variable) for variable in variables.values()) > LARGE_BYTES
            and not own
            and all(key in variables for key in keys)
            and not any(variable._get_save_slice_info() for variable in variables.values())
            and begins_in_parts(variables.values())
        )


def _saved_variables() -> dict[str, Any]:
    import tensorflow as tf

    return {variable.op.name: variable for variable in tf.compat.v1.global_variables()}


def _nbytes(variable: Any) -> int:
    return int(variable.shape.num_elements() or 0) * int(variable.dtype.base_dtype.size)


class Renamed(Mapping[str, np.ndarray]):
    """Tensors under other names, each got when it is asked for.

    Args:
        tensors: Under their own names.
        keys: The own name of each name here.
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


class Stored(Mapping[str, np.ndarray]):
    """Tensors of a checkpoint, each read when it is asked for.

    Args:
        prefix: Of the checkpoint.
        names: Of its tensors.
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
    """Stands where a `tf.train.Saver` does, but saves given values in place of a session's.

    Args:
        saver: That of the graph, which writes what the checkpoint says of it.
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
    ) -> None:
        """Writes `prefix-global_step`: one data file a part, then one index of all.

        Raises:
            OSError, tf.errors.OpError: no space or permission; no part is left.
        """
        import tensorflow as tf

        target = Path(f"{prefix}-{global_step}")
        folder = target.with_name(f"{target.name}-parts")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            parts = []
            for number, part in enumerate(in_parts(values)):
                parts.append(str(folder / f"part-{number:05d}"))
                _write_part(parts[-1], part)
                part.clear()  # before the next one is made
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                session.run(
                    tf.raw_ops.MergeV2Checkpoints(
                        checkpoint_prefixes=parts, destination_prefix=str(target), delete_old_dirs=False
                    )
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._saver.export_meta_graph(f"{target}.meta")


def in_parts(values: Iterable[tuple[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """The same values in groups of about `PART_BYTES`."""
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


def first_values(variables: Mapping[str, Any], config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The values that variables of the present graph begin with, computed a part at a time.

    Args:
        variables: By the names that a checkpoint has them under.
        config: Of the TensorFlow session.
    """
    import tensorflow as tf

    names: list[str] = []
    nbytes = 0
    last = next(reversed(list(variables)), None)
    for name, variable in variables.items():
        names.append(name)
        nbytes += _nbytes(variable)
        if nbytes >= PART_BYTES or name == last:
            # A session of its own, as one keeps what it finds to be constant.
            with closing(tf.compat.v1.Session(config=config)) as session:
                values = session.run([variables[name].initial_value for name in names])
            while values:  # and keep none that has been given
                yield names.pop(), np.asarray(values.pop())
            nbytes = 0


def begins_in_parts(variables: Iterable[Any]) -> bool:
    """Whether the first value of each variable can be computed without the others.

    It cannot where one is the value of another, or where two share random numbers.
    """
    taken: set[Any] = set()
    for variable in variables:
        makers = _ancestors(variable.initial_value.op)
        if any(op.type in _VARIABLES for op in makers):
            return False
        stateful = {op for op in makers if op.op_def is None or op.op_def.is_stateful}
        if stateful & taken:
            return False
        taken |= stateful
    return True


_VARIABLES = ("VarHandleOp", "Variable", "VariableV2")


def _ancestors(op: Any) -> set[Any]:
    found, waiting = {op}, [op]
    while waiting:
        current = waiting.pop()
        fresh = {tensor.op for tensor in current.inputs} | set(current.control_inputs)
        waiting += fresh - found
        found |= fresh
    return found


def _write_part(prefix: str, part: Mapping[str, np.ndarray]) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        fed = [v1.placeholder(value.dtype, value.shape) for value in part.values()]
        save = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=list(part), shape_and_slices=[""] * len(part), tensors=fed
        )
        session.run(save, dict(zip(fed, part.values(), strict=True)))

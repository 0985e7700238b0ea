"""The input function of a program: the structure of its batches, reading them, and closing its sessions."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from cs_runtime import tasks
from cs_runtime.errors import ShardingError
from cs_runtime.input_source import narrow_integers
from cs_toolkit.garbage import leave_at_exit
from csrun.schedulers.tasks import worker_variables
from csrun.tasks.environment import environment_variables
from estimator.calling import call_input_fn
from estimator.errors import ComponentTypeError, InputFnError, InputShapeError
from estimator.input.iterator_state import StateFolder
from estimator.input.position import PositionedDataset, PositionedTensors
from estimator.spec import ModeKeys
from input_rules.input_export import Shard

_FIXED_SHAPE = "Use batch(batch_size, drop_remainder=True), and pad or set_shape() what varies in size"
_CAST_ADVICE = {"float64": "float32", "uint16": "int32", "int16": "int32", "complex64": "float32"}
FEATURES_AND_LABELS = ("features", "labels")


class WeightedLabels(NamedTuple):
    """Labels with the weight of each sample."""

    labels: Any
    sample_weight: Any


@dataclass(frozen=True)
class InputSource:
    """An input function with the arguments and the environment of its calls.

    Attributes:
        input_fn: The user's function.
        mode: One of ModeKeys.
        params: The estimator's parameters.
        config: The estimator's configuration.
        tf_config: The TF_CONFIG that the function sees; empty for none.
        num_shards: Number of tasks that read input.
        shard: Index of this task among them.
        parts: Names of the members of a batch, in order; a batch is a tuple of all or of the first of them.
        states: Folder of iterator states, for runs that resume this one; None saves no states.
        as_worker: Show the function the environment of a worker that reads this shard, not that of the task.
    """

    input_fn: Callable[..., Any]
    mode: str
    params: Mapping[str, Any]
    config: Any
    tf_config: dict[str, Any]
    num_shards: int = 1
    shard: int = 0
    parts: tuple[str, ...] = FEATURES_AND_LABELS
    states: StateFolder | None = None
    as_worker: bool = False

    def call(self) -> Any:
        """Call the function in the default graph."""
        return self.call_and_watch()[0]

    def call_and_watch(self) -> tuple[Any, bool]:
        """Call the function in the default graph; return also whether it has asked for its shard."""
        shard = Shard(self.num_shards, self.shard)
        variables = worker_variables(os.environ, shard.count, shard.index)
        with (
            tasks.export_config(self.tf_config),
            environment_variables(variables) if self.as_worker else nullcontext(),
            tasks.watch_environment(variables) as asked,
        ):
            result = call_input_fn(
                self.input_fn, self.mode, self.params, self.config, shard.count, shard.index, asked
            )
        return result, bool(asked)


@dataclass(frozen=True)
class Component:
    """One tensor of a batch: its path in the element, its TensorFlow dtype, its shape."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Element:
    """A batch of the input: the structure that `model_fn` gets, and its tensors in streaming order.

    Attributes:
        structure: `(features,)`, `(features, labels)` and so on, with a leaf for every tensor.
        components: The leaves in the order of `tf.nest.flatten`.
        graph_ops: Number of operations that reading the input adds to a graph.
        asks_for_shard: The function has asked for number and index of its shard when it was called.
    """

    structure: tuple[Any, ...]
    components: tuple[Component, ...]
    graph_ops: int
    asks_for_shard: bool = False

    def pack(self, tensors: list[Any]) -> tuple[Any, Any]:
        """Pack one tensor for each component into `(features, labels)`; labels may be None."""
        import tensorflow as tf

        packed = tf.nest.pack_sequence_as(self.structure, tensors)
        return (packed[0], packed[1]) if len(packed) == 2 else (packed[0], None)


def describe(source: InputSource) -> Element:
    """Call the input function in a new graph and describe its batches.

    Raises:
        InputShapeError: A component has an unknown size.
        InputFnError: The result is neither a Dataset nor tensors, or a component cannot be streamed.
    """
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(source.config.tf_random_seed)
        result, asks = source.call_and_watch()
        spec = result.element_spec if isinstance(result, tf.data.Dataset) else result
        structure = _split_element(spec, source.parts, source.mode)
        leaves = tf.nest.flatten(structure)
        names = component_names(structure, source.parts)
        components = tuple(_component(name, leaf) for name, leaf in zip(names, leaves, strict=True))
        indices = tf.nest.pack_sequence_as(structure, list(range(len(leaves))))
        read_in_graph(result)
    return Element(indices, components, len(graph.get_operations()), asks)


def read(source: InputSource, seed: int | None, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Build the input and yield its batches after the first `skip`, with one array for each component.

    64-bit integers are converted to 32 bits. This works with and without eager execution, in any thread.
    Closing the iterator does not wait for the input function.

    Raises:
        InputFnError: An integer does not fit into 32 bits.
        Exception: An error of the input, unchanged.
    """
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.set_random_seed(seed)
        result, asks = source.call_and_watch()
        if source.as_worker and not asks:
            raise ShardingError
        if isinstance(result, tf.data.Dataset):
            way: PositionedDataset | PositionedTensors = PositionedDataset(result, skip, source.states)
        else:
            way = PositionedTensors(result, skip)
        structure = _split_element(way.element, source.parts, source.mode)
        names = component_names(structure, source.parts)
        tensors = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(structure)]
        tables = tf.compat.v1.tables_initializer()
    close_deferred()
    session = tf.compat.v1.Session(graph=graph)
    try:
        session.run(tables)
        take = session.make_callable(tensors)
        arrays = way.read_first(session, take)
        for number in itertools.count(skip + 1):
            yield tuple(narrow_integers(name, array) for name, array in zip(names, arrays, strict=True))
            way.record_position(session, number)
            arrays = take()
    except tf.errors.OutOfRangeError:
        return
    finally:
        defer_close(session)


def read_in_model_graph(source: InputSource) -> tuple[Any, Any]:
    """Return `(features, labels)` of the next batch as tensors of the default graph; labels may be None.

    The iterator is initialized with the graph's tables.
    """
    return features_and_labels(read_in_graph(source.call()), source.mode, source.parts)


def features_and_labels(
    element: Any, mode: str = ModeKeys.TRAIN, parts: tuple[str, ...] = FEATURES_AND_LABELS
) -> tuple[Any, Any]:
    """Split an element into features and labels, which are None if it has none, and to predict.

    Labels with sample weights, for Keras models, are returned as `WeightedLabels`.

    Raises:
        InputFnError: The element has more members than `parts`.
    """
    features, *others = _split_element(element, parts, mode)
    if len(others) > 1:
        return features, WeightedLabels(*others)
    return features, others[0] if others else None


def read_in_graph(result: Any) -> Any:
    """Return the next element of a Dataset as tensors of the default graph; return tensors unchanged."""
    import tensorflow as tf

    if not isinstance(result, tf.data.Dataset):
        return result
    iterator = tf.compat.v1.data.make_initializable_iterator(result)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def component_names(structure: tuple[Any, ...], parts: Sequence[str] = FEATURES_AND_LABELS) -> list[str]:
    """Return the names of the leaves in the order of `tf.nest.flatten`, e.g. `features/image`, `labels`."""
    names: list[str] = []
    for name, part in zip(parts, structure, strict=False):
        names += _leaf_names(name, part)
    return names


def spec_component_names(source: InputSource, spec: Any) -> list[str]:
    """Return the names of the components of a Dataset with the given `element_spec`.

    Raises:
        InputFnError: The run cannot read such elements.
    """
    return component_names(_split_element(spec, source.parts, source.mode), source.parts)


def _leaf_names(prefix: str, part: Any) -> list[str]:
    if isinstance(part, Mapping):
        # tf.nest walks mappings in the order of their sorted keys.
        return [leaf for key in sorted(part) for leaf in _leaf_names(f"{prefix}/{key}", part[key])]
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return [leaf for key in part._fields for leaf in _leaf_names(f"{prefix}/{key}", getattr(part, key))]
    if isinstance(part, (tuple, list)):
        return [leaf for index, item in enumerate(part) for leaf in _leaf_names(f"{prefix}/{index}", item)]
    return [prefix]


def _split_element(element: Any, names: Sequence[str], mode: str) -> tuple[Any, ...]:
    """Split an element into `(features,)`, `(features, labels)` and so on; to predict, into the first."""
    if element is None:
        raise InputFnError("input_fn returned None, expected a Dataset, tensors, or (features, labels)")
    if isinstance(element, (tuple, list)) and not hasattr(element, "_fields"):
        if not 2 <= len(element) <= len(names):
            members = " or ".join(f"({', '.join(names[:n])})" for n in range(2, len(names) + 1))
            raise InputFnError(
                f"input_fn must return {members}; got a tuple of {len(element)} members. "
                "Put several features into one dict"
            )
        if mode == ModeKeys.PREDICT:
            return (element[0],)
        *others, last = element
        return (*others,) if last is None else (*others, last)
    return (element,)


def _component(name: str, leaf: Any) -> Component:
    import tensorflow as tf

    if not isinstance(leaf, tf.TensorSpec) and not (tf.is_tensor(leaf) and isinstance(leaf, tf.Tensor)):
        raise InputFnError(
            f"component '{name}' of the input is {type(leaf).__name__}, expected a dense tensor; "
            "convert it, e.g. with tf.data.Dataset.from_tensor_slices, tf.constant, tf.sparse.to_dense or "
            "to_tensor(shape=...)"
        )
    if leaf.dtype in (tf.string, tf.resource, tf.variant):
        raise ComponentTypeError(name, leaf.dtype.name, "convert it to numbers in input_fn")
    if leaf.dtype.name in _CAST_ADVICE:
        advice = f"cast it in input_fn: tf.cast(x, tf.{_CAST_ADVICE[leaf.dtype.name]})"
        raise ComponentTypeError(name, leaf.dtype.name, advice)
    if leaf.shape.rank is None:
        raise InputShapeError(name, None, _FIXED_SHAPE)
    if not leaf.shape.is_fully_defined():
        raise InputShapeError(name, leaf.shape.as_list(), _FIXED_SHAPE)
    return Component(name, leaf.dtype, tuple(leaf.shape.as_list()))


class _DeferredSessions:
    """TensorFlow sessions that are no longer needed and that the next run closes."""

    # Closing a session waits for its dataset: 9 s for a shuffle that fills a buffer of 10 million elements,
    # 5 s for a map whose function takes 5 s. At the end of the process TensorFlow would wait once more, so a
    # process with sessions left exits early.

    def __init__(self) -> None:
        self._sessions: list[Any] = []
        self._lock = threading.Lock()

    def add(self, session: Any) -> None:
        """Keep a session open."""
        _exit_before_tensorflow()
        # Keep a reference: otherwise Python closes the session at its end, and waits.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        with self._lock:
            self._sessions.append(session)

    def close_all(self) -> None:
        """Close the sessions in a background thread."""
        with self._lock:
            sessions, self._sessions = self._sessions, []

        def close() -> None:
            for session in sessions:
                session.close()
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(session))

        if sessions:
            # Not a daemon: TensorFlow aborts a process whose interpreter ends during such a call.
            threading.Thread(target=close, name="close-sessions").start()


@cache
def _exit_before_tensorflow() -> None:
    """Make the process exit with its exit code before TensorFlow's own exit handlers run (glibc only)."""
    leave_at_exit()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)  # registered last, so it runs first


_deferred = _DeferredSessions()
defer_close = _deferred.add
close_deferred = _deferred.close_all


class DeferredCloseCreator:
    """A `SessionCreator` for a monitored session, which defers closing its session."""

    # Not a subclass of tf.compat.v1.train.SessionCreator: that would import TensorFlow.

    def __init__(self, creator: Any) -> None:
        self._creator = creator

    def create_session(self) -> Any:
        """Create a session whose `close` is deferred."""
        session = self._creator.create_session()

        def close() -> None:
            del session.close  # restores TensorFlow's own method
            defer_close(session)

        session.close = close
        return session

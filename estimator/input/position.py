"""Starting an input at a position: skipping batches, by arithmetic where possible, else by reading them.

The operations of a dataset form a chain in the graph. A skip of n elements moves from the end of the chain
toward the sources: through operations that make one element of one, through batches (n times the batch size),
through shards, and through a repetition of something that is the same each time (n modulo its length). It
stops at operations that it cannot pass: a shuffle, whose order depends on the elements read, or a function
that draws random numbers, which must be called as often as in an uninterrupted run. Elements are read and
dropped there. The remaining elements are the same as those of `dataset.skip(n)`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cs_runtime import input_source
from estimator.input.iterator_state import IteratorStates, StateFolder

_ONE_TO_ONE = frozenset(
    ["MapDataset", "ModelDataset", "OptionsDataset", "ParallelMapDatasetV2", "PrefetchDataset"]
)
_BATCHES = frozenset(["BatchDataset", "BatchDatasetV2", "ParallelBatchDataset"])
_PADDED = frozenset(["PaddedBatchDataset", "PaddedBatchDatasetV2"])
# Sources in which TensorFlow skips without reading: it counts, or copies from memory.
_SOURCES = frozenset(["RangeDataset", "TensorSliceDataset"])
_SAME_EACH_TIME = (
    _ONE_TO_ONE | _BATCHES | _PADDED | _SOURCES | {"ShardDataset", "ZipDataset", "TakeDataset", "SkipDataset"}
)
_INFINITE = -1

# Returns the arrays of the next batch.
Take = Callable[[], Sequence[Any]]


class PositionedTensors:
    """An input of plain tensors, not a Dataset: batches before the position are computed and dropped.

    Attributes:
        element: The batch that the program gets.
    """

    def __init__(self, element: Any, skip: int) -> None:
        self.element = element
        self._skip = skip

    def read_first(self, session: Any, take: Take) -> Sequence[Any]:
        """Return the first batch at the position."""
        with input_source.log_skip(self._skip, "tensors that are no dataset"):
            for _ in range(self._skip):
                take()
            return take()

    def record_position(self, session: Any, batches: int) -> None:
        """Do nothing: such an input has no state to save."""


class PositionedDataset:
    """A Dataset that starts after its first `skip` batches, in the default graph.

    Args:
        dataset: Dataset of batches.
        skip: Number of batches to skip.
        folder: Folder of iterator states; None saves no states.

    Attributes:
        element: The next batch, as tensors.
    """

    def __init__(self, dataset: Any, skip: int, folder: StateFolder | None) -> None:
        import tensorflow as tf

        self._skip = skip
        self._reads = reason_to_read(dataset) if skip or folder is not None else ""
        keeps = folder is not None and bool(self._reads)
        # Where arithmetic does not reach the position and states are saved, the number of batches to skip is
        # fed. Then the iterator's program, which identifies a state, is the same in every run.
        count = tf.compat.v1.placeholder_with_default(tf.zeros([], tf.int64), []) if keeps else skip
        iterator = tf.compat.v1.data.make_initializable_iterator(skip_elements(dataset, count).dataset)
        self.element = iterator.get_next()
        self._initializer = iterator.initializer
        self._feed = {count: skip} if keeps else None
        self._states = IteratorStates(folder, iterator) if keeps and folder is not None else None

    def read_first(self, session: Any, take: Take) -> Sequence[Any]:
        """Return the first batch at the position."""
        if self._states is not None:
            session.run(self._initializer)
            at = self._states.restore_before(session, self._skip)
            if at is not None:
                input_source.log_restored_position(self._skip, at)
                for _ in range(at, self._skip):
                    take()
                return take()
        session.run(self._initializer, self._feed)
        with input_source.log_skip(self._skip, self._reads):
            return take()

    def record_position(self, session: Any, batches: int) -> None:
        """Save the iterator state if one is due after this number of batches, skipped ones included."""
        if self._states is not None:
            self._states.save_if_due(session, batches)


@dataclass(frozen=True)
class SkippedDataset:
    """A dataset that starts later.

    Attributes:
        dataset: The dataset.
        read: Name of the operation that a skip cannot pass, where elements are read and dropped; "" if none
            are.
    """

    dataset: Any
    read: str


def reason_to_read(dataset: Any) -> str:
    """Return the name of the operation that a skip cannot pass; "" if elements need not be read."""
    plan = _Plan()
    plan.plan_skip(dataset._variant_tensor, 1)
    return plan.why


def skip_elements(dataset: Any, count: Any) -> SkippedDataset:
    """Return the dataset without its first elements; this changes its graph, the default one.

    Args:
        dataset: The dataset.
        count: The number of elements to skip: an int, or a scalar int64 tensor if elements are read anyway.
    """
    if isinstance(count, int) and not count:
        return SkippedDataset(dataset, "")
    plan = _Plan()
    end = plan.plan_skip(dataset._variant_tensor, count)
    if plan.meets_itself:
        return SkippedDataset(dataset.skip(count), plan.why)
    for consumer, index, make in plan.edges:
        consumer._update_input(index, make())
    if end is not None:
        from tensorflow.python.data.ops.dataset_ops import _VariantDataset

        # This keeps the options of the dataset, which are an operation in its graph.
        dataset = _VariantDataset(end(), dataset.element_spec)
    return SkippedDataset(dataset, plan.why)


@dataclass
class _Plan:
    """The places of skips in the graph, planned before the graph is changed.

    Attributes:
        edges: An operation, the number of its input, and a function that makes the new input.
        reasons: Names of operations at which elements are read.
    """

    edges: list[tuple[Any, int, Callable[[], Any]]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    _seen: set[Any] = field(default_factory=set)
    meets_itself: bool = False

    @property
    def why(self) -> str:
        """Why elements are read; "" if none are."""
        return "a dataset that is used twice" if self.meets_itself else ", ".join(dict.fromkeys(self.reasons))

    def plan_skip(self, variant: Any, count: Any) -> Callable[[], Any] | None:
        """Plan a skip after an operation: move it to the inputs, or return a function that makes it here."""
        op = variant.op
        self.meets_itself |= op in self._seen
        self._seen.add(op)
        if (elements := _elements_consumed_by_one(op)) is not None:
            self._plan_input(op, 0, count * elements)
            return None
        if op.type == "ZipDataset":
            for index in range(len(op.inputs)):
                self._plan_input(op, index, count)
            return None
        if op.type == "RepeatDataset" and (repeated := self._plan_repetition(op, count)) is not None:
            return repeated
        if op.type not in _SOURCES:
            self.reasons.append(_operation_name(op))
        return lambda: _skip(variant, count)

    def _plan_input(self, op: Any, index: int, count: Any) -> None:
        make = self.plan_skip(op.inputs[index], count)
        if make is not None:
            self.edges.append((op, index, make))

    def _plan_repetition(self, op: Any, count: Any) -> Callable[[], Any] | None:
        """Return a function that makes a repetition starting within an epoch; None if epochs differ."""
        times, epoch = _constant(op.inputs[1]), op.inputs[0]
        if times is None or not isinstance(count, int) or _find_changing_op(epoch.op) is not None:
            return None
        import tensorflow as tf

        with tf.compat.v1.Session(graph=epoch.graph) as session:
            length = int(session.run(tf.raw_ops.DatasetCardinality(input_dataset=epoch)))
        if length <= 0:  # unknown or infinite
            return None
        whole, rest = divmod(count, length)
        left = _INFINITE if times < 0 else max(0, times - whole)

        def make() -> Any:
            if not rest:
                return _repeat(epoch, left)
            if left == 0:
                return _skip(epoch, length)
            others = _repeat(epoch, left if left < 0 else left - 1)
            return tf.raw_ops.ConcatenateDataset(
                input_dataset=_skip(epoch, rest), another_dataset=others, **_structure(epoch)
            )

        return make


def _elements_consumed_by_one(op: Any) -> int | None:
    """Return the number of input elements for each output element; None if it is not constant."""
    if op.type in _ONE_TO_ONE and not _is_stateful(op):
        return 1
    if op.type in _BATCHES | _PADDED | {"ShardDataset"}:
        return _constant(op.inputs[1])
    return None


def _is_stateful(op: Any) -> bool:
    """Return True if the function of an operation is stateful: it draws random numbers or calls Python."""
    name = op.get_attr("f").name if "f" in op.node_def.attr else ""
    if not name:
        return False
    definition = op.graph._get_function(name)
    return definition is None or bool(definition.cached_definition.signature.is_stateful)


def _find_changing_op(op: Any) -> Any | None:
    """Return the operation that makes a dataset differ when it is read again; None if it does not."""
    if op.type.startswith("CacheDataset"):
        return None
    if op.type not in _SAME_EACH_TIME or _is_stateful(op):
        return op
    below = (_find_changing_op(tensor.op) for tensor in op.inputs if tensor.dtype.name == "variant")
    return next((found for found in below if found is not None), None)


def _constant(tensor: Any) -> int | None:
    import tensorflow as tf

    value = tf.get_static_value(tensor)
    return None if value is None else int(value)


def _structure(variant: Any) -> dict[str, Any]:
    attributes, get = variant.op.node_def.attr, variant.op.get_attr
    types = "output_types" if "output_types" in attributes else "Toutput_types"  # of slices
    return {"output_types": get(types), "output_shapes": get("output_shapes")}


def _skip(variant: Any, count: Any) -> Any:
    import tensorflow as tf

    number = tf.convert_to_tensor(count, tf.int64)
    return tf.raw_ops.SkipDataset(input_dataset=variant, count=number, **_structure(variant))


def _repeat(variant: Any, times: int) -> Any:
    import tensorflow as tf

    number = tf.constant(times, tf.int64)
    return tf.raw_ops.RepeatDataset(input_dataset=variant, count=number, **_structure(variant))


def _operation_name(op: Any) -> str:
    """Return the name that a program has for an operation."""
    name = op.type
    for part in ("ParallelMap", "Dataset", "V2", "V3", "Legacy"):
        name = name.replace(part, "Map" if part == "ParallelMap" else "")
    if op.type == "RepeatDataset" and (changing := _find_changing_op(op.inputs[0].op)) is not None:
        return f"a repetition of {_operation_name(changing)}"
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")
    return f"{words} with a function that has a state" if _is_stateful(op) and "map" in words else words

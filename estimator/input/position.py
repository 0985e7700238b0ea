"""The first element of an input that is wanted, and the way to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cs_runtime import input_source
from estimator.input.iterator_state import IteratorStates, StateFolder

Take = Callable[[], Sequence[Any]]
"""Gives the arrays of the next batch."""


class PositionedTensors:
    """Tensors that are no dataset: batches are made and dropped.

    Attributes:
        element: what the program gets.
    """

    def __init__(self, element: Any, skip: int) -> None:
        self.element = element
        self._skip = skip

    def first(self, session: Any, take: Take) -> Sequence[Any]:
        """The first batch that is wanted."""
        with input_source.log_skip(self._skip, "tensors that are no dataset"):
            for _ in range(self._skip):
                take()
            return take()

    def passed(self, session: Any, batches: int) -> None:
        """So many batches have been taken."""


class PositionedDataset:
    """A dataset behind its first batches, in the present graph.

    Where a position takes no arithmetic and states are kept, the number of batches to skip is fed, so that
    the program of the iterator is the same in every run: a state is of one program.

    Args:
        dataset: of batches.
        skip: so many are left out.
        folder: where states are kept; None for nowhere.

    Attributes:
        element: the next batch, as tensors.
    """

    def __init__(self, dataset: Any, skip: int, folder: StateFolder | None) -> None:
        import tensorflow as tf

        self._skip = skip
        self._reads = why_read(dataset) if skip or folder is not None else ""
        keeps = folder is not None and bool(self._reads)
        count = tf.compat.v1.placeholder_with_default(tf.zeros([], tf.int64), []) if keeps else skip
        iterator = tf.compat.v1.data.make_initializable_iterator(skipped(dataset, count).dataset)
        self.element = iterator.get_next()
        self._initializer = iterator.initializer
        self._feed = {count: skip} if keeps else None
        self._states = IteratorStates(folder, iterator) if keeps and folder is not None else None

    def first(self, session: Any, take: Take) -> Sequence[Any]:
        """The first batch that is wanted."""
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

    def passed(self, session: Any, batches: int) -> None:
        """So many batches have been taken, those that were left out too."""
        if self._states is not None:
            self._states.keep_where_due(session, batches)


_ONE_TO_ONE = frozenset(
    ["MapDataset", "ModelDataset", "OptionsDataset", "ParallelMapDatasetV2", "PrefetchDataset"]
)
_BATCHES = frozenset(["BatchDataset", "BatchDatasetV2", "ParallelBatchDataset"])
_PADDED = frozenset(["PaddedBatchDataset", "PaddedBatchDatasetV2"])
_SOURCES = frozenset(["RangeDataset", "TensorSliceDataset"])
"""TensorFlow skips in them by counting, or by copies of what is in memory."""
_SAME_EACH_TIME = (
    _ONE_TO_ONE | _BATCHES | _PADDED | _SOURCES | {"ShardDataset", "ZipDataset", "TakeDataset", "SkipDataset"}
)
_INFINITE = -1


@dataclass(frozen=True)
class Skipped:
    """A dataset that begins later.

    Attributes:
        dataset: the dataset.
        read: what stands in the way: the operation above which elements are read and dropped, in a few
            words; "" where none are.
    """

    dataset: Any
    read: str


def why_read(dataset: Any) -> str:
    """What stands in the way of a position in the dataset; "" for nothing."""
    plan = _Plan()
    plan.moved(dataset._variant_tensor, 1)
    return plan.why


def skipped(dataset: Any, count: Any) -> Skipped:
    """The dataset without its first elements; its graph, the present one, is changed for that.

    Args:
        dataset: the dataset.
        count: their number, an int, or a scalar int64 tensor where elements are read anyway.
    """
    if isinstance(count, int) and not count:
        return Skipped(dataset, "")
    plan = _Plan()
    end = plan.moved(dataset._variant_tensor, count)
    if plan.meets_itself:
        return Skipped(dataset.skip(count), plan.why)
    for consumer, index, make in plan.edges:
        consumer._update_input(index, make())
    return Skipped(dataset if end is None else _dataset(end(), dataset), plan.why)


@dataclass
class _Plan:
    """Where skips go, before anything is changed.

    Attributes:
        edges: consumer, number of its input, and what makes the new input.
        reasons: why elements are read.
    """

    edges: list[tuple[Any, int, Callable[[], Any]]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    _seen: set[Any] = field(default_factory=set)
    meets_itself: bool = False

    @property
    def why(self) -> str:
        """Why elements are read; "" where none are."""
        return "a dataset that is used twice" if self.meets_itself else ", ".join(dict.fromkeys(self.reasons))

    def moved(self, variant: Any, count: Any) -> Callable[[], Any] | None:
        """Plans a skip behind an operation; what makes the new output where it cannot go further in."""
        op = variant.op
        self.meets_itself |= op in self._seen
        self._seen.add(op)
        if (elements := _elements_for_one(op)) is not None:
            self._into(op, 0, count * elements)
            return None
        if op.type == "ZipDataset":
            for index in range(len(op.inputs)):
                self._into(op, index, count)
            return None
        if op.type == "RepeatDataset" and (repeated := self._in_epochs(op, count)) is not None:
            return repeated
        if op.type not in _SOURCES:
            self.reasons.append(_words(op))
        return lambda: _skip(variant, count)

    def _into(self, op: Any, index: int, count: Any) -> None:
        make = self.moved(op.inputs[index], count)
        if make is not None:
            self.edges.append((op, index, make))

    def _in_epochs(self, op: Any, count: Any) -> Callable[[], Any] | None:
        """A repetition that begins within one of its epochs; None where epochs are not all the same."""
        times, epoch = _constant(op.inputs[1]), op.inputs[0]
        if times is None or not isinstance(count, int) or not _is_same_each_time(epoch.op):
            return None
        length = _length(epoch)
        if length <= 0:
            return None
        whole, rest = divmod(count, length)
        left = _INFINITE if times < 0 else max(0, times - whole)

        def make() -> Any:
            import tensorflow as tf

            if not rest:
                return _repeat(epoch, left)
            if left == 0:
                return _skip(epoch, length)
            others = _repeat(epoch, left if left < 0 else left - 1)
            return tf.raw_ops.ConcatenateDataset(
                input_dataset=_skip(epoch, rest), another_dataset=others, **_structure(epoch)
            )

        return make


def _elements_for_one(op: Any) -> int | None:
    """How many elements of its input go for one of its own; None where that is not always the same."""
    if op.type in _ONE_TO_ONE and not _draws(op):
        return 1
    if op.type in _BATCHES | _PADDED | {"ShardDataset"}:
        return _constant(op.inputs[1])
    return None


def _draws(op: Any) -> bool:
    """Whether its function has a state, as random numbers and Python functions have."""
    name = op.get_attr("f").name if "f" in op.node_def.attr else ""
    if not name:
        return False
    definition = op.graph._get_function(name)
    return definition is None or bool(definition.cached_definition.signature.is_stateful)


def _is_same_each_time(op: Any) -> bool:
    """Whether it gives the same elements whenever it is read."""
    return _changing(op) is None


def _changing(op: Any) -> Any | None:
    """The operation by which it gives other elements when it is read again; None for none."""
    if op.type.startswith("CacheDataset"):
        return None
    if op.type not in _SAME_EACH_TIME or _draws(op):
        return op
    below = (_changing(tensor.op) for tensor in op.inputs if tensor.dtype.name == "variant")
    return next((found for found in below if found is not None), None)


def _constant(tensor: Any) -> int | None:
    import tensorflow as tf

    value = tf.get_static_value(tensor)
    return None if value is None else int(value)


def _length(variant: Any) -> int:
    """Number of elements; negative where it is not known, or there is no end."""
    import tensorflow as tf

    with tf.compat.v1.Session(graph=variant.graph) as session:
        return int(session.run(tf.raw_ops.DatasetCardinality(input_dataset=variant)))


def _dataset(variant: Any, like: Any) -> Any:
    """A dataset of such elements; options are an operation, and lie below."""
    from tensorflow.python.data.ops.dataset_ops import _VariantDataset

    return _VariantDataset(variant, like.element_spec)


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


def _words(op: Any) -> str:
    """What an operation is called in a program."""
    name = op.type
    for part in ("ParallelMap", "Dataset", "V2", "V3", "Legacy"):
        name = name.replace(part, "Map" if part == "ParallelMap" else "")
    if op.type == "RepeatDataset" and (changing := _changing(op.inputs[0].op)) is not None:
        return f"a repetition of {_words(changing)}"
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).strip("_")
    return f"{words} with a function that has a state" if _draws(op) and "map" in words else words

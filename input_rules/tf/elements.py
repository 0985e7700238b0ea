"""Elements of each dataset operation: their sizes, their number, and whether they are records or batches.

A record is a row of the elements that the pipeline delivers: if batches are batched again, as sequences of
characters are, the first batch makes a record. Datasets that a call makes only to choose among others, such
as the random numbers of `sample_from_datasets`, have no records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from input_rules.pipeline import Value
from input_rules.rules.base import READERS
from input_rules.rules.batching import ENDLESS
from input_rules.tf.operations import (
    constant_input,
    dataset_inputs,
    find_functions,
    find_inputs,
    topological_order,
)

# A TensorShape for each flat component.
Shapes = list[Any]

# Operations that make batches, without their versions.
BATCHING = (
    *("BatchDataset", "PaddedBatchDataset", "ParallelBatchDataset", "MapAndBatchDataset", "RebatchDataset"),
    *("LegacyRebatchDataset", "DenseToSparseBatchDataset"),
)


@dataclass
class UnknownSizes:
    """Names of the operations at which sizes of the delivered elements become unknown.

    Attributes:
        smaller: They make batches, the last of which may be smaller.
        others: They make sizes unknown for another reason.
    """

    smaller: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def find_unknown_sizes(last: Any, functions: Mapping[str, Any]) -> UnknownSizes:
    """Search from the last operation backwards for the operations at which sizes become unknown.

    Args:
        last: The operation that delivers the elements.
        functions: The function library of the graph: FunctionDef by name.
    """
    found = UnknownSizes()
    waiting, seen = [last], set()
    while waiting:
        node = waiting.pop()
        if node.name in seen or _is_known(_shapes_of(node)):
            continue
        seen.add(node.name)
        unknown = [other for other in dataset_inputs(node) if not _is_known(_shapes_of(other))]
        record_shapes = [shape[1:] for shape in _shapes_of(node)]
        # Padding, also in its function, sets the sizes of records, and rebatching sets their number; the
        # sizes that such an operation reads do not matter.
        kinds = [node.type, *_inner_kinds(node, functions)]
        decides = any("PaddedBatch" in kind for kind in kinds) or (
            "Rebatch" in node.type and _is_known(record_shapes)
        )
        lists = find_inputs(node) if node.type.startswith(BATCHING) else {}
        if "drop_remainder" in lists and not tf.get_static_value(lists["drop_remainder"][0]):
            found.smaller.add(node.name)
            if decides and not _is_known(record_shapes):
                found.others.add(node.name)
        elif decides or not unknown:
            found.others.add(node.name)
        waiting += [] if decides else unknown
    return found


def read_batch_arguments(node: Any) -> dict[str, Value]:
    """Return `batch_size` and `drop_remainder` of an operation that makes batches; None if not constant."""
    if not node.type.startswith(BATCHING):
        return {}
    lists = find_inputs(node)
    # `rebatch` takes a cycle of sizes, nearly always a single one.
    (argument,) = lists.get("batch_size") or lists.get("batch_sizes") or [None]
    sizes = None if argument is None else tf.get_static_value(argument)
    found: dict[str, Value] = {}
    if sizes is not None and sizes.size == 1:
        found["batch_size"] = int(sizes.reshape(-1)[0])
    if "drop_remainder" in lists:
        drops = tf.get_static_value(lists["drop_remainder"][0])
        found["drop_remainder"] = None if drops is None else bool(drops)
    return found


def is_nested(node: Any) -> bool:
    """Return True if the elements of a dataset operation are datasets."""
    return any(kind == tf.variant.as_datatype_enum for kind in node.node_def.attr["output_types"].list.type)


def _shapes_of(node: Any) -> Shapes:
    """Return the shapes of a dataset operation; none if it does not state them."""
    return [tf.TensorShape(shape) for shape in node.node_def.attr["output_shapes"].list.shape]


def _is_known(shapes: Shapes) -> bool:
    return all(shape.is_fully_defined() for shape in shapes)


# Operations that deliver as many elements per epoch as they read.
_KEEPING_COUNT = (
    *("MapDataset", "ParallelMapDataset", "ParseExampleDataset", "ShuffleDataset", "CacheDataset"),
    *("PrefetchDataset", "OptionsDataset", "AssertCardinalityDataset"),
)


@dataclass(frozen=True)
class ElementCount:
    """The number of elements of a dataset.

    Attributes:
        epoch: Elements of an epoch, that is without `repeat`; None if unknown.
        endless: The dataset never ends.
    """

    epoch: int | None = None
    endless: bool = False


def count_elements(nodes: Sequence[Any]) -> ElementCount:
    """Count the elements that the last of some operations delivers.

    Args:
        nodes: The dataset operations of a call, inputs first; their other inputs count as unknown.
    """
    found: dict[str, ElementCount] = {}
    for node in nodes:
        read = [found.get(other.name, ElementCount()) for other in dataset_inputs(node)]
        found[node.name] = _count_elements_of(node, read)
    return found[nodes[-1].name]


def count_source(node: Any) -> int | None:
    """Count the elements of slices of tensors, or of a range; None for other or unknown sources."""
    if node.type == "RangeDataset":
        start, stop, step = (constant_input(node, name) for name in ("start", "stop", "step"))
        return None if start is None or stop is None or not step else max(0, -(-(stop - start) // step))
    if not node.type.startswith("TensorSlice"):
        return None
    first = find_inputs(node)["components"][0]
    return first.shape[0] if first.shape.rank else None


def _count_elements_of(node: Any, read: list[ElementCount]) -> ElementCount:
    if not read:
        size = 1 if node.type == "TensorDataset" else count_source(node)
        return ElementCount(size, size is not None and size >= ENDLESS)
    if node.type == "ZipDataset":
        ending = [one.epoch for one in read if not one.endless]
        return ElementCount(_minimum(ending), not ending)
    before = read[0]
    if len(read) > 1:
        return ElementCount(None, any(one.endless for one in read))
    if node.type.startswith("RepeatDataset"):
        endless = before.endless or constant_input(node, "count") == -1
        return ElementCount(before.epoch, endless)
    if node.type.startswith(_KEEPING_COUNT):
        return before
    if node.type.startswith("TakeDataset"):
        most = constant_input(node, "count")
        if most is None or most < 0:
            return before
        return ElementCount(most if before.endless else _minimum([most, before.epoch]))
    facts = read_batch_arguments(node)
    batch = facts.get("batch_size")
    if before.epoch is not None and isinstance(batch, int) and "Rebatch" not in node.type:
        whole = facts.get("drop_remainder") is True
        return ElementCount(before.epoch // batch if whole else -(-before.epoch // batch), before.endless)
    return ElementCount(None, before.endless)


def _minimum(counts: Iterable[int | None]) -> int | None:
    """Return the minimum; None if there are no counts, or one of them is unknown."""
    known = list(counts)
    return min((one for one in known if one is not None), default=None) if None not in known else None


# Operations that deliver the elements of a dataset that their function makes of each element.
_FLATTENING = ("FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset")
# Sources in such a function that make several elements of one.
_SPLITTING_SOURCES = ("TensorSliceDataset", "RangeDataset", "GeneratorDataset", *READERS)
# The first input of these selects which of the others delivers next (tensorflow/core/ops/dataset_ops.cc).
CHOOSING = ("DirectedInterleaveDataset", "ExperimentalDirectedInterleaveDataset")


@dataclass(frozen=True)
class RecordPath:
    """Names of dataset operations by the role of their elements.

    Attributes:
        batched: Operations that deliver batches of records.
        makers: Operations that make a record of several consecutive elements.
        parts: Operations that deliver such elements, of which records are made later.
    """

    batched: frozenset[str]
    makers: frozenset[str]
    parts: frozenset[str]


def find_record_path(last: Any, functions: Mapping[str, Any]) -> RecordPath:
    """Find out which operations deliver records, batches of records, or parts of records.

    Args:
        last: The operation that delivers the elements.
        functions: The function library of the graph: FunctionDef by name.
    """
    nodes = list(topological_order(last))
    random_sources = find_random_sources(last)
    record_inputs: dict[str, list[str]] = {}
    depths: dict[str, int] = {}
    for node in nodes:
        first = 1 if node.type in CHOOSING else 0
        read = [other.name for other in dataset_inputs(node)[first:]]
        record_inputs[node.name] = [name for name in read if name not in random_sources] or read
        before = max((depths[name] for name in record_inputs[node.name]), default=0)
        depths[node.name] = max(0, _batch_depth(node, before, functions))
    # Elements that are batched more often than this are batches of records.
    level = max(0, depths[last.name] - 1)
    makers = {
        node.name
        for node in nodes
        if node.name not in random_sources
        and (
            node.type.startswith("WindowDataset")
            or (node.type.startswith((*BATCHING, "GroupByWindow")) and 0 < depths[node.name] <= level)
        )
    }
    parts: set[str] = set()
    for node in reversed(nodes):
        if node.name in makers | parts:
            parts.update(record_inputs[node.name])
    batched = (name for name, depth in depths.items() if depth > level)
    return RecordPath(frozenset(batched), frozenset(makers), frozenset(parts))


def find_random_sources(last: Any) -> set[str]:
    """Return the names of the operations that deliver only random numbers, or results of these."""
    found: set[str] = set()
    for node in topological_order(last):
        read = dataset_inputs(node)
        drawn = all(other.name in found for other in read) if read else "RandomDataset" in node.type
        if drawn:
            found.add(node.name)
    return found


def _batch_depth(node: Any, before: int, functions: Mapping[str, Any]) -> int:
    """Return how often the elements of an operation are batched, given that of its inputs."""
    if "Rebatch" in node.type:
        return max(1, before)
    if node.type.startswith(BATCHING):
        return before + 1
    if "Unbatch" in node.type:
        return before - 1
    within = _inner_kinds(node, functions)
    batching = any(kind.startswith(BATCHING) for kind in within)
    if node.type.startswith("GroupByWindow"):
        return before + batching
    if not node.type.startswith(_FLATTENING) or any(map(is_nested, dataset_inputs(node))):
        # The function makes a record of a window of records.
        return before
    unbatching = any("Unbatch" in kind for kind in within)
    splits = any(kind.startswith(_SPLITTING_SOURCES) for kind in within)
    return (0 if splits else before) + batching - unbatching


def _inner_kinds(node: Any, functions: Mapping[str, Any]) -> list[str]:
    """Return the kinds of all operations in the functions of an operation."""
    return [inner.op for function in find_functions(node, functions) for inner in function.node_def]

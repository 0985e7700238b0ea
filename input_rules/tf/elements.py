"""Elements of each dataset operation: their sizes, their number, and whether they are records or batches.

A record is a row of what the pipeline delivers: where batches are batched again, as of sequences of
characters, the first batch makes a record. What a call makes beside that way for a choice of its own, as the
random numbers of `sample_from_datasets`, is none of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from input_rules.pipeline import Value
from input_rules.rules.base import READERS
from input_rules.rules.batching import ENDLESS
from input_rules.tf.operations import constant, dataset_inputs, functions_of, in_order, input_lists

Shapes = list[Any]
"""A TensorShape for each flat component."""

BATCHING = (
    *("BatchDataset", "PaddedBatchDataset", "ParallelBatchDataset", "MapAndBatchDataset", "RebatchDataset"),
    *("LegacyRebatchDataset", "DenseToSparseBatchDataset"),
)
"""Operations that make batches, without their versions."""


@dataclass
class UnknownSizes:
    """Names of the operations from which on sizes that a dataset delivers are unknown.

    Attributes:
        smaller: They make batches, the last of which may be smaller than the others.
        others: Sizes are unknown from there on for another reason.
    """

    smaller: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)


def unknown_sizes(last: Any, functions: Mapping[str, Any]) -> UnknownSizes:
    """Goes from the operation that delivers back to where sizes are known.

    Args:
        last: The operation.
        functions: The graph's library: FunctionDef by name.
    """
    found = UnknownSizes()
    waiting, seen = [last], set()
    while waiting:
        node = waiting.pop()
        if node.name in seen or _is_known(_shapes_of(node)):
            continue
        seen.add(node.name)
        unknown = [other for other in dataset_inputs(node) if not _is_known(_shapes_of(other))]
        decides = _decides(node, functions)
        if _keeps_the_rest(node):
            found.smaller.add(node.name)
            if decides and not _is_known(_records(node)):
                found.others.add(node.name)
        elif decides or not unknown:
            found.others.add(node.name)
        waiting += [] if decides else unknown
    return found


def _decides(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether sizes of what it reads are no matter to an operation.

    Padding, also in its function, sets those of records, and whoever batches again the number of records.
    """
    kinds = [node.type, *(inner.op for one in functions_of(node, functions) for inner in one.node_def)]
    pads = any("PaddedBatch" in kind for kind in kinds)
    return pads or ("Rebatch" in node.type and _is_known(_records(node)))


def batch_facts(node: Any) -> dict[str, Value]:
    """`batch_size` of an operation that makes batches, and its `drop_remainder`; None: no constant."""
    if not node.type.startswith(BATCHING):
        return {}
    lists = input_lists(node)
    # `rebatch` takes sizes that follow each other, nearly always one.
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
    """Whether elements of a dataset operation are datasets."""
    return any(kind == tf.variant.as_datatype_enum for kind in node.node_def.attr["output_types"].list.type)


def _keeps_the_rest(node: Any) -> bool:
    """Whether an operation makes batches and delivers what is left at the end as a smaller one."""
    lists = input_lists(node) if node.type.startswith(BATCHING) else {}
    return "drop_remainder" in lists and not tf.get_static_value(lists["drop_remainder"][0])


def _shapes_of(node: Any) -> Shapes:
    """Those of a dataset operation; none of one that does not tell."""
    return [tf.TensorShape(shape) for shape in node.node_def.attr["output_shapes"].list.shape]


def _is_known(shapes: Shapes) -> bool:
    return all(shape.is_fully_defined() for shape in shapes)


def _records(node: Any) -> Shapes:
    """The shapes of single records in the batches of an operation."""
    return [shape[1:] for shape in _shapes_of(node)]


_KEEPING = (
    *("MapDataset", "ParallelMapDataset", "ParseExampleDataset", "ShuffleDataset", "CacheDataset"),
    *("PrefetchDataset", "OptionsDataset", "AssertCardinalityDataset"),
)
"""They deliver as many elements in an epoch as they read."""


@dataclass(frozen=True)
class Length:
    """How many elements there are.

    Attributes:
        epoch: Of an epoch, that is without what `repeat` adds; None where that is not known.
        endless: They come without end.
    """

    epoch: int | None = None
    endless: bool = False


def length(nodes: Sequence[Any]) -> Length:
    """Of what the last one of some operations delivers.

    Args:
        nodes: The dataset operations of a call, inputs first; of what they read of others nothing is known.
    """
    found: dict[str, Length] = {}
    for node in nodes:
        read = [found.get(other.name, Length()) for other in dataset_inputs(node)]
        found[node.name] = _of(node, read)
    return found[nodes[-1].name]


def source_size(node: Any) -> int | None:
    """Elements of slices of tensors, or of a range; None for other operations, and where it is not known."""
    if node.type == "RangeDataset":
        return _range_size(node)
    if not node.type.startswith("TensorSlice"):
        return None
    first = input_lists(node)["components"][0]
    return first.shape[0] if first.shape.rank else None


def _of(node: Any, read: list[Length]) -> Length:
    if not read:
        size = 1 if node.type == "TensorDataset" else source_size(node)
        return Length(size, size is not None and size >= ENDLESS)
    if node.type == "ZipDataset":
        ending = [one.epoch for one in read if not one.endless]
        return Length(_least(ending), not ending)
    before = read[0]
    if len(read) > 1:
        return Length(None, any(one.endless for one in read))
    if node.type.startswith("RepeatDataset"):
        endless = before.endless or constant(node, "count") == -1
        return Length(before.epoch, endless)
    if node.type.startswith(_KEEPING):
        return before
    if node.type.startswith("TakeDataset"):
        most = constant(node, "count")
        if most is None or most < 0:
            return before
        return Length(most if before.endless else _least([most, before.epoch]))
    facts = batch_facts(node)
    batch = facts.get("batch_size")
    if before.epoch is not None and isinstance(batch, int) and "Rebatch" not in node.type:
        whole = facts.get("drop_remainder") is True
        return Length(before.epoch // batch if whole else -(-before.epoch // batch), before.endless)
    return Length(None, before.endless)


def _least(counts: Iterable[int | None]) -> int | None:
    """The least of some numbers; None where one of them, or every one, is not known."""
    known = list(counts)
    return min((one for one in known if one is not None), default=None) if None not in known else None


def _range_size(node: Any) -> int | None:
    start, stop, step = (constant(node, name) for name in ("start", "stop", "step"))
    if start is None or stop is None or not step:
        return None
    return max(0, -(-(stop - start) // step))


_OF_PARTS = ("FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset")
"""Deliver the elements of a dataset that their function makes of each element."""
_TAKING_APART = ("TensorSliceDataset", "RangeDataset", "GeneratorDataset", *READERS)
"""Sources in such a function that make several elements of one."""
CHOOSING = ("DirectedInterleaveDataset", "ExperimentalDirectedInterleaveDataset")
"""Their first input says which of the others delivers next (tensorflow/core/ops/dataset_ops.cc)."""


@dataclass(frozen=True)
class RecordPath:
    """Names of the dataset operations by what their elements are.

    Attributes:
        batched: They deliver batches of records.
        makers: They make a record of several elements that follow each other.
        parts: They deliver such elements, of which records are made later.
    """

    batched: frozenset[str]
    makers: frozenset[str]
    parts: frozenset[str]


def record_path(last: Any, functions: Mapping[str, Any]) -> RecordPath:
    """Where the elements of the operations are records, batches of them, or parts of them.

    Args:
        last: The operation that delivers.
        functions: The graph's library: FunctionDef by name.
    """
    nodes = list(in_order(last))
    aside = random_numbers(last)
    ways: dict[str, list[str]] = {}
    depths: dict[str, int] = {}
    for node in nodes:
        read = [other.name for other in dataset_inputs(node)[_choices(node) :]]
        ways[node.name] = [name for name in read if name not in aside] or read
        before = max((depths[name] for name in ways[node.name]), default=0)
        depths[node.name] = max(0, _depth(node, before, functions))
    # What is batched once more than this is a batch of records.
    level = max(0, depths[last.name] - 1)
    makers = {node.name for node in nodes if node.name not in aside and _makes_records(node, depths, level)}
    parts: set[str] = set()
    for node in reversed(nodes):
        if node.name in makers | parts:
            parts.update(ways[node.name])
    batched = (name for name, depth in depths.items() if depth > level)
    return RecordPath(frozenset(batched), frozenset(makers), frozenset(parts))


def _makes_records(node: Any, depths: Mapping[str, int], level: int) -> bool:
    if node.type.startswith("WindowDataset"):
        return True
    batches = node.type.startswith((*BATCHING, "GroupByWindow"))
    return batches and 0 < depths[node.name] <= level


def random_numbers(last: Any) -> set[str]:
    """Names of the operations that deliver nothing but random numbers, whatever is made of these."""
    found: set[str] = set()
    for node in in_order(last):
        read = dataset_inputs(node)
        drawn = all(other.name in found for other in read) if read else "RandomDataset" in node.type
        if drawn:
            found.add(node.name)
    return found


def _choices(node: Any) -> int:
    return 1 if node.type in CHOOSING else 0


def _depth(node: Any, before: int, functions: Mapping[str, Any]) -> int:
    if "Rebatch" in node.type:
        return max(1, before)
    if node.type.startswith(BATCHING):
        return before + 1
    if "Unbatch" in node.type:
        return before - 1
    within = _within(node, functions)
    batching = any(kind.startswith(BATCHING) for kind in within)
    if node.type.startswith("GroupByWindow"):
        return before + batching
    if not node.type.startswith(_OF_PARTS) or any(map(is_nested, dataset_inputs(node))):
        # What is made of a window of records is a record.
        return before
    undone = any("Unbatch" in kind for kind in within)
    return (0 if _takes_apart(node, functions) else before) + batching - undone


def _takes_apart(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether an operation makes several elements of one, of which each is one for itself."""
    if not node.type.startswith(_OF_PARTS) or any(map(is_nested, dataset_inputs(node))):
        return False
    return any(kind.startswith(_TAKING_APART) for kind in _within(node, functions))


def _within(node: Any, functions: Mapping[str, Any]) -> list[str]:
    return [inner.op for function in functions_of(node, functions) for inner in function.node_def]

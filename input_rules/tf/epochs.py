"""How many elements an epoch of a call has, told by the operations that the call made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from input_rules.rules.batching import ENDLESS
from input_rules.tf.nodes import constant, dataset_inputs, input_lists
from input_rules.tf.sizes import batch_facts

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

"""The way that records take through a dataset's operations: where they are made, where they are batches.

A record is a row of what the pipeline delivers: where batches are batched again, as of sequences of
characters, the first batch makes a record. What a call makes beside that way for a choice of its own, as the
random numbers of `sample_from_datasets`, is none of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from input_rules.rules.base import READERS
from input_rules.tf.functions import functions_of
from input_rules.tf.nodes import dataset_inputs, in_order
from input_rules.tf.sizes import BATCHING, is_nested

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

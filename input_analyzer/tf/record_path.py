"""The way that records take through a dataset's operations: where they are batches, who chooses among them.

What a call makes beside that way for a choice of its own, as the random numbers of `sample_from_datasets`, is
none of the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from input_analyzer.findings.context import READERS
from input_analyzer.tf.functions import functions_of
from input_analyzer.tf.nodes import constant, dataset_inputs, in_order
from input_analyzer.tf.sizes import BATCHING, is_nested

_OF_PARTS = ("FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset")
"""Deliver the elements of a dataset that their function makes of each element."""
_TAKING_APART = ("TensorSliceDataset", "RangeDataset", "GeneratorDataset", *READERS)
"""Sources in such a function that make several elements of one."""
_CHOOSING = ("DirectedInterleaveDataset", "ExperimentalDirectedInterleaveDataset")
"""Their first input says which of the others delivers next (tensorflow/core/ops/dataset_ops.cc)."""


def batch_depths(last: Any, functions: Mapping[str, Any]) -> dict[str, int]:
    """How often the elements of the operations are batches: 0 records, 1 batches, 2 batches of batches.

    Args:
        last: The operation that delivers.
        functions: The graph's library: FunctionDef by name.

    Returns:
        By name of each dataset operation that `last` depends on.
    """
    depths: dict[str, int] = {}
    aside = random_numbers(last)
    for node in in_order(last):
        ways = [other.name for other in dataset_inputs(node)[_choices(node) :]]
        ways = [name for name in ways if name not in aside] or ways
        before = max((depths[name] for name in ways), default=0)
        depths[node.name] = max(0, _depth(node, before, functions))
    return depths


def random_numbers(last: Any) -> set[str]:
    """Names of the operations that deliver nothing but random numbers, whatever is made of these."""
    found: set[str] = set()
    for node in in_order(last):
        read = dataset_inputs(node)
        drawn = all(other.name in found for other in read) if read else "RandomDataset" in node.type
        if drawn:
            found.add(node.name)
    return found


def chooses_unseeded(node: Any) -> bool:
    """Whether an operation takes records out of several datasets as random numbers say that have no seed."""
    if not _choices(node):
        return False
    drawn = [other for other in in_order(dataset_inputs(node)[0]) if "RandomDataset" in other.type]
    return any(constant(one, "seed") == 0 and constant(one, "seed2") == 0 for one in drawn)


def _choices(node: Any) -> int:
    return 1 if node.type in _CHOOSING else 0


def _depth(node: Any, before: int, functions: Mapping[str, Any]) -> int:
    if "Rebatch" in node.type:
        return max(1, before)
    if node.type.startswith(BATCHING):
        return before + 1
    if "Unbatch" in node.type:
        return before - 1
    within = [inner.op for function in functions_of(node, functions) for inner in function.node_def]
    batching = any(kind.startswith(BATCHING) for kind in within)
    if node.type.startswith("GroupByWindow"):
        return before + batching
    if not node.type.startswith(_OF_PARTS) or any(map(is_nested, dataset_inputs(node))):
        # What is made of a window of records is a record.
        return before
    apart = any(kind.startswith(_TAKING_APART) for kind in within)
    undone = any("Unbatch" in kind for kind in within)
    return (0 if apart else before) + batching - undone

"""Where sizes of what a dataset delivers become unknown, told by the operations of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from input_rules.pipeline import Value
from input_rules.tf.functions import functions_of
from input_rules.tf.nodes import dataset_inputs, input_lists

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

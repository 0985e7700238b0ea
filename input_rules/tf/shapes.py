"""Shapes of what dataset operations deliver, also where they are better known than when these were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from input_rules.tf.nodes import input_lists

Shapes = list[Any]
"""A TensorShape for each flat component."""

_MAPS = ("MapDataset", "ParallelMapDataset")
_HANDING_ON = (
    *("PrefetchDataset", "RepeatDataset", "OptionsDataset", "ShuffleDataset", "CacheDataset", "TakeDataset"),
    *("SkipDataset", "ShardDataset", "AssertCardinalityDataset", "FilterDataset", "ParallelFilterDataset"),
)


def shapes_of(node: Any) -> Shapes:
    """Those of a dataset operation; none of one that does not tell."""
    return [tf.TensorShape(shape) for shape in node.node_def.attr["output_shapes"].list.shape]


def inferred(node: Any, read: Sequence[Shapes], functions: Mapping[str, Any]) -> Shapes:
    """Those of an operation that reads other shapes than it was made for.

    Args:
        node: The operation.
        read: Shapes of each dataset that it reads now.
        functions: The graph's library: FunctionDef by name.

    Returns:
        What TensorFlow's own inference tells, else what was known before.
    """
    own = shapes_of(node)
    if node.type.startswith(_MAPS):
        found = _of_function(node, read[0], functions)
    elif node.type == "ZipDataset":
        found = [shape for shapes in read for shape in shapes]
    else:
        found = read[0] if node.type.startswith(_HANDING_ON) else own
    if len(found) != len(own):
        return own
    return [
        old.merge_with(new) if old.is_compatible_with(new) else old
        for old, new in zip(own, found, strict=True)
    ]


def with_first_size(shape: Any, size: Any) -> Any:
    """A shape with another first size, where that is known."""
    return shape if size is None or not shape.rank else tf.TensorShape([size, *shape[1:]])


def _of_function(node: Any, read: Shapes, functions: Mapping[str, Any]) -> Shapes:
    """What the function of a `map` returns for elements of other shapes; nothing where that is not told."""
    captured = [tensor.shape for tensor in input_lists(node)["other_arguments"]]
    known = functions.get(node.get_attr("f").name)
    if known is None:
        return []
    definition = type(known)()
    definition.CopyFrom(known)
    # What it was traced with would count for more than what it reads now.
    for part in (*definition.arg_attr.values(), *definition.node_def):
        part.attr.pop("_output_shapes", None)
    try:
        with node.graph.as_default():
            graph = function_def_to_graph(definition, input_shapes=[*read, *captured])
    except (ValueError, TypeError, KeyError, tf.errors.OpError):
        return []  # it calls what only the runtime knows
    return [tensor.shape for tensor in graph.outputs]

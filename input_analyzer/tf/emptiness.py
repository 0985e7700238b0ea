"""Whether an operation may make nothing of an element: then it chooses among them, as a filter does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from input_analyzer.findings.context import READERS
from input_analyzer.tf.epochs import source_size
from input_analyzer.tf.functions import functions_of
from input_analyzer.tf.nodes import constant, dataset_inputs, in_order, kind_of
from input_analyzer.tf.records_kept import FILTERS, NESTING
from input_analyzer.tf.shapes import shapes_of
from input_analyzer.tf.sizes import BATCHING, batch_facts

_KEEPING = frozenset(
    {
        *("MapDataset", "ParallelMapDataset", "PrefetchDataset", "OptionsDataset", "CacheDataset"),
        *("ShuffleDataset", "ScanDataset", "WindowDataset", "ParseExampleDataset", "ZipDataset"),
        *("AssertCardinalityDataset", "ConcatenateDataset"),
    }
)
"""They deliver something where what they read has something; the last of them where one of those has."""
_GIVEN = frozenset({"Placeholder", "TensorDataset", *READERS})
"""Datasets of one element, files, and what a function is given: a window, a dataset from outside of it."""
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def leaves_out(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether a dataset operation may deliver nothing of some of the elements that it reads.

    Files that a function reads are taken to have records, also behind a line or two that are skipped.

    Args:
        node: The operation.
        functions: The graph's library: FunctionDef by name.
    """
    kind = kind_of(node.type)
    if kind == "UnbatchDataset":
        return not _has_rows(dataset_inputs(node)[0])
    if kind not in NESTING:
        return kind in FILTERS or kind == "TakeWhileDataset"
    shapes = [shape for other in dataset_inputs(node) for shape in shapes_of(other)]
    return _of_function(node.get_attr("f").name, node.graph, functions, shapes)


def _of_function(name: str, outer: Any, functions: Mapping[str, Any], shapes: Sequence[Any] = ()) -> bool:
    """Whether the dataset that a function returns may be empty, where it is given tensors of some shapes."""
    definition = functions.get(name)
    if definition is None:
        return True
    unknown = [tf.TensorShape(None)] * (len(definition.signature.input_arg) - len(shapes))
    try:
        with outer.as_default():
            graph = function_def_to_graph(definition, input_shapes=[*shapes, *unknown])
    except (ValueError, TypeError, KeyError, tf.errors.OpError):
        return True
    return any(_may_be_empty(tensor.op, functions) for tensor in graph.outputs if tensor.dtype == tf.variant)


def _may_be_empty(node: Any, functions: Mapping[str, Any]) -> bool:
    """Whether a dataset in the graph of a function may be; also where that is not known."""
    kind = kind_of(node.type)
    read = [_may_be_empty(other, functions) for other in dataset_inputs(node)]
    if kind in _GIVEN:
        return False
    if kind in _CALLS | _BRANCHES:
        names = [function.name for value in node.node_def.attr.values() for function in _named(value)]
        return any(_of_function(name, node.graph, functions) for name in names)
    if not read:
        return kind == "GeneratorDataset" or not source_size(node)
    if kind in _KEEPING or kind in NESTING:
        empty = all(read) if kind == "ConcatenateDataset" else any(read)
        return empty or (kind in NESTING and leaves_out(node, functions))
    return any(read) or _takes_all(node, kind, functions)


def _takes_all(node: Any, kind: str, functions: Mapping[str, Any]) -> bool:
    """Whether an operation may leave nothing of a dataset that has something."""
    if kind in ("TakeDataset", "RepeatDataset"):
        return constant(node, "count") in (None, 0)
    if kind == "UnbatchDataset":
        return not _has_rows(dataset_inputs(node)[0])
    if kind == "SkipDataset":
        count = constant(node, "count")
        return count is None or not (count == 0 or _reads_files(node, functions))
    if kind.startswith(BATCHING):
        return not (_reads_files(node, functions) or batch_facts(node).get("drop_remainder") is False)
    return kind != "Identity"


def _named(value: Any) -> list[Any]:
    return [value.func] if value.HasField("func") else list(value.list.func)


def _reads_files(node: Any, functions: Mapping[str, Any]) -> bool:
    kinds: set[str] = set()
    for one in in_order(node):
        kinds |= {one.type, *(inner.op for made in functions_of(one, functions) for inner in made.node_def)}
    return any(kind_of(kind) in READERS for kind in kinds)


def _has_rows(node: Any) -> bool:
    """Whether all elements of a dataset are known to have rows."""
    first = [shape[0] if shape.rank else None for shape in shapes_of(node)]
    return any(size for size in first)

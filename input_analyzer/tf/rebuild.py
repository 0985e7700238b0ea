"""Rebuild datasets in their graph with changes; captured values stay, and nothing is serialized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from input_rules.tf.operations import (
    dataset_inputs,
    find_inputs,
    has_control_flow,
    is_dataset,
    topological_order,
)

# Receives an operation and the tensors of its input datasets; returns the tensor of the dataset that
# replaces it, or None to keep the operation.
Change = Callable[[Any, list[Any]], Any]


def rebuild(last: Any, change: Change, replaced: Mapping[str, Any] | None = None) -> Any:
    """Rebuild a dataset with changes.

    Args:
        last: The operation of the dataset.
        change: Returns the replacement of each operation.
        replaced: Tensors that replace operations, by name; the inputs of these are not rebuilt.

    Returns:
        The variant tensor of the new dataset.
    """
    built: dict[str, Any] = dict(replaced or {})
    with last.graph.as_default():
        for node in find_needed(last, built):
            inputs = [built[other.name] for other in dataset_inputs(node)]
            changed = change(node, inputs)
            built[node.name] = copy_operation(node, inputs) if changed is None else changed
    return built[last.name]


def find_needed(last: Any, replaced: Mapping[str, Any]) -> list[Any]:
    """Return an operation and all that it depends on, without replaced ones, inputs first."""
    reached: set[str] = set()
    queue = [last]
    while queue:
        node = queue.pop()
        if node.name not in reached and node.name not in replaced:
            reached.add(node.name)
            queue += dataset_inputs(node)
    return [node for node in topological_order(last) if node.name in reached]


def copy_operation(node: Any, datasets: Sequence[Any]) -> Any:
    """Copy an operation for other input datasets; return the operation itself if they are its own."""
    own = [tensor for tensor in node.inputs if is_dataset(tensor)]
    if all(new is old for new, old in zip(datasets, own, strict=True)):
        return node.outputs[0]
    return with_arguments(node, datasets, {})


def with_arguments(
    node: Any,
    datasets: Sequence[Any],
    arguments: Mapping[str, Any],
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Copy an operation with other input datasets, arguments (by name) and attributes."""
    fresh = iter(datasets)
    inputs = [
        next(fresh) if is_dataset(tensor) else arguments.get(name, tensor)
        for name, tensors in find_inputs(node).items()
        for tensor in tensors
    ]
    return create(node.graph, node.type, inputs, dict(node.node_def.attr) | dict(attributes))


def create(graph: Any, kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Create a dataset operation; return its tensor."""
    kept = {name: value for name, value in attributes.items() if not name.startswith("_")}
    with graph.as_default():
        return graph.create_op(kind, list(inputs), [tf.variant], attrs=kept).outputs[0]


def element_specs(node: Any) -> tuple[Any, ...]:
    """Return specs of the flat components that a dataset operation delivers."""
    replaced = {attribute.name for attribute in node.op_def.attr}
    kinds = node.get_attr("output_types" if "output_types" in replaced else "Toutput_types")
    shapes = node.get_attr("output_shapes")
    return tuple(
        tf.TensorSpec(tf.TensorShape(shape), kind) for shape, kind in zip(shapes, kinds, strict=True)
    )


def as_dataset(tensor: Any, spec: Any) -> Any:
    """Wrap a variant tensor in a Dataset."""
    return tf.data.experimental.from_variant(tensor, spec)


def initializers(graph: Any) -> list[Any]:
    """Return the operations that initialize tables and variables before an input is read."""
    with graph.as_default():
        return [tf.compat.v1.tables_initializer(), tf.compat.v1.global_variables_initializer()]


def plain_options() -> Any:
    """Return options that run a pipeline as it is written, in one thread."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.max_intra_op_parallelism = 1
    options.threading.private_threadpool_size = 1
    options.deterministic = True
    return options


def make_sequential(node: Any, datasets: list[Any]) -> Any:
    """Change a pipeline to run in the calling thread: no parallel calls, and nothing is made ahead."""
    lists = find_inputs(node)
    if node.type in ("MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"):
        inputs = [*datasets, *lists["other_arguments"]]
        # In the calling thread if possible: that executor does not support loops and branches.
        inline = {"use_inter_op_parallelism": tf.compat.v1.AttrValue(b=has_control_flow(node))}
        return create(node.graph, "MapDataset", inputs, copy_attributes(node, "f", "Targuments") | inline)
    if "ParallelInterleaveDataset" in node.type:
        length = lists["cycle_length"][0]
        value = tf.get_static_value(length)
        if value is None or value <= 0:  # chosen by TensorFlow
            length = tf.constant(_FILES_AT_ONCE, tf.int64)
        inputs = [*datasets, *lists["other_arguments"], length, lists["block_length"][0]]
        return create(node.graph, "InterleaveDataset", inputs, copy_attributes(node, "f", "Targuments"))
    if node.type.startswith("ParallelBatchDataset"):
        inputs = [*datasets, lists["batch_size"][0], lists["drop_remainder"][0]]
        return create(node.graph, "BatchDatasetV2", inputs, copy_attributes(node))
    if node.type.startswith(_PASSING_ON):
        return datasets[0]
    return None


def remove_buffers(node: Any, datasets: list[Any]) -> Any:
    """Change a pipeline to make elements one by one: no shuffle, whose buffer fills first, and no cache."""
    if len(datasets) == 1 and node.type.startswith(("ShuffleDataset", "CacheDataset")):
        return datasets[0]
    return make_sequential(node, datasets)


def remove_caches(node: Any, datasets: list[Any]) -> Any:
    """Change a pipeline to keep nothing from one epoch to the next, in memory or in files."""
    return datasets[0] if node.type.startswith(("CacheDataset", "SnapshotDataset")) else None


_PASSING_ON = ("PrefetchDataset", "AssertCardinalityDataset", "AssertNextDataset", "OptionsDataset")
_FILES_AT_ONCE = 4


def copy_attributes(node: Any, *names: str) -> dict[str, Any]:
    """Return attributes of an operation for its replacement: these, and those of its elements."""
    return {name: node.node_def.attr[name] for name in (*names, "output_types", "output_shapes")}

"""Datasets built again in their graph, with changes: what they captured stays, nothing is serialized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from input_rules.tf.operations import (
    dataset_inputs,
    has_control_flow,
    is_dataset,
    named_inputs,
    topological_order,
)

Change = Callable[[Any, list[Any]], Any]
"""Gets an operation and the tensors of the datasets that it is to read; returns the tensor of the dataset to
take its place, or None for the operation as it is."""


def rebuild(last: Any, change: Change, known: Mapping[str, Any] | None = None) -> Any:
    """Builds a dataset again, with changes.

    Args:
        last: The operation of the dataset.
        change: Says what becomes of each operation.
        known: Tensors that stand for operations, by their names; what these read is not built again.

    Returns:
        The variant tensor of the new dataset.
    """
    built: dict[str, Any] = dict(known or {})
    with last.graph.as_default():
        for node in needed(last, built):
            inputs = [built[other.name] for other in dataset_inputs(node)]
            changed = change(node, inputs)
            built[node.name] = copied(node, inputs) if changed is None else changed
    return built[last.name]


def needed(last: Any, known: Mapping[str, Any]) -> list[Any]:
    """Operations that one depends on and that are not known, and itself, inputs first."""
    wanted: set[str] = set()
    waiting = [last]
    while waiting:
        node = waiting.pop()
        if node.name not in wanted and node.name not in known:
            wanted.add(node.name)
            waiting += dataset_inputs(node)
    return [node for node in topological_order(last) if node.name in wanted]


def copied(node: Any, datasets: Sequence[Any]) -> Any:
    """The same operation on other datasets; the operation itself where they are its own."""
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
    """The same operation on other datasets, with other arguments, by their names, and attributes."""
    fresh = iter(datasets)
    inputs = [
        next(fresh) if is_dataset(tensor) else arguments.get(name, tensor)
        for name, tensors in named_inputs(node).items()
        for tensor in tensors
    ]
    return create(node.graph, node.type, inputs, dict(node.node_def.attr) | dict(attributes))


def create(graph: Any, kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """A new dataset operation; returns its tensor."""
    kept = {name: value for name, value in attributes.items() if not name.startswith("_")}
    with graph.as_default():
        return graph.create_op(kind, list(inputs), [tf.variant], attrs=kept).outputs[0]


def structure(node: Any) -> tuple[Any, ...]:
    """Specs of the flat components that a dataset operation delivers."""
    known = {attribute.name for attribute in node.op_def.attr}
    kinds = node.get_attr("output_types" if "output_types" in known else "Toutput_types")
    shapes = node.get_attr("output_shapes")
    return tuple(
        tf.TensorSpec(tf.TensorShape(shape), kind) for shape, kind in zip(shapes, kinds, strict=True)
    )


def as_dataset(tensor: Any, spec: Any) -> Any:
    """A Dataset of a variant tensor."""
    return tf.data.experimental.from_variant(tensor, spec)


def initializers(graph: Any) -> list[Any]:
    """What a session runs before it reads an input: its tables and variables."""
    with graph.as_default():
        return [tf.compat.v1.tables_initializer(), tf.compat.v1.global_variables_initializer()]


def plain_options() -> Any:
    """Options that leave a pipeline as it is written, in one thread."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.threading.max_intra_op_parallelism = 1
    options.threading.private_threadpool_size = 1
    options.deterministic = True
    return options


def sequential(node: Any, datasets: list[Any]) -> Any:
    """The Change that does everything in the calling thread: neither parallel calls nor anything ahead."""
    lists = named_inputs(node)
    if node.type in ("MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2"):
        inputs = [*datasets, *lists["other_arguments"]]
        # In the calling thread, where TensorFlow can: its executor for that knows no loops and branches.
        inline = {"use_inter_op_parallelism": tf.compat.v1.AttrValue(b=has_control_flow(node))}
        return create(node.graph, "MapDataset", inputs, _common(node, "f", "Targuments") | inline)
    if "ParallelInterleaveDataset" in node.type:
        length = _positive(lists["cycle_length"][0])
        inputs = [*datasets, *lists["other_arguments"], length, lists["block_length"][0]]
        return create(node.graph, "InterleaveDataset", inputs, _common(node, "f", "Targuments"))
    if node.type.startswith("ParallelBatchDataset"):
        inputs = [*datasets, lists["batch_size"][0], lists["drop_remainder"][0]]
        return create(node.graph, "BatchDatasetV2", inputs, _common(node))
    if node.type.startswith(_HAND_ON):
        return datasets[0]
    return None


def without_buffers(node: Any, datasets: list[Any]) -> Any:
    """The Change that makes elements one by one: no shuffle, which would first fill its buffer, no cache."""
    if len(datasets) == 1 and node.type.startswith(("ShuffleDataset", "CacheDataset")):
        return datasets[0]
    return sequential(node, datasets)


def without_caches(node: Any, datasets: list[Any]) -> Any:
    """The Change that keeps nothing from one epoch to the next, neither in memory nor in files."""
    return datasets[0] if node.type.startswith(("CacheDataset", "SnapshotDataset")) else None


_HAND_ON = ("PrefetchDataset", "AssertCardinalityDataset", "AssertNextDataset", "OptionsDataset")
_FILES_AT_ONCE = 4


def _positive(length: Any) -> Any:
    value = tf.get_static_value(length)
    if value is not None and value > 0:
        return length
    return tf.constant(_FILES_AT_ONCE, tf.int64)


def _common(node: Any, *names: str) -> dict[str, Any]:
    """Attributes that an operation shares with the one that takes its place."""
    return {name: node.node_def.attr[name] for name in (*names, "output_types", "output_shapes")}

"""The most that a change can give which only the author can make: the input as it is if that costs nothing.

Some stages are to be written anew, or left out: Python code, a function that is called for every record, what
a cache would spare. In their place the input gets elements that were made before and that are kept in memory.
So neither the stages nor the hand-overs to and from them cost anything, and no way to write them is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from input_analyzer.pipeline import Pipeline, Stage
from input_analyzer.tf.counting import initializers
from input_analyzer.tf.graph import Traced
from input_analyzer.tf.kept_elements import Kept, is_keepable, keep
from input_analyzer.tf.nodes import dataset_inputs, in_order, input_lists, is_dataset
from input_analyzer.tf.rebuild import as_dataset, create, rebuild, structure, without_buffers

KEEPING_S = 0.3
"""Elements are made for about so long, and two of them at least."""

_MOVED = ("shuffle", "repeat", "prefetch", "cache", "with_options")
"""Stages that do the same with records on which a function has not been called yet."""


@dataclass(frozen=True)
class Bounded:
    """A dataset without what some stages cost, and what its placeholders are fed with, by their names."""

    dataset: Any
    fed: Mapping[str, Any] = field(default_factory=dict)


def without_cost(traced: Traced, stages: Sequence[Stage], *, cached: bool = False) -> Bounded | None:
    """The input without what some stages cost, and without handing elements to them and from them.

    Where they are maps before the same batch(), the records are made, mixed and batched without them, and
    batches that were made before take the place of these. Else elements that were made before take the place
    of what the stages deliver, and those before them cost nothing either, as behind a cache.

    Args:
        traced: The input in its graph, which gets further operations.
        stages: Of its pipeline.
        cached: What a cache behind them would give, which spares the records before them in any case.

    Returns:
        None where what they deliver cannot be kept, as nested datasets.
    """
    last = tf.data.experimental.to_variant(traced.dataset).op
    batch = None if cached else _common_batch(traced.pipeline, stages)
    ends = stages if batch is None else [batch]
    nodes = [traced.nodes[stage.name][-1] for stage in ends]
    if not nodes or not all(map(is_keepable, nodes)):
        return None
    kept = _kept(traced.graph, nodes)
    if not all(one.elements for one in kept):
        return None
    known: dict[str, Any] = {}
    fed: dict[str, Any] = {}
    for node, one in zip(nodes, kept, strict=True):
        known[node.name], more = one.cached(traced.graph)
        fed.update(more)
    if batch is not None:
        dropped = {traced.nodes[stage.name][-1].name for stage in stages}
        known = {nodes[0].name: _drawn_beside(nodes[0], dropped, known[nodes[0].name])}
    tensor = rebuild(last, lambda node, datasets: None, known)
    return Bounded(as_dataset(tensor, traced.dataset.element_spec), fed)


def _kept(graph: Any, nodes: Sequence[Any]) -> list[Kept]:
    tensors = [rebuild(node, without_buffers) for node in nodes]
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initializers(graph))
        return [
            keep(session, tensor, {}, structure(node), KEEPING_S / len(nodes))
            for node, tensor in zip(nodes, tensors, strict=True)
        ]


def _common_batch(pipeline: Pipeline, stages: Sequence[Stage]) -> Stage | None:
    """The batch() behind all stages, which are maps, with nothing between that needs their results."""
    names = {stage.name for stage in stages}
    found: set[str] = set()
    for stage in stages:
        if stage.op != "map":
            return None
        readers = [other for other in pipeline.stages if stage.name in other.inputs]
        while len(readers) == 1 and (readers[0].op in _MOVED or readers[0].name in names):
            readers = [other for other in pipeline.stages if readers[0].name in other.inputs]
        if len(readers) != 1 or readers[0].op != "batch":
            return None
        found.add(readers[0].name)
    return pipeline.by_name[found.pop()] if len(found) == 1 else None


def _drawn_beside(batch: Any, dropped: set[str], ready: Any) -> Any:
    """Batches that are ready, for each of which one is made of the records as they are without some maps."""

    def unmapped(node: Any, datasets: list[Any]) -> Any:
        if node.name in dropped:
            return datasets[0]
        if not changed.intersection(other.name for other in dataset_inputs(node)):
            return None
        spec = structure(datasets[0].op)
        if node is not batch:
            return create(node.graph, node.type, _reading(node, datasets), _delivering(node, spec))
        lists = input_lists(node)
        of_records = as_dataset(datasets[0], spec).batch(lists["batch_size"][0], lists["drop_remainder"][0])
        made = as_dataset(ready, structure(node))
        paired = tf.data.Dataset.zip((of_records, made))
        # TensorFlow makes a map parallel by itself, and hands each batch to a thread of a pool then: that
        # took as long for 32 records as reading, mixing and batching them.
        chosen = paired.scan(tf.constant(0), lambda state, pair: (state, pair[1]))
        return tf.data.experimental.to_variant(chosen)

    # What stands behind one of the maps has other components now.
    changed = set(dropped)
    for node in in_order(batch):
        if changed.intersection(other.name for other in dataset_inputs(node)):
            changed.add(node.name)
    return rebuild(batch, unmapped)


def _reading(node: Any, datasets: Sequence[Any]) -> list[Any]:
    fresh = iter(datasets)
    return [next(fresh) if is_dataset(tensor) else tensor for tensor in node.inputs]


def _delivering(node: Any, spec: tuple[Any, ...]) -> dict[str, Any]:
    """The attributes of an operation that delivers other components."""
    types = tf.compat.v1.AttrValue.ListValue(type=[part.dtype.as_datatype_enum for part in spec])
    shapes = tf.compat.v1.AttrValue.ListValue(shape=[part.shape.as_proto() for part in spec])
    return dict(node.node_def.attr) | {
        "output_types": tf.compat.v1.AttrValue(list=types),
        "output_shapes": tf.compat.v1.AttrValue(list=shapes),
    }

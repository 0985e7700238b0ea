"""How many elements of each stage go into one sample that the pipeline delivers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from input_analyzer.errors import InputEndedError
from input_analyzer.tf.rebuild import as_dataset, copied, rebuild, structure, without_buffers
from input_rules.tf.operations import dataset_inputs
from input_rules.tf.pipeline import Traced

FEWEST, MOST = 3, 64
"""Elements of the last stage that are drawn to count those of the others."""


@dataclass(frozen=True)
class Counts:
    """Elements of the stages.

    Attributes:
        per_sample: Elements of a stage for one sample that the pipeline delivers, by name of the stage.
        read: The same by names of the reading and the read stage.
    """

    per_sample: Mapping[str, float]
    read: Mapping[tuple[str, str], float]

    def read_per_sample(self, reader: str, name: str) -> float:
        """Elements of a stage that another one reads for one sample."""
        return self.read[reader, name]


def count(traced: Traced, seconds: float) -> Counts:
    """Runs the pipeline for a few elements, with a counter on every edge between stages.

    Shuffles and caches hand on, so that what fills their buffers is not counted.
    """
    edges = _Edges(traced)
    last = traced.nodes[traced.pipeline.last.name][-1]
    delivered = edges.counted(rebuild(last, edges.change), structure(last), ("", traced.pipeline.last.name))
    with traced.graph.as_default():
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        dataset = as_dataset(delivered, structure(last)).repeat().with_options(options)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn = tf.group(tf.nest.flatten(iterator.get_next()))
        start = initializers(traced.graph)
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run([*start, edges.start])
        session.run(iterator.initializer)
        began = time.monotonic()
        number = 0
        while number < MOST and (number < FEWEST or time.monotonic() - began < seconds):
            try:
                session.run(drawn)
            except tf.errors.OutOfRangeError:
                raise InputEndedError(number, number * traced.pipeline.samples_per_element) from None
            number += 1
        totals = edges.totals(session)
    return _counts(totals, traced)


def initializers(graph: Any) -> list[Any]:
    """What a session runs before it reads an input: its tables and variables."""
    with graph.as_default():
        return [tf.compat.v1.tables_initializer(), tf.compat.v1.global_variables_initializer()]


def _counts(totals: Mapping[tuple[str, str], float], traced: Traced) -> Counts:
    pipeline = traced.pipeline
    samples = totals["", pipeline.last.name] * pipeline.samples_per_element
    made: dict[str, float] = {}
    for (_, name), elements in totals.items():
        made[name] = made.get(name, 0.0) + elements
    return Counts(
        {name: elements / samples for name, elements in made.items()},
        {edge: elements / samples for edge, elements in totals.items()},
    )


class _Edges:
    """Counters in the graph for what one stage reads from another."""

    def __init__(self, traced: Traced) -> None:
        self._stage_of = {node.name: name for name, nodes in traced.nodes.items() for node in nodes}
        self._edges: list[tuple[str, str]] = []
        most = sum(len(dataset_inputs(node)) for nodes in traced.nodes.values() for node in nodes) + 1
        with traced.graph.as_default():
            # No tf.Variable: the graph of a function would put that outside of itself.
            name = f"input_analyzer_counts_{len(traced.graph.get_operations())}"
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[most], shared_name=name)
            self.start = tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.zeros([most], tf.int64))
            self._value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)

    def change(self, node: Any, datasets: list[Any]) -> Any:
        """The Change that counts what passes between stages."""
        own = self._stage_of[node.name]
        inputs = []
        for tensor, other in zip(datasets, dataset_inputs(node), strict=True):
            edge = (own, self._stage_of[other.name])
            inputs.append(tensor if edge[0] == edge[1] else self.counted(tensor, structure(other), edge))
        replaced = without_buffers(node, inputs)
        return copied(node, inputs) if replaced is None else replaced

    def counted(self, tensor: Any, spec: Any, edge: tuple[str, str]) -> Any:
        """The same dataset; its elements are counted for an edge."""
        number = len(self._edges)
        self._edges.append(edge)

        def pass_on(*parts: Any) -> Any:
            one, place = tf.constant([1], tf.int64), tf.constant([number], tf.int64)
            added = tf.raw_ops.ResourceScatterAdd(resource=self._handle, indices=place, updates=one)
            with tf.control_dependencies([added]):
                return tuple(tf.identity(part) for part in parts)

        with tensor.graph.as_default():
            return tf.data.experimental.to_variant(as_dataset(tensor, spec).map(pass_on))

    def totals(self, session: Any) -> dict[tuple[str, str], float]:
        """Elements by edge."""
        result: dict[tuple[str, str], float] = {}
        for edge, value in zip(self._edges, session.run(self._value), strict=False):
            result[edge] = result.get(edge, 0.0) + float(value)
        return result

"""Measure the self time of every stage of a tf.data pipeline.

Each stage runs by itself, in one thread, on elements that the stages before it have made once and that are
kept in memory; the cost of reading these is measured and subtracted. TensorFlow drives it: one call into the
runtime draws many elements. The usual differences between the times of ever longer pipelines would give every
stage the error of the whole pipeline; here a cheap stage after an expensive one only has its own.

Time in which a thread was ready to run but other programs had the CPUs does not count (`cpu_time`), and the
stages are measured interleaved, so that a busy machine disturbs all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.errors import InputEndedError
from input_analyzer.measure import cpu_time
from input_analyzer.tf.rebuild import (
    Change,
    as_dataset,
    copy_operation,
    element_specs,
    initializers,
    make_sequential,
    plain_options,
    rebuild,
    remove_buffers,
    with_arguments,
)
from input_rules.pipeline import Stage, StageTime
from input_rules.tf.operations import dataset_inputs
from input_rules.tf.pipeline import TracedDataset

# A measurement draws as many elements as take about this long.
CHUNK_S = 0.02
MOST_ROUNDS = 40
FEWEST_ROUNDS = 5
_ENDLESS = 1 << 60
_LARGEST_BUFFER = 100_000


@dataclass(frozen=True)
class Timing:
    """Times of the stages, and notes on stages without times."""

    times: tuple[StageTime, ...]
    notes: tuple[str, ...] = ()


def time_stages(
    traced: TracedDataset, seconds: float = 10.0, say: Callable[[str], None] | None = None
) -> Timing:
    """Measure the self time of every stage in about this many seconds.

    Args:
        traced: The pipeline in its graph, to which operations are added.
        seconds: Time to take. A pipeline that needs longer for a few elements takes longer.
        say: Receives progress.

    Raises:
        Exception: anything that the pipeline raises, unchanged.
    """
    report = say or (lambda doing: None)
    report("counting the elements of the stages")
    counts = count(traced, 0.15 * seconds)
    # -1: run in the calling thread. A thread of a pool would have to wait for a CPU as well, which on a busy
    # machine may take as long as a stage; as it does not compute, that would count as waiting of the stage.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)
    with tf.compat.v1.Session(graph=traced.graph, config=config) as session:
        session.run(initializers(traced.graph))
        workbench = _Workbench(traced, session, counts)
        for stage in traced.pipeline.stages:
            report(f"preparing the timing of {stage.name}")
            workbench.add(stage, 0.25 * seconds / len(traced.pipeline.stages))
        end = time.monotonic() + 0.5 * seconds
        for number in range(MOST_ROUNDS):
            report(f"timing the stages, round {number + 1}")
            for probe in workbench.probes:
                probe.measure()
            if number + 1 >= FEWEST_ROUNDS and time.monotonic() > end:
                break
    return Timing(_times(traced, counts, workbench), tuple(workbench.notes))


class _Probe:
    """A pipeline that is drawn from, and the times of its elements."""

    def __init__(self, name: str, tensor: Any, spec: Any, fed: dict[str, Any]) -> None:
        self.name = name
        self.samples: list[tuple[float, float]] = []
        self._fed = fed
        graph = tensor.graph
        with graph.as_default():
            self._chunk = tf.compat.v1.placeholder_with_default(tf.constant(1, tf.int64), [])
            # `take` makes every element, while `shard` would let some stages skip theirs.
            endless = as_dataset(tensor, spec).repeat().take(_ENDLESS)
            drawn = endless.shard(self._chunk, self._chunk - 1).with_options(plain_options())
            self._iterator = tf.compat.v1.data.make_initializable_iterator(drawn)
            self._next = self._iterator.get_next()
            self._drawn = tf.group(tf.nest.flatten(self._next))
        self._elements = 1
        self._draw: Callable[[], Any] = lambda: None

    def start(self, session: Any, fewest: int = 0) -> None:
        """Warm the pipeline up and determine how many elements make a chunk.

        Args:
            session: Session of its graph.
            fewest: More elements than these are drawn, whatever time they take.

        Raises:
            tf.errors.OutOfRangeError: the pipeline ended.
        """
        elements, drawn = 1, 0
        while True:
            session.run(self._iterator.initializer, {**self._fed, self._chunk.name: elements})
            self._draw = session.make_callable(self._drawn)
            self._elements = elements
            self._draw()
            start = time.monotonic()
            self._draw()
            passed = time.monotonic() - start
            drawn += 2 * elements
            if passed >= CHUNK_S or elements >= 1 << 20:
                break
            elements = min(elements * max(2, min(64, int(CHUNK_S / max(passed, 1e-6)) + 1)), 1 << 20)
        while drawn <= fewest:
            self._draw()
            drawn += elements

    def measure(self) -> None:
        """Draw a chunk."""
        before = cpu_time.start()
        self._draw()
        spent = cpu_time.spent_since(before)
        self.samples.append((spent.cpu / self._elements / 1e3, spent.wait / self._elements / 1e3))

    def cost(self) -> tuple[float, float]:
        """Return CPU time and waiting per element, us: the median of the faster half of all chunks."""
        totals = sorted(self.samples, key=sum)
        better = totals[: (len(totals) + 1) // 2]
        cpu, wait = np.median(np.array(better), axis=0)
        return float(cpu), float(wait)


class _Workbench:
    """The probes of a pipeline: one for every stage that does work, and one for its input."""

    def __init__(self, traced: TracedDataset, session: Any, counts: Counts) -> None:
        self.probes: list[_Probe] = []
        self.notes: list[str] = []
        self._traced = traced
        self._session = session
        self._counts = counts
        self._kept: dict[str, Kept] = {}
        self._missing: set[str] = set()

    def add(self, stage: Stage, seconds: float) -> None:
        """Add the probes of a stage, and keep elements of it for later stages, in about this many seconds."""
        node = self._traced.nodes[stage.name][-1]
        if self._missing.intersection(stage.inputs):
            self._missing.add(stage.name)
            return
        once = stage.op == "concatenate" or _may_drop(stage)
        tensor, fed = self._rebuilt(node, remove_buffers, endless=not once)
        kept = keep(self._session, tensor, fed, element_specs(node), seconds) if is_keepable(node) else None
        if kept is not None and not kept.elements:
            self.notes.append(f"{stage.name} drops all of the first elements, so it was not timed")
            self._missing.add(stage.name)
            return
        if not is_passive(stage):
            tensor, fed = self._rebuilt(node, _isolate, endless=not once)
            try:
                # A stage that drops elements may drop all but one round of the kept ones.
                round_of = max((len(self._kept[name].elements) for name in self._nearest(node)), default=0)
                probe = _Probe(stage.name, tensor, element_specs(node), fed)
                self._start(probe, fewest=round_of if _may_drop(stage) else 0)
            except tf.errors.OutOfRangeError:
                self.notes.append(f"{stage.name} ends after a while, so it was not timed")
                self._missing.add(stage.name)
                return
        if kept is not None:
            self._kept[node.name] = kept
            if any(stage.name in later.inputs for later in self._traced.pipeline.stages):
                tensor, fed = kept.dataset(self._traced.graph, endless=True)
                self._start(_Probe(_source_name(stage.name), tensor, element_specs(node), fed))

    def _start(self, probe: _Probe, fewest: int = 0) -> None:
        probe.start(self._session, fewest)
        self.probes.append(probe)

    def _rebuilt(self, node: Any, change: Change, *, endless: bool) -> tuple[Any, dict[str, Any]]:
        """Rebuild a stage on the kept elements of the stages before it."""
        known: dict[str, Any] = {}
        fed: dict[str, Any] = {}
        for name in self._nearest(node):
            known[name], more = self._kept[name].dataset(self._traced.graph, endless=endless)
            fed.update(more)
        return rebuild(node, change, known), fed

    def _nearest(self, node: Any) -> set[str]:
        """Return the nearest operations before one whose elements are kept."""
        found: set[str] = set()
        waiting = dataset_inputs(node)
        while waiting:
            other = waiting.pop()
            if other.name in self._kept:
                found.add(other.name)
            else:
                waiting += dataset_inputs(other)
        return found


def _may_drop(stage: Stage) -> bool:
    return any(kind.startswith(_DROPPING) for kind in stage.kinds)


# Operations that may drop all elements of a round that is repeated: their state restarts with it.
_DROPPING = ("Filter", "ParallelFilter", "TakeWhile", "IgnoreErrors", "Scan", "Unique")


def is_passive(stage: Stage) -> bool:
    """Return True if a stage only passes elements on, directly or in its own thread."""
    return stage.op in ("prefetch", "cache", "with_options", "assert_cardinality", "repeat")


def _source_name(name: str) -> str:
    return f"elements of {name}"


def _isolate(node: Any, datasets: list[Any]) -> Any:
    """Change a stage to run by itself: sequential, and with a shuffle buffer that fills immediately."""
    if node.type.startswith("ShuffleDataset"):
        size = tf.get_static_value(node.inputs[1])
        if size is None or size > _LARGEST_BUFFER:
            return with_arguments(node, datasets, {"buffer_size": tf.constant(_LARGEST_BUFFER, tf.int64)})
    return make_sequential(node, datasets)


def _times(traced: TracedDataset, counts: Counts, workbench: _Workbench) -> tuple[StageTime, ...]:
    costs = {probe.name: probe.cost() for probe in workbench.probes}
    pipeline = traced.pipeline
    cached = {
        before.name for stage in pipeline.stages if stage.op == "cache" for before in pipeline.before(stage)
    }
    times = []
    for stage in pipeline.stages:
        if is_passive(stage):
            times.append(StageTime(stage.name, 0.0, 0.0, stage.name in cached))
            continue
        if stage.name not in costs:
            continue
        of_stage = counts.per_sample[stage.name]
        cpu, wait = (of_stage * part for part in costs[stage.name])
        for name in stage.inputs:
            # Of nested datasets nothing is kept: the stage was timed together with the one that makes them.
            read_cpu, read_wait = costs.get(_source_name(name)) or costs.get(name, (0.0, 0.0))
            share = counts.read_per_sample(stage.name, name)
            cpu, wait = cpu - share * read_cpu, wait - share * read_wait
        # Waiting that only one of the two has is the error of both clocks, not waiting.
        total = max(0.0, cpu + wait)
        cpu = min(max(0.0, cpu), total)
        times.append(StageTime(stage.name, cpu, total - cpu, stage.name in cached))
    return tuple(times)


# Elements of the last stage that are drawn to count those of the other stages.
FEWEST_COUNTED, MOST_COUNTED = 3, 64


@dataclass(frozen=True)
class Counts:
    """Elements of the stages.

    Attributes:
        per_sample: Elements of a stage per sample that the pipeline delivers, by name of the stage.
        read: The same by names of the reading and the read stage.
    """

    per_sample: Mapping[str, float]
    read: Mapping[tuple[str, str], float]

    def read_per_sample(self, reader: str, name: str) -> float:
        """Return the elements of a stage that another one reads per sample."""
        return self.read[reader, name]


def count(traced: TracedDataset, seconds: float) -> Counts:
    """Run the pipeline for a few elements, with a counter on every edge between stages."""
    # Shuffles and caches are bypassed, so that elements that fill their buffers are not counted.
    edges = _Edges(traced)
    last = traced.nodes[traced.pipeline.last.name][-1]
    delivered = edges.count_edge(
        rebuild(last, edges.change), element_specs(last), ("", traced.pipeline.last.name)
    )
    with traced.graph.as_default():
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        dataset = as_dataset(delivered, element_specs(last)).repeat().with_options(options)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn = tf.group(tf.nest.flatten(iterator.get_next()))
        start = initializers(traced.graph)
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run([*start, edges.start])
        session.run(iterator.initializer)
        began = time.monotonic()
        number = 0
        while number < MOST_COUNTED and (number < FEWEST_COUNTED or time.monotonic() - began < seconds):
            try:
                session.run(drawn)
            except tf.errors.OutOfRangeError:
                raise InputEndedError(number, number * traced.pipeline.samples_per_element) from None
            number += 1
        totals = edges.totals(session)
    return _counts(totals, traced)


def _counts(totals: Mapping[tuple[str, str], float], traced: TracedDataset) -> Counts:
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
    """Counters in the graph for the elements that one stage reads from another."""

    def __init__(self, traced: TracedDataset) -> None:
        self._stage_of = {node.name: name for name, nodes in traced.nodes.items() for node in nodes}
        self._edges: list[tuple[str, str]] = []
        most = sum(len(dataset_inputs(node)) for nodes in traced.nodes.values() for node in nodes) + 1
        with traced.graph.as_default():
            # No tf.Variable: in the graph of a function it would be created outside of that.
            name = f"input_analyzer_counts_{len(traced.graph.get_operations())}"
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[most], shared_name=name)
            self.start = tf.raw_ops.AssignVariableOp(resource=self._handle, value=tf.zeros([most], tf.int64))
            self._value = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int64)

    def change(self, node: Any, datasets: list[Any]) -> Any:
        """Add counters to the edges between stages."""
        own = self._stage_of[node.name]
        inputs = []
        for tensor, other in zip(datasets, dataset_inputs(node), strict=True):
            edge = (own, self._stage_of[other.name])
            inputs.append(
                tensor if edge[0] == edge[1] else self.count_edge(tensor, element_specs(other), edge)
            )
        replaced = remove_buffers(node, inputs)
        return copy_operation(node, inputs) if replaced is None else replaced

    def count_edge(self, tensor: Any, spec: Any, edge: tuple[str, str]) -> Any:
        """Add a counter for an edge to a dataset; return the dataset that counts its elements."""
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
        """Return the elements by edge."""
        result: dict[tuple[str, str], float] = {}
        for edge, value in zip(self._edges, session.run(self._value), strict=False):
            result[edge] = result.get(edge, 0.0) + float(value)
        return result


# Elements of a stage that are kept.
MOST_KEPT = 512
# Approximate memory of kept elements.
MOST_KEPT_BYTES = 32 << 20
# Larger elements (bytes) are passed on as they are, as slicing them from an array copies them.
_LARGE = 16 << 10
_MOST_LARGE = 32


@dataclass(frozen=True)
class Kept:
    """Some elements of a stage.

    Attributes:
        elements: Flat components of each element.
        spec: Specs of the components.
    """

    elements: tuple[tuple[Any, ...], ...]
    spec: tuple[Any, ...]

    def dataset(self, graph: Any, *, endless: bool) -> tuple[Any, dict[str, Any]]:
        """Make a dataset of the elements in a graph; return its tensor and the values of its placeholders."""
        first = self.elements[0]
        alike = all(
            np.shape(part) == np.shape(other)
            for element in self.elements
            for part, other in zip(element, first, strict=True)
        )
        fed: dict[str, Any] = {}
        with graph.as_default():
            if alike and sum(np.asarray(part).nbytes for part in first) <= _LARGE:
                holders = []
                for spec, column in zip(self.spec, zip(*self.elements, strict=True), strict=True):
                    # NumPy strings lose trailing zeros, which serialized records may have.
                    kind = object if isinstance(column[0], bytes) else None
                    stack = np.stack([np.asarray(part, kind) for part in column])
                    holders.append(tf.compat.v1.placeholder(spec.dtype, stack.shape))
                    fed[holders[-1].name] = stack
                dataset = tf.data.Dataset.from_tensor_slices(tuple(holders))
            else:
                parts = []
                for element in self.elements[:_MOST_LARGE]:
                    holders = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in self.spec]
                    fed.update((holder.name, part) for holder, part in zip(holders, element, strict=True))
                    parts.append(tf.data.Dataset.from_tensors(tuple(holders)).repeat())
                dataset = tf.data.Dataset.choose_from_datasets(parts, tf.data.Dataset.range(len(parts)))
            return tf.data.experimental.to_variant(dataset.repeat() if endless else dataset), fed


def is_keepable(node: Any) -> bool:
    """Return True if elements of a dataset operation can leave the graph, as nested datasets cannot."""
    return all(spec.dtype not in (tf.variant, tf.resource) for spec in element_specs(node))


def keep(session: Any, tensor: Any, fed: dict[str, Any], spec: tuple[Any, ...], seconds: float) -> Kept:
    """Draw elements of a dataset for about this many seconds, at least one if there is one."""
    with session.graph.as_default():
        dataset = as_dataset(tensor, spec).with_options(plain_options())
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        drawn = tf.nest.flatten(iterator.get_next())
    session.run(iterator.initializer, fed)
    draw = session.make_callable(drawn)
    elements: list[tuple[Any, ...]] = []
    size = 0
    end = time.monotonic() + seconds
    try:
        while (
            len(elements) < MOST_KEPT
            and size < MOST_KEPT_BYTES
            and (len(elements) < 2 or time.monotonic() < end)
        ):
            element = tuple(draw())
            size += sum(np.asarray(part).nbytes for part in element)
            elements.append(element)
    except tf.errors.OutOfRangeError:
        pass
    return Kept(tuple(elements), spec)

"""Self time of every stage of a tf.data pipeline.

Each stage runs alone, in one thread, on elements that the stages before it have made once and that are kept
in memory; what reading these costs is measured as well and taken off. TensorFlow drives it: one call into the
runtime draws many elements. Differences of times of ever longer pipelines, the usual way, have the error of
the whole pipeline in every stage; here a cheap stage behind a dear one has only its own.

Time in which a thread was ready to run but other programs had the CPUs does not count (`cpu_clock`), and the
stages are measured interleaved, so that a busy machine disturbs all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer import cpu_clock
from input_analyzer.tf.counting import Counts, count, initializers
from input_analyzer.tf.kept_elements import Kept, is_keepable, keep
from input_analyzer.tf.rebuild import (
    Change,
    as_dataset,
    plain_options,
    rebuild,
    sequential,
    structure,
    with_arguments,
    without_buffers,
)
from input_rules.pipeline import Stage, StageTime
from input_rules.tf.operations import dataset_inputs
from input_rules.tf.pipeline import Traced

CHUNK_S = 0.02
"""A measurement draws as many elements as take about so long."""
MOST_ROUNDS = 40
FEWEST_ROUNDS = 5
_ENDLESS = 1 << 60
_LARGEST_BUFFER = 100_000


@dataclass(frozen=True)
class Timing:
    """Times of the stages, and why some have none."""

    times: tuple[StageTime, ...]
    notes: tuple[str, ...] = ()


def time_stages(traced: Traced, seconds: float = 10.0, say: Callable[[str], None] | None = None) -> Timing:
    """Measures the self time of every stage in about so many seconds.

    Args:
        traced: The pipeline in its graph, which gets further operations.
        seconds: Time to take. A pipeline that needs more for a few elements takes more.
        say: Told what is being done, now and then.

    Raises:
        Exception: whatever the pipeline raises, unchanged.
    """
    tell = say or (lambda doing: None)
    tell("counting the elements of the stages")
    counts = count(traced, 0.15 * seconds)
    with tf.compat.v1.Session(graph=traced.graph, config=_one_thread()) as session:
        session.run(initializers(traced.graph))
        workbench = _Workbench(traced, session, counts)
        for stage in traced.pipeline.stages:
            tell(f"preparing the timing of {stage.name}")
            workbench.add(stage, 0.25 * seconds / len(traced.pipeline.stages))
        _take_turns(workbench.probes, time.monotonic() + 0.5 * seconds, tell)
    return Timing(_times(traced, counts, workbench), tuple(workbench.notes))


def _one_thread() -> Any:
    # -1: in the thread that calls. One of a pool that only hands on would wait for a CPU as well, on a busy
    # machine for as long as a stage takes, and count as one that does not work, so as waiting of the stage.
    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=-1, intra_op_parallelism_threads=1)


class _Probe:
    """One pipeline that is drawn from, and what its elements took."""

    def __init__(self, name: str, tensor: Any, spec: Any, fed: dict[str, Any]) -> None:
        self.name = name
        self.samples: list[tuple[float, float]] = []
        self._fed = fed
        graph = tensor.graph
        with graph.as_default():
            self._chunk = tf.compat.v1.placeholder_with_default(tf.constant(1, tf.int64), [])
            # `take` makes every element, where `shard` alone would let some stages skip theirs.
            endless = as_dataset(tensor, spec).repeat().take(_ENDLESS)
            drawn = endless.shard(self._chunk, self._chunk - 1).with_options(plain_options())
            self._iterator = tf.compat.v1.data.make_initializable_iterator(drawn)
            self._next = self._iterator.get_next()
            self._drawn = tf.group(tf.nest.flatten(self._next))
        self._elements = 1
        self._draw: Callable[[], Any] = lambda: None

    def start(self, session: Any, fewest: int = 0) -> None:
        """Warms the pipeline up and finds out how many elements make a chunk.

        Args:
            session: Of its graph.
            fewest: More elements than these are drawn, whatever time they take.

        Raises:
            tf.errors.OutOfRangeError: it delivers no more.
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
        """Draws a chunk."""
        before = cpu_clock.start()
        self._draw()
        spent = cpu_clock.spent_since(before)
        self.samples.append((spent.cpu / self._elements / 1e3, spent.wait / self._elements / 1e3))

    def cost(self) -> tuple[float, float]:
        """CPU time and waiting of an element, us: of the better half of all chunks the middle one."""
        totals = sorted(self.samples, key=sum)
        better = totals[: (len(totals) + 1) // 2]
        cpu, wait = np.median(np.array(better), axis=0)
        return float(cpu), float(wait)


def _take_turns(probes: Sequence[_Probe], end: float, tell: Callable[[str], None]) -> None:
    for number in range(MOST_ROUNDS):
        tell(f"timing the stages, round {number + 1}")
        for probe in probes:
            probe.measure()
        if number + 1 >= FEWEST_ROUNDS and time.monotonic() > end:
            return


class _Workbench:
    """The probes of a pipeline: one for every stage that does something itself, one for what it reads."""

    def __init__(self, traced: Traced, session: Any, counts: Counts) -> None:
        self.probes: list[_Probe] = []
        self.notes: list[str] = []
        self._traced = traced
        self._session = session
        self._counts = counts
        self._kept: dict[str, Kept] = {}
        self._missing: set[str] = set()

    def add(self, stage: Stage, seconds: float) -> None:
        """Makes the probes of a stage, and keeps elements of it for later ones, in about so many seconds."""
        node = self._traced.nodes[stage.name][-1]
        if self._missing.intersection(stage.inputs):
            self._missing.add(stage.name)
            return
        once = stage.op == "concatenate" or _may_drop(stage)
        tensor, fed = self._rebuilt(node, without_buffers, endless=not once)
        kept = keep(self._session, tensor, fed, structure(node), seconds) if is_keepable(node) else None
        if kept is not None and not kept.elements:
            self.notes.append(f"{stage.name} lets none of the first elements pass, so it was not timed")
            self._missing.add(stage.name)
            return
        if not is_passive(stage):
            tensor, fed = self._rebuilt(node, _alone, endless=not once)
            try:
                # What drops elements may have dropped all but one round of those that are kept.
                round_of = max((len(self._kept[name].elements) for name in self._nearest(node)), default=0)
                probe = _Probe(stage.name, tensor, structure(node), fed)
                self._start(probe, fewest=round_of if _may_drop(stage) else 0)
            except tf.errors.OutOfRangeError:
                self.notes.append(f"{stage.name} delivers nothing more after a while, so it was not timed")
                self._missing.add(stage.name)
                return
        if kept is not None:
            self._kept[node.name] = kept
            if any(stage.name in later.inputs for later in self._traced.pipeline.stages):
                tensor, fed = kept.dataset(self._traced.graph, endless=True)
                self._start(_Probe(_read(stage.name), tensor, structure(node), fed))

    def _start(self, probe: _Probe, fewest: int = 0) -> None:
        probe.start(self._session, fewest)
        self.probes.append(probe)

    def _rebuilt(self, node: Any, change: Change, *, endless: bool) -> tuple[Any, dict[str, Any]]:
        """A stage on what is kept of those before it."""
        known: dict[str, Any] = {}
        fed: dict[str, Any] = {}
        for name in self._nearest(node):
            known[name], more = self._kept[name].dataset(self._traced.graph, endless=endless)
            fed.update(more)
        return rebuild(node, change, known), fed

    def _nearest(self, node: Any) -> set[str]:
        """Operations whose elements are kept and that one reads, directly or through others."""
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


_DROPPING = ("Filter", "ParallelFilter", "TakeWhile", "IgnoreErrors", "Scan", "Unique")
"""What may let nothing pass of elements that come again: it begins again with each round of them."""


def is_passive(stage: Stage) -> bool:
    """Whether a stage only hands on what others have made, at once or in a thread of its own."""
    return stage.op in ("prefetch", "cache", "with_options", "assert_cardinality", "repeat")


def _read(name: str) -> str:
    return f"elements of {name}"


def _alone(node: Any, datasets: list[Any]) -> Any:
    """A stage by itself: sequential, and a shuffle with a buffer that is filled in no time."""
    if node.type.startswith("ShuffleDataset"):
        size = tf.get_static_value(node.inputs[1])
        if size is None or size > _LARGEST_BUFFER:
            return with_arguments(node, datasets, {"buffer_size": tf.constant(_LARGEST_BUFFER, tf.int64)})
    return sequential(node, datasets)


def _times(traced: Traced, counts: Counts, workbench: _Workbench) -> tuple[StageTime, ...]:
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
            read_cpu, read_wait = costs.get(_read(name)) or costs.get(name, (0.0, 0.0))
            share = counts.read_per_sample(stage.name, name)
            cpu, wait = cpu - share * read_cpu, wait - share * read_wait
        # Waiting that only one of the two has is the error of both clocks, not waiting.
        total = max(0.0, cpu + wait)
        cpu = min(max(0.0, cpu), total)
        times.append(StageTime(stage.name, cpu, total - cpu, stage.name in cached))
    return tuple(times)

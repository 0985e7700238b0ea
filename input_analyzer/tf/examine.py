"""The examination of a tf.data pipeline."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.measure import node
from input_analyzer.measure.examine import Examination, Overlap, Reading, overlap
from input_analyzer.measure.link import Order
from input_analyzer.tf import private_files
from input_analyzer.tf.eager_graph import NeedsEagerError, in_graph
from input_analyzer.tf.rebuild import as_dataset, initializers, rebuild, without_caches
from input_analyzer.tf.timing import Timing, time_stages
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import Pipeline
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.inspection import SHARING_UNKNOWN, equal_random_numbers, inspect
from input_rules.tf.pipeline import TracedDataset, call_in_graph, trace

_UNSHARED = {
    None: "batches are all alike, others each time, or could not be read",
    Overlap.SOME: "two workers were seen to read the same in part",
}


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Traces the input function, times the stages, applies all rules."""

    def make(count: int, index: int) -> Any:
        say("calling the input function")  # each call may take as long as the first one
        return program.build(Shard(count, index))

    try:
        inspection = inspect(
            make,
            seed=program.seed,
            memory_bytes=order.memory_bytes or node.read_memory().available_bytes,
            in_graph=in_graph if program.eager else call_in_graph,
            names=None if order.source_only else lambda spec: program.component_names(),
        )
    except NeedsEagerError as error:
        return _unseen(error)
    seconds = order.stage_seconds
    timing = time_stages(inspection.traced, seconds, say) if seconds > 0 else Timing(())
    context = replace(
        inspection.context,
        times={time.stage: time for time in timing.times},
        cpus=order.cpus_per_task or len(os.sched_getaffinity(0)),
    )
    notes = inspection.notes
    if inspection.by_python:
        say("reading the first batches as two workers")
        context, notes = _with_records(program, context)
    return Examination(
        pipeline=inspection.pipeline,
        times=timing.times,
        findings=find(inspection.pipeline, context),
        sharded=context.sharded,
        split=inspection.split,
        notes=(*timing.notes, *notes, *private_files.notes()),
    )


def _with_records(program: InputProgram, context: Context) -> tuple[Context, tuple[str, ...]]:
    """What two workers are seen to share where Python code decides about it, and notes."""
    convert = in_graph if program.eager else call_in_graph
    seed = SEED if program.seed is None else program.seed
    found = None
    with suppress(Exception):  # what the input raises is shown where it is read in earnest
        found = overlap_of_workers(
            lambda index: trace(lambda: program.build(Shard(2, index)), seed, in_graph=convert),
            lambda index: program.role(Shard(2, index)),
        )
    if found in _UNSHARED:
        return replace(context, sharded=None), (SHARING_UNKNOWN.format(_UNSHARED[found]),)
    return replace(context, sharded=found is Overlap.NONE), ()


def _unseen(error: NeedsEagerError) -> Examination:
    """What is known of an input that can be read, but not looked at."""
    note = (
        "What the input function returns cannot be made in a graph, where its stages could be seen: "
        f"{error}. The rates are measured as a run reads it; there are no stages, and no findings."
    )
    return Examination(Pipeline("tensorflow", ()), (), (), notes=(note, *private_files.notes()))


MOST = 16
"""Batches of each worker that are compared."""
SECONDS = 1.0
"""So long a worker is read; its first two batches are waited for."""
SEED = 20190731

Role = Callable[[int], AbstractContextManager[None]]
"""Opens what the process of a worker, by its index, finds in its environment."""


def overlap_of_workers(trace: Callable[[int], TracedDataset], role: Role) -> Overlap | None:
    """What two workers have in common.

    Args:
        trace: Calls the input function as the first worker (0) or as the second one (1).
        role: Of each while it reads.
    """

    def read(index: int) -> Reading:
        with role(index), equal_random_numbers():
            return _of_traced(trace(index))

    return overlap(read(0), read(1), read(0))


def _of_traced(traced: TracedDataset) -> Reading:
    with traced.graph.as_default():
        # One worker must not read what another has put into a cache.
        plain = rebuild(tf.data.experimental.to_variant(traced.dataset).op, without_caches)
        dataset = as_dataset(plain, traced.dataset.element_spec).with_options(_in_order()).take(MOST)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        leaves = tf.nest.flatten(iterator.get_next(), expand_composites=True)
    with tf.compat.v1.Session(graph=traced.graph) as session:
        session.run(initializers(traced.graph))
        session.run(iterator.initializer)
        return _read(session.make_callable(leaves))


def _in_order() -> Any:
    options = tf.data.Options()
    options.deterministic = True
    return options


def _read(take: Callable[[], Any]) -> Reading:
    end = time.monotonic() + SECONDS
    digests: list[str] = []
    while len(digests) < 2 or time.monotonic() < end:
        try:
            leaves = take()
        except tf.errors.OutOfRangeError:
            # Of what goes on it was cut off: that is no end.
            return Reading(tuple(digests), whole=len(digests) < MOST)
        digest = hashlib.blake2b(digest_size=16)
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            digest.update(repr(leaf.tolist()).encode() if leaf.dtype == object else leaf.tobytes())
        digests.append(digest.hexdigest())
    return Reading(tuple(digests), whole=False)

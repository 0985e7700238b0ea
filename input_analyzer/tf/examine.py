"""Examine a tf.data pipeline, and compare the records that two workers read."""

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
from input_analyzer.tf.eager_graph import NeedsEagerError, rebuild_in_graph
from input_analyzer.tf.rebuild import as_dataset, initializers, rebuild, remove_caches
from input_analyzer.tf.timing import Timing, time_stages
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import Pipeline
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.inspection import SHARING_UNKNOWN, equal_random_numbers, inspect
from input_rules.tf.pipeline import TracedDataset, call_in_graph, trace

_UNKNOWN_REASONS = {
    None: "all batches are equal, differ each time, or could not be read",
    Overlap.SOME: "two workers read some of the same records",
}


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Trace the input function, time the stages, and apply all rules."""

    def make(count: int, index: int) -> Any:
        say("calling the input function")  # each call may take as long as the first
        return program.build(Shard(count, index))

    try:
        inspection = inspect(
            make,
            seed=program.seed,
            memory_bytes=order.memory_bytes or node.read_memory().available_bytes,
            in_graph=rebuild_in_graph if program.eager else call_in_graph,
            names=None if order.source_only else lambda spec: program.component_names(),
        )
    except NeedsEagerError as error:
        # The input can be read, but not inspected.
        note = (
            "The dataset cannot be rebuilt in a graph, which would show its stages: "
            f"{error}. Rates are measured as a run reads it; there are no stages and no findings."
        )
        return Examination(Pipeline("tensorflow", ()), (), (), notes=(note, *private_files.notes()))
    seconds = order.stage_seconds
    timing = time_stages(inspection.traced, seconds, say) if seconds > 0 else Timing(())
    context = replace(
        inspection.context,
        times={time.stage: time for time in timing.times},
        cpus=order.cpus_per_task or len(os.sched_getaffinity(0)),
        tries_changes=True,
    )
    notes = inspection.notes
    if inspection.by_python:
        say("reading the first batches as two workers")
        context, notes = _compare_records(program, context)
    return Examination(
        pipeline=inspection.pipeline,
        times=timing.times,
        findings=find(inspection.pipeline, context),
        sharded=context.sharded,
        split=inspection.split,
        notes=(*timing.notes, *notes, *private_files.notes()),
    )


def _compare_records(program: InputProgram, context: Context) -> tuple[Context, tuple[str, ...]]:
    """Determine by reading whether two workers share records; return the context and notes."""
    builder = rebuild_in_graph if program.eager else call_in_graph
    seed = SEED if program.seed is None else program.seed
    found = None
    with suppress(Exception):  # errors of the input are reported when it is measured
        found = overlap_of_workers(
            lambda index: trace(lambda: program.build(Shard(2, index)), seed, in_graph=builder),
            lambda index: program.role(Shard(2, index)),
        )
    if found in _UNKNOWN_REASONS:
        return replace(context, sharded=None), (SHARING_UNKNOWN.format(_UNKNOWN_REASONS[found]),)
    return replace(context, sharded=found is Overlap.NONE), ()


# Batches of each worker that are compared.
MOST = 16
# Time for reading a worker; its first two batches are read in any case.
SECONDS = 1.0
SEED = 20190731

# Provides the environment of a worker's process, by the index of the worker.
Role = Callable[[int], AbstractContextManager[None]]


def overlap_of_workers(trace: Callable[[int], TracedDataset], role: Role) -> Overlap | None:
    """Determine the records that two workers have in common.

    Args:
        trace: Calls the input function as the first worker (0) or as the second one (1).
        role: Environment of each worker while it reads.
    """

    options = tf.data.Options()
    options.deterministic = True

    def read(index: int) -> Reading:
        with role(index), equal_random_numbers():
            traced = trace(index)
            with traced.graph.as_default():
                # A worker must not read the cache of another one.
                plain = rebuild(tf.data.experimental.to_variant(traced.dataset).op, remove_caches)
                dataset = as_dataset(plain, traced.dataset.element_spec).with_options(options).take(MOST)
                iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
                leaves = tf.nest.flatten(iterator.get_next(), expand_composites=True)
            with tf.compat.v1.Session(graph=traced.graph) as session:
                session.run(initializers(traced.graph))
                session.run(iterator.initializer)
                return _read_digests(session.make_callable(leaves))

    return overlap(read(0), read(1), read(0))


def _read_digests(take: Callable[[], Any]) -> Reading:
    end = time.monotonic() + SECONDS
    digests: list[str] = []
    while len(digests) < 2 or time.monotonic() < end:
        try:
            leaves = take()
        except tf.errors.OutOfRangeError:
            # `take` may have cut the data off, which is no end.
            return Reading(tuple(digests), whole=len(digests) < MOST)
        digest = hashlib.blake2b(digest_size=16)
        for leaf in map(np.asarray, leaves):
            digest.update(f"{leaf.dtype} {leaf.shape} ".encode())
            digest.update(repr(leaf.tolist()).encode() if leaf.dtype == object else leaf.tobytes())
        digests.append(digest.hexdigest())
    return Reading(tuple(digests), whole=False)

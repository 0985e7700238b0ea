"""The examination of a tf.data pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from input_analyzer.examine import Examination
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.overlap import Overlap
from input_analyzer.tf import private_caches
from input_analyzer.tf.eager_graph import NeedsEagerError, in_graph
from input_analyzer.tf.records import SEED, overlap_of_workers
from input_analyzer.tf.timing import Timing, time_stages
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import Pipeline
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.inspection import SHARING_UNKNOWN, inspect
from input_rules.tf.pipeline import called, trace

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
            memory_bytes=order.memory_bytes or node.memory().available_bytes,
            in_graph=in_graph if program.eager else called,
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
        notes=(*timing.notes, *notes, *private_caches.notes()),
    )


def _with_records(program: InputProgram, context: Context) -> tuple[Context, tuple[str, ...]]:
    """What two workers are seen to share where Python code decides about it, and notes."""
    convert = in_graph if program.eager else called
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
    return Examination(Pipeline("tensorflow", ()), (), (), notes=(note, *private_caches.notes()))

"""The examination of a torch DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from input_analyzer.examine import Examination
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.overlap import Overlap, Reading, overlap
from input_analyzer.torch import sharing
from input_analyzer.torch.timing import time_stages
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import Pipeline, StageTime, Value
from input_rules.rules.base import Context
from input_rules.torch.loader import (
    COLLATE,
    GETITEM,
    SAMPLER,
    WORKERS,
    held_open,
    noting_calls,
    parts_of,
    pipeline_of,
)
from input_rules.torch.rules import find

_ALWAYS = frozenset({SAMPLER, GETITEM, COLLATE, WORKERS})
_SOME = (
    "{0} were seen to read some records that are the same and others that are not: where none has a part of "
    "its own, records are trained on several times an epoch."
)
_UNKNOWN = "Whether {0} read different records cannot be told: they are all alike, or others each time."


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Reads the parts of a loader, times them, compares what tasks and workers read, applies all rules.

    There is never more than one loader at a time: what it needs is taken for the memory of a task.
    """
    with program.role(Shard(1, 0)):
        pipeline, times = _alone(program, order, say)
    say("comparing what two tasks read")
    found = _of_tasks(program)
    context = Context(
        sharded={Overlap.SAME: False, Overlap.NONE: True}.get(found) if found else None,
        memory_bytes=order.memory_bytes or node.memory().available_bytes,
        times={time.stage: time for time in times},
        cpus=order.cpus_per_task or len(os.sched_getaffinity(0)),
        seeded=program.seeded,
    )
    notes = {None: (_UNKNOWN,), Overlap.SOME: (_SOME,)}.get(found, ())
    return Examination(
        pipeline,
        times,
        find(pipeline, context),
        context.sharded,
        tuple(note.format("several tasks") for note in notes),
    )


def _of_tasks(program: InputProgram) -> Overlap | None:
    """What two tasks have in common."""

    def read(task: int) -> Reading:
        with program.role(Shard(2, task)), sharing.random_numbers_alike():
            return sharing.reading_of(program.build(Shard(2, task)))

    return overlap(read(0), read(1), read(0))


def _alone(
    program: InputProgram, order: Order, say: Callable[[str], None]
) -> tuple[Pipeline, tuple[StageTime, ...]]:
    """The stages that a single task has, and their times; none of what nothing calls."""
    with noting_calls():
        loader = program.build(Shard(1, 0))
    first = next(iter(loader), None)
    pipeline = pipeline_of(loader, first)
    times = time_stages(loader, pipeline, order.stage_seconds, say) if order.stage_seconds > 0 else ()
    unused = {time.stage for time in times if not time.self_time_us and time.stage not in _ALWAYS}
    say("comparing what two worker processes read")
    used = tuple(time for time in times if time.stage not in unused)
    return pipeline_of(loader, first, {GETITEM: _of_workers(loader)}, unused), used


def _of_workers(loader: Any) -> dict[str, Value]:
    """What shows only when a loader's dataset is read by several worker processes."""
    found: dict[str, Value] = {"held": held_open(loader)}
    if parts_of(loader).iterable:
        common = sharing.of_workers(loader)
        found["split_by_workers"] = None if common is None else common is not Overlap.SAME
        found["repeated_by_workers"] = common is Overlap.SOME
    elif loader.num_workers > 1:
        found["same_random"] = sharing.same_random_numbers(loader)
    return found

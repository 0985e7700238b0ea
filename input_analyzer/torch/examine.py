"""The examination of a torch DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from input_analyzer.applying import optional, values_of
from input_analyzer.examine import Examination
from input_analyzer.findings import find
from input_analyzer.findings.context import Context
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.pipeline import Pipeline, StageTime, Value
from input_analyzer.torch import probe
from input_analyzer.torch.loader import (
    COLLATE,
    GETITEM,
    SAMPLER,
    WORKERS,
    is_torchs,
    parts_of,
    pipeline_of,
    with_facts,
)
from input_analyzer.torch.mend import mend
from input_analyzer.torch.origin import noting_calls
from input_analyzer.torch.timing import time_stages
from input_analyzer.torch.worker_errors import told_plainly


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Reads the parts of a loader, times them, tries what several workers and tasks do, applies all rules.

    There is never more than one loader at a time: what it needs is taken for the memory of a task.
    """
    pipeline, times = _alone(program, order, say)
    say("comparing what several tasks read")
    second = probe.task_of(program.build(Shard(2, 1)))
    loader = program.build(Shard(2, 0))
    task = probe.task_of(loader)
    sharded = probe.tasks_differ(task, second)
    pipeline = with_facts(pipeline, SAMPLER, _division(task, second))
    context = Context(
        sharded=sharded,
        memory_bytes=node.memory().available_bytes,
        times={time.stage: time for time in times},
        cpus=len(os.sched_getaffinity(0)),
    )
    findings = find(pipeline, context)
    values = values_of(findings, context.cpus or 1)
    return Examination(
        pipeline,
        times,
        findings,
        sharded,
        # As one of two tasks: whether there is a shard to be mended shows only there.
        applied=mend(loader, values, 2, 0).changes,
        applied_by={name: mend(loader, {name: values[name]}, 2, 0).changes for name in optional(findings)},
    )


def _alone(
    program: InputProgram, order: Order, say: Callable[[str], None]
) -> tuple[Pipeline, tuple[StageTime, ...]]:
    """The stages that a single task has, and their times; none of what nothing calls."""
    with noting_calls():
        loader = program.build(Shard(1, 0))
    with told_plainly(loader):
        first = next(iter(loader), None)
        pipeline = pipeline_of(loader, first)
        times = time_stages(loader, pipeline, order.stage_seconds, say) if order.stage_seconds > 0 else ()
    unused = {time.stage for time in times if not time.self_time_us and time.stage not in _ALWAYS}
    say("comparing what several workers read")
    facts = {GETITEM: _of_workers(loader), SAMPLER: _of_order(loader)}
    used = tuple(time for time in times if time.stage not in unused)
    return pipeline_of(loader, first, facts, unused), used


_ALWAYS = frozenset({SAMPLER, GETITEM, COLLATE, WORKERS})


def _of_workers(loader: Any) -> dict[str, Value]:
    """What shows only when a loader's dataset is read by several worker processes."""
    found: dict[str, Value] = {}
    if parts_of(loader).iterable:
        found["split_by_workers"] = probe.splits_among_workers(loader)
    if loader.num_workers > 1:
        found["same_random"] = probe.same_random(loader)
    return found


def _of_order(loader: Any) -> dict[str, Value]:
    """Whether the order of a sampler of the user's hangs on the random numbers of the process."""
    parts = parts_of(loader)
    if parts.iterable or is_torchs(parts.order):
        return {}
    drawn = probe.order_draws(parts.order)
    if drawn is None:
        return {}
    return {"random": True, "seeded": False, "draws": drawn} if drawn else {"seeded": True}


def _division(first: probe.Task, second: probe.Task) -> dict[str, Value]:
    """How the records divide: by a sampler that knows of tasks, or in the datasets of the tasks."""
    if first.padded is not None:
        return {"padded": first.padded}
    if first.kept is None or second.kept is None:
        return {}
    return {"records_by_task": (first.kept, second.kept)}

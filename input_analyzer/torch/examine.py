"""The examination of a torch DataLoader."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import DistributedSampler

from input_analyzer.analysis import Finding
from input_analyzer.applying import optional, values_of
from input_analyzer.examine import Examination
from input_analyzer.findings import find
from input_analyzer.findings.context import Context
from input_analyzer.findings.torch_loader import MOST_TASKS
from input_analyzer.handover import InputProgram, Shard
from input_analyzer.measure import node
from input_analyzer.measure.link import Order
from input_analyzer.pipeline import Pipeline, StageTime, Value
from input_analyzer.torch import concurrent_reads, orders, proof, worker_probe
from input_analyzer.torch.loader import (
    COLLATE,
    GETITEM,
    SAMPLER,
    WORKERS,
    is_torchs,
    length_of,
    parts_of,
    pipeline_of,
    with_facts,
)
from input_analyzer.torch.mend import mend
from input_analyzer.torch.origin import noting_calls
from input_analyzer.torch.task_probe import Task
from input_analyzer.torch.timing import time_stages


def examine(program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
    """Reads the parts of a loader, times them, tries what several workers and tasks do, applies all rules.

    There is never more than one loader at a time, but where two streams are compared: what it needs is taken
    for the memory of a task.
    """
    pipeline, times = _alone(program, order, say)
    say("comparing what several tasks read")
    cpus = order.cpus_per_task or len(os.sched_getaffinity(0))
    tasks, loader = proof.two_tasks(program)
    sharded = tasks.differ
    pipeline = with_facts(pipeline, SAMPLER, _division(loader, tasks.first, tasks.second))
    if proof.draws_some(loader, tasks):
        pipeline = with_facts(pipeline, SAMPLER, {"draws_some": True})
    if parts_of(loader).iterable:
        pipeline = with_facts(pipeline, GETITEM, {"by_chance": tasks.by_chance})
    context = Context(
        sharded=sharded,
        memory_bytes=order.memory_bytes or node.memory().available_bytes,
        times={time.stage: time for time in times},
        cpus=cpus,
    )
    say("looking whether mends keep every record")
    with program.role(Shard(2, 0)):
        held = concurrent_reads.shared_handle(loader, tasks.held)
        findings = _proved(program, loader, with_facts(pipeline, GETITEM, held), context, tasks)
        values = values_of(findings, cpus)
        shared = {proof.SHARDING} & values.keys()
        # As one of two tasks: whether there is a shard to be mended shows only there.
        applied = mend(loader, values, 2, 0, cpus).changes
        applied_by = {
            name: mend(loader, {name: values[name]}, 2, 0, cpus).changes
            for name in (*optional(findings), *shared)
        }
        notes = _notes(loader, tasks, pipeline)
    compared = not tasks.by_chance and (shared or sharded)
    order_of_records = proof.shared_order(tasks.first) if compared else ""
    return Examination(
        pipeline,
        times,
        findings,
        sharded,
        notes,
        applied,
        applied_by=applied_by,
        order=order_of_records,
    )


def _notes(loader: Any, tasks: proof.Tasks, pipeline: Pipeline) -> tuple[str, ...]:
    stream = tasks.first.stream
    if stream is None:
        return () if tasks.differ is not None or len(set(tasks.first.data[0])) < 2 else (_SOME_IN_COMMON,)
    if not stream[0]:
        return ()
    notes = []
    if worker_probe.reads_once(loader):
        notes.append(
            "The dataset can be read once: the next epoch has no records, as where __iter__ goes on with a "
            "file or an iterator that __init__ has opened. Open it in __iter__."
        )
    if tasks.differ is None and len(set(stream[0])) > 1:
        notes.append(
            "Whether several tasks read different records cannot be told, as the dataset reads others each "
            "time, or some of all: where it neither chooses by the task (CSRUN_TASK_INDEX) nor draws at "
            "random with a seed of each task, each record is trained on as often as there are tasks."
        )
    if loader.num_workers > 1 and _nobody_knows_parts(pipeline):
        notes.append(
            "Whether the worker processes read different records cannot be told, as the dataset reads others "
            "each time, or some of all: where it neither chooses by the worker (get_worker_info) nor draws "
            "at random with a seed of each worker, each record is trained on as often as there are workers."
        )
    return tuple(notes)


_SOME_IN_COMMON = (
    "Whether several tasks share out the records cannot be told: two of them were seen to read some that are "
    "the same and others that are not, or records change by themselves."
)


def _nobody_knows_parts(pipeline: Pipeline) -> bool:
    found = pipeline.by_name[GETITEM].attributes
    return found.get("split_by_workers") is None and not found.get("repeated_by_workers")


def _proved(
    program: InputProgram, loader: Any, pipeline: Pipeline, context: Context, tasks: proof.Tasks
) -> tuple[Finding, ...]:
    """What all rules find, of the mends those marked that may lose or repeat records."""
    findings = find(pipeline, context)
    parts, reasons = proof.parts_of_workers(loader, findings)
    known = None
    while parts is not None and parts != known:  # fewer each time
        known = parts
        pipeline = with_facts(pipeline, GETITEM, {"parts": known})
        findings = find(pipeline, context)
        parts, reasons = proof.parts_of_workers(loader, findings)
    reasons |= proof.against(program, loader, tasks, findings)
    return proof.marked(findings, reasons, proof.shuffles(loader, tasks, findings))


def _alone(
    program: InputProgram, order: Order, say: Callable[[str], None]
) -> tuple[Pipeline, tuple[StageTime, ...]]:
    """The stages that a single task has, and their times; none of what nothing calls."""
    with program.role(Shard(1, 0)):
        return _as_one_task(program, order, say)


def _as_one_task(
    program: InputProgram, order: Order, say: Callable[[str], None]
) -> tuple[Pipeline, tuple[StageTime, ...]]:
    with noting_calls():
        loader = program.build(Shard(1, 0))
    first = next(iter(loader), None)
    pipeline = pipeline_of(loader, first)
    times = time_stages(loader, pipeline, order.stage_seconds, say) if order.stage_seconds > 0 else ()
    unused = {time.stage for time in times if not time.self_time_us and time.stage not in _ALWAYS}
    say("comparing what several workers read")
    facts = {GETITEM: _of_workers(loader), SAMPLER: _of_order(loader), COLLATE: _of_batches(loader)}
    used = tuple(time for time in times if time.stage not in unused)
    return pipeline_of(loader, first, facts, unused), used


_ALWAYS = frozenset({SAMPLER, GETITEM, COLLATE, WORKERS})


def _of_workers(loader: Any) -> dict[str, Value]:
    """What shows only when a loader's dataset is read by several worker processes."""
    found: dict[str, Value] = {}
    if parts_of(loader).iterable:
        found["split_by_workers"] = splits = worker_probe.splits_among_workers(loader)
        if loader.num_workers > 1 and splits is not False:
            repeated = worker_probe.repeats_among_workers(loader)
            found["repeated_by_workers"] = repeated == "some"
            if repeated == "all":
                found["split_by_workers"] = False
            elif repeated == "none" and splits is None:
                parts = worker_probe.parts_among_workers(loader, loader.num_workers)
                found["split_by_workers"] = True if parts else None
    if loader.num_workers > 1:
        found["same_random"] = worker_probe.same_random(loader)
    return found


def _of_order(loader: Any) -> dict[str, Value]:
    """Of a sampler of the user's: whether it hangs on the random numbers of the process, and its end."""
    parts = parts_of(loader)
    if parts.iterable or is_torchs(parts.order):
        return {}
    found = _end_of(parts.order, length_of(loader.dataset)) if length_of(parts.order) is None else {}
    drawn = orders.order_draws(parts.order)
    if drawn is not None:
        found |= {"random": True, "seeded": False, "draws": drawn} if drawn else {"seeded": True}
    return found


def _of_batches(loader: Any) -> dict[str, Value]:
    """Of a batch sampler of the user's: how many records its batches have."""
    parts = parts_of(loader)
    if loader.batch_size is not None or not parts.batches or is_torchs(loader.batch_sampler):
        return {}
    return {"batch_sizes": orders.batch_sizes(loader.batch_sampler)}


def _end_of(order: Any, records: int | None) -> dict[str, Value]:
    """How many indices an order has that does not tell; endless is one that goes on with all read twice."""
    if records is None:
        return {}
    read, whole = orders.length_by_reading(order, 2 * records + 1)
    return {"records": read} if whole else {"endless": True} if read > 2 * records else {}


def _division(loader: Any, first: Task, second: Task) -> dict[str, Value]:
    """How the records divide: by a sampler that knows of tasks, or in the datasets of the tasks."""
    found: dict[str, Value] = {"by_chance": bool(first.drawn)}
    if type(order := parts_of(loader).order) is DistributedSampler and first.length:
        counts = (
            first.length // tasks if order.drop_last else -(-first.length // tasks)
            for tasks in range(2, MOST_TASKS + 1)
        )
        found["records_of_tasks"] = tuple(counts)
    if first.padded is not None:
        found["padded"] = first.padded
    if first.kept is not None and second.kept is not None:
        found["records_by_task"] = (first.kept, second.kept)
    return found

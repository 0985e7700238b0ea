"""Rules about a torch DataLoader: its records, batches and worker processes. They import no torch."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from input_rules import rules
from input_rules.findings import Finding, Gain, Severity
from input_rules.formatting import plural
from input_rules.pipeline import Pipeline
from input_rules.rules import Rule
from input_rules.rules.base import (
    Context,
    flag,
    format_ratio,
    make_finding,
    non_speed_gain,
    number,
    overlap_gain,
    time_saving_gain,
)
from input_rules.rules.batching import WORTHWHILE_SHARE, find_wide_types
from input_rules.throughput import StageCost, assign_lanes, cpu_us, queueing_time, time_us

_COLLATE_SHARE = 0.2  # of the time of all stages


def find_smaller_batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find batches whose last one in an epoch may be smaller."""
    stage, order = pipeline.by_name["collate"], pipeline.stages[0]
    if stage.attributes.get("drop_remainder") is not False:
        return
    records, size = number(order, "records"), number(stage, "batch_size")
    if not records or not size:
        severity: Severity = "warning"
        smaller = "the last batch may be smaller if the data end: the number of records is unknown"
    elif records % size:
        severity = "error"
        smaller = f"the last batch is smaller, as {records} records do not divide into batches of {size}"
    else:
        return
    iterable = flag(pipeline.by_name["getitem"], "iterable")
    each = number(pipeline.by_name["workers"], "num_workers") if iterable else 0
    yield _make_loader_finding(
        pipeline,
        "drop-remainder-missing",
        severity,
        f"{smaller}, and the CS system is programmed for one fixed shape",
        "BatchSampler(..., drop_last=True)"
        if flag(stage, "batch_sampler")
        else "DataLoader(..., drop_last=True)",
        non_speed_gain(
            "the program can be compiled; at most the last incomplete batch of an epoch"
            f"{' and worker process' if (each or 0) > 1 else ''} is dropped"
        ),
    )


def find_missing_batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find loaders that deliver single records."""
    stage = pipeline.by_name["workers"]
    if stage.attributes.get("batched_by_dataset") is False:
        yield _make_loader_finding(
            pipeline,
            "loader-batch-missing",
            "warning",
            "batch_size is None and the dataset does not make batches itself: every step would train on a "
            "single record",
            "DataLoader(..., batch_size=N) with the batch size of the training",
            non_speed_gain("the program is compiled for batches"),
        )


def find_missing_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find tasks that all read the same records."""
    if context.sharded is not False:
        return
    kind = pipeline.stages[0].attributes.get("kind")
    if flag(pipeline.by_name["getitem"], "iterable"):
        recommended = "islice(records, task, None, tasks), or files split among the tasks, in the dataset"
    elif kind in ("SequentialSampler", "RandomSampler"):
        recommended = "DistributedSampler(dataset, num_replicas=tasks, rank=task)"
    else:
        recommended = f"a task's part of {kind}, in the same order for all tasks"
    yield make_finding(
        "shard-missing",
        "error" if context.workers > 1 else "warning",
        pipeline.stages[0],
        "every task would read the same records: with N tasks each record is trained on N times per epoch",
        recommended,
        non_speed_gain("all tasks together read each record once per epoch"),
    )


def find_unseeded_order(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find samplers with another order in every run."""
    stage = pipeline.stages[0]
    if context.seeded or not (context.training and flag(stage, "random")):
        return
    if stage.attributes.get("seeded") is not False:
        return
    identifier, generator = "shuffle-without-seed", "generator=torch.Generator().manual_seed(0)"
    message = (
        "without its own generator the order depends on all random numbers drawn before, so a resumed "
        "training run skips other batches than those it has seen"
    )
    gain = non_speed_gain("a resumed training run sees the batches of an uninterrupted one")
    if flag(stage, "made_by_loader"):
        yield _make_loader_finding(
            pipeline, identifier, "info", message, f"DataLoader(..., {generator})", gain
        )
        return
    kind = stage.attributes.get("kind")
    recommended = f"{kind}(..., {generator})"  # the generator of the DataLoader has no effect on a sampler
    if not flag(stage, "takes_generator"):
        recommended = f"{kind} with its own seeded generator"
    yield make_finding(identifier, "info", stage, message, recommended, gain)


def find_slow_collate(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find a user's collate function that takes much of the time."""
    stage = pipeline.by_name["collate"]
    share = context.share((stage,))
    if flag(stage, "users") and pipeline.samples_per_element > 1 and (share or 0.0) > _COLLATE_SHARE:
        yield make_finding(
            "loader-collate-slow",
            "warning",
            stage,
            f"the collate function takes {100 * (share or 0.0):.0f} % of the time of the input",
            "records that torch.stack can put together as they are, or a dataset that makes whole batches "
            "(__getitems__)",
            time_saving_gain(pipeline, context, (stage,)),
        )


def find_single_records(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find datasets that are read record by record although they could be read batch by batch."""
    stage, collate = pipeline.by_name["getitem"], pipeline.by_name["collate"]
    stages = (stage, collate)
    share = context.share(stages)
    if not flag(stage, "batch_form") or flag(collate, "users") or pipeline.samples_per_element < _FEW_RECORDS:
        return
    if share is not None and share < WORTHWHILE_SHARE:
        return
    source = pipeline.by_name["workers"].source
    yield Finding(
        "loader-records-single",
        "warning",
        "getitem",
        stage.source or source,
        "__getitem__ is called for every record, and the records are collated, though it only selects rows "
        "of arrays and computes with them: it can take the indices of a whole batch",
        "__getitems__ = __getitem__ in the dataset, and "
        "DataLoader(..., collate_fn=torch.utils.data.default_convert)",
        time_saving_gain(pipeline, context, stages),
        related=() if stage.source is None or source is None else (source,),
    )


_FEW_RECORDS = 4

# Functions that make a number of a value of a record, and the methods that make the tensor for a batch that
# `torch.utils.data.default_collate` makes of these numbers.
NUMBERS = {"int": "long", "float": "double"}

_MANY_NUMBERS = 8
_POSITION = re.compile(r"^(.+)\[\d+\]$")


def find_lists_of_numbers(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find lists of numbers in records, from which torch makes a tensor for each position."""
    stage, size = pipeline.by_name["collate"], number(pipeline.by_name["collate"], "batch_size")
    if flag(stage, "users") or not size:
        return
    vectors = Counter(
        (place[1], tensor.dtype)
        for tensor in pipeline.element
        if tensor.shape == (size,) and (place := _POSITION.match(tensor.name))
    )
    for (name, dtype), count in vectors.items():
        if count >= _MANY_NUMBERS:
            yield _make_loader_finding(
                pipeline,
                "loader-lists",
                "warning",
                f"{name} is a list of {count} tensors with {size} numbers ({dtype}) each, one for every "
                "position: that is how torch collates lists of numbers",
                "arrays or tensors in the records; for a Hugging Face dataset, with_format('torch')",
                non_speed_gain(f"one tensor of {size} times {count} numbers, which a model can use directly"),
            )


# More workers are not recommended: each holds the dataset, its open files and prefetched batches in
# memory.
WORKERS_PER_CPU = 4

# Fraction of the memory that prefetched batches may take without a warning.
BATCHES_AHEAD_MEMORY = 0.1

# Assumed CPU time of the main process for receiving a batch from a worker if it was not measured: the
# queues, and a copy at 4 GB/s. Orders of magnitude for a server of the 2020s.
HAND_OFF_US, HAND_OFF_US_PER_BYTE = 150.0, 2.5e-4

_WORTHWHILE_RATIO = 1.15  # times the rate
_HAND_OFFS = 10
_ENOUGH_OF_BEST = 0.95  # fraction of the best rate; more workers would only cost memory


def _make_loader_finding(
    pipeline: Pipeline,
    identifier: str,
    severity: Severity,
    message: str,
    recommended: str,
    gain: Gain | None = None,
    value: int | None = None,
) -> Finding:
    """Make a finding about an argument of DataLoader, at the line of its call."""
    source = pipeline.by_name["workers"].source
    return Finding(identifier, severity, "DataLoader", source, message, recommended, gain, value)


def find_worker_count(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find missing, too few, or too many worker processes."""
    stage = pipeline.by_name["workers"]
    present, cpus = number(stage, "num_workers") or 0, _cpus(pipeline, context)
    wanted = recommend_workers(pipeline, context)
    if not present:
        # A single worker never repeats a record.
        yield from _find_missing_workers(
            pipeline, context, wanted if _workers_repeat(pipeline) is False else 1
        )
    elif present < wanted and _workers_repeat(pipeline) is not True:
        gain = _estimate_gain(pipeline, context, wanted)
        if gain is not None and gain.times is not None and gain.times >= _WORTHWHILE_RATIO:
            yield _make_loader_finding(
                pipeline,
                "loader-workers-few",
                "warning",
                f"num_workers is {present}: with {plural(cpus, 'CPU')}, more of them make batches faster",
                f"DataLoader(..., num_workers={wanted})",
                gain,
                wanted,
            )
    elif present > cpus and present >= 2 * wanted:
        yield _make_loader_finding(
            pipeline,
            "loader-workers-many",
            "warning",
            f"num_workers is {present}: by the times of the stages {wanted} would suffice with "
            f"{plural(cpus, 'CPU')}, and each holds the dataset and its batches in memory",
            f"DataLoader(..., num_workers={wanted})",
            non_speed_gain(
                f"the memory of {present - wanted} process{'' if present - wanted == 1 else 'es'}, and the "
                "time to start each of them, is saved"
            ),
            wanted,
        )


def _find_missing_workers(pipeline: Pipeline, context: Context, wanted: int) -> Iterator[Finding]:
    gain = _estimate_gain(pipeline, context, wanted)
    if gain is None or (gain.times or 0.0) < _WORTHWHILE_RATIO:
        # Workers relieve the main process of everything except for the sampler. Making a batch has to take
        # much longer than receiving it from a worker.
        times = (time for time in context.times.values() if time.stage not in ("sampler", "workers"))
        making_us = sum(time.self_time_us for time in times)
        if context.times and making_us <= _HAND_OFFS * _hand_off_us(pipeline, 0.0, 1):
            return
        gain = overlap_gain()
    cause = "num_workers is 0"
    recommended = f"DataLoader(..., num_workers={wanted}, persistent_workers=True)"
    if iterated := pipeline.by_name["workers"].attributes.get("iterated"):
        cause = f"the input is of type {iterated}"
        recommended = "a torch.utils.data.DataLoader, which makes batches in worker processes (num_workers=1)"
    message = f"{cause}: the next batch is made only after the last one was sent"
    yield _make_loader_finding(
        pipeline, "loader-workers-missing", "warning", message, recommended, gain, wanted
    )


def recommend_workers(pipeline: Pipeline, context: Context) -> int:
    """Return the fewest worker processes that are about as fast as any larger number.

    Without measured times, one for each CPU.
    """
    cpus = _cpus(pipeline, context)
    if not context.times:
        return cpus
    most = max(WORKERS_PER_CPU * cpus, number(pipeline.by_name["workers"], "num_workers") or 0)
    rates = {n: _model_rate(pipeline, context, n) for n in range(1, most + 1)}
    best = max(rates.values())
    return next(n for n, rate in rates.items() if rate >= _ENOUGH_OF_BEST * best)


def _model_rate(pipeline: Pipeline, context: Context, workers: int) -> float:
    """Return the samples per microsecond with this many workers, as derived from the times of the stages."""
    stage = pipeline.by_name["workers"]
    changed = replace(stage, attributes={**stage.attributes, "num_workers": workers})
    stages = tuple(changed if one is stage else one for one in pipeline.stages)
    lane_of = assign_lanes(replace(pipeline, stages=stages))
    costs = []
    for one in stages:
        time = context.times.get(one.name)
        cpu, wait = (time.cpu_us, time.wait_us) if time else (0.0, 0.0)
        if one is changed:
            cpu, wait = _hand_off_us(pipeline, cpu, workers), 0.0
        costs.append(StageCost(one.name, one.op, one.position, cpu + wait, cpu, wait, lane=lane_of[one.name]))
    cpus = _cpus(pipeline, context)
    time_of_sample = time_us(costs, cpus)
    if workers:
        # While one worker waits, others compute, so that they queue for the CPUs.
        of_worker = sum(cost.self_time_us_per_sample or 0.0 for cost in costs if cost.lane.threads > 1)
        computes = min(cpu_us(costs), of_worker)
        time_of_sample = max(time_of_sample, queueing_time(computes, of_worker - computes, workers, cpus))
    return 1 / time_of_sample if time_of_sample else math.inf


def _hand_off_us(pipeline: Pipeline, measured: float, workers: int) -> float:
    """Return the CPU time of the main process per sample to receive batches from workers."""
    if measured or not workers:
        return measured
    size = number(pipeline.by_name["workers"], "batch_bytes") or 0
    return (HAND_OFF_US + HAND_OFF_US_PER_BYTE * size) / pipeline.samples_per_element


def _estimate_gain(pipeline: Pipeline, context: Context, workers: int) -> Gain | None:
    if not context.times:
        return None
    present = number(pipeline.by_name["workers"], "num_workers") or 0
    before = _model_rate(pipeline, context, present)
    times = _model_rate(pipeline, context, workers) / before if math.isfinite(before) else 1.0
    cpus = _cpus(pipeline, context)
    text = f"up to {format_ratio(times)} times the rate with {plural(cpus, 'CPU')}"
    return Gain("expected", text, times, cpus=cpus)


def _cpus(pipeline: Pipeline, context: Context) -> int:
    return context.cpus or number(pipeline.by_name["workers"], "cpus") or 1


def _workers_repeat(pipeline: Pipeline) -> bool | None:
    """Return True if several workers would read the same records; None if that is unknown."""
    stage = pipeline.by_name["getitem"]
    if not flag(stage, "iterable"):
        return False
    splits = stage.attributes.get("split_by_workers")
    return None if splits is None else not splits


def find_restarted_workers(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find worker processes that are restarted for every epoch."""
    stage = pipeline.by_name["workers"]
    workers = number(stage, "num_workers")
    if workers and not flag(stage, "persistent_workers") and context.training:
        of = "the worker process" if workers == 1 else f"{workers} worker processes"
        yield _make_loader_finding(
            pipeline,
            "loader-workers-restarted",
            "info",
            "persistent_workers is off: all worker processes are restarted for every epoch",
            "DataLoader(..., persistent_workers=True)",
            Gain("expected", f"the time to start {of} is saved in every epoch"),
        )


def find_prefetch_factor(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find too few prefetched batches, or more than fit into the memory."""
    stage = pipeline.by_name["workers"]
    workers, factor = number(stage, "num_workers"), number(stage, "prefetch_factor")
    if not workers or factor is None:
        return
    if factor < 2:
        yield _make_loader_finding(
            pipeline,
            "loader-prefetch-small",
            "info",
            f"prefetch_factor is {factor}: a worker starts its next batch only after its last one was taken",
            "DataLoader(..., prefetch_factor=2)",
            Gain("expected", "workers do not wait if some batches take longer than others"),
        )
    size = (number(stage, "batch_bytes") or 0) * workers
    if context.memory_bytes and factor > 2 and size * factor > BATCHES_AHEAD_MEMORY * context.memory_bytes:
        fits = max(2, int(BATCHES_AHEAD_MEMORY * context.memory_bytes / size))
        if fits < factor:
            yield _make_loader_finding(
                pipeline,
                "loader-prefetch-memory",
                "warning",
                f"{workers} workers prefetch {factor} batches each, {size * factor / 2**30:.2g} GiB of the "
                f"{context.memory_bytes / 2**30:.2g} GiB that a task may use",
                f"DataLoader(..., prefetch_factor={fits})",
                non_speed_gain(f"{size * (factor - fits) / 2**30:.2g} GiB of memory are saved"),
                fits,
            )


def find_shared_randomness(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find workers that all draw the same random numbers."""
    stage = pipeline.by_name["getitem"]
    if flag(stage, "same_random"):
        yield make_finding(
            "loader-random-same",
            "warning",
            stage,
            "all workers draw the same random numbers: their records get the same augmentation",
            "worker_init_fn that seeds the generator with torch.utils.data.get_worker_info().seed, or "
            "numbers derived from the index in __getitem__",
            non_speed_gain("every record gets its own random numbers"),
        )


def find_records_read_twice(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find iterable datasets that every worker reads whole, or whose parts overlap."""
    stage = pipeline.by_name["getitem"]
    workers = number(pipeline.by_name["workers"], "num_workers") or 0
    if workers < 2:
        return
    texts = None
    if stage.attributes.get("split_by_workers") is False:
        texts = (
            "loader-records-repeated",
            f"each of the {workers} workers reads all of the records: each is trained on {workers} times per "
            "epoch",
            "islice(records, info.id, None, info.num_workers) with info = "
            "torch.utils.data.get_worker_info(), or files split by it",
        )
    elif flag(stage, "repeated_by_workers"):
        texts = (
            "loader-parts-overlap",
            f"the parts of the {workers} workers overlap: some records come from several workers, others "
            "from none, for example because each worker shuffles the files by itself before it takes its "
            "part",
            "the same order in all workers before they take their parts: shuffled with a common seed, such "
            "as info.seed - info.id of info = torch.utils.data.get_worker_info()",
        )
    if texts is not None:
        yield make_finding(
            texts[0], "error", stage, *texts[1:], non_speed_gain("each record is read once per epoch")
        )


def find_shared_handles(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find files or connections that are opened before the workers start."""
    stage = pipeline.by_name["getitem"]
    held = stage.attributes.get("held")
    workers = number(pipeline.by_name["workers"], "num_workers") or 0
    if not isinstance(held, str) or workers < 2:
        return
    yield make_finding(
        "loader-file-shared",
        "warning",
        stage,
        f"{held} is open when the workers start: the {workers} of them share its position, or the "
        "connection, and may get wrong records or errors",
        "open it in each worker, when a record is first read, and not in __init__",
        non_speed_gain("every worker reads the records that it was asked for"),
    )


# Findings of the same severity are reported in this order.
RULES: tuple[Rule, ...] = (
    find_smaller_batches,
    find_missing_batches,
    find_missing_shard,
    find_unseeded_order,
    find_slow_collate,
    find_single_records,
    find_lists_of_numbers,
    find_worker_count,
    find_restarted_workers,
    find_prefetch_factor,
    find_shared_randomness,
    find_records_read_twice,
    find_shared_handles,
    find_wide_types,
)


def find(pipeline: Pipeline, context: Context) -> tuple[Finding, ...]:
    """Apply all rules to the pipeline of a loader; return the findings, most severe first."""
    return rules.find(pipeline, context, RULES)

"""Rules about a torch DataLoader: its records, batches and worker processes. They import no torch."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from input_rules import rules
from input_rules.findings import Finding, Gain, Severity
from input_rules.pipeline import Pipeline
from input_rules.rules import Rule
from input_rules.rules.base import (
    Context,
    counted_cpus,
    figure,
    finding,
    flag,
    not_speed,
    number,
    overlapped,
    spared,
)
from input_rules.rules.batching import find_wide_types
from input_rules.throughput import StageCost, assign_lanes, cpu_us, queueing_time, time_us

_COLLATE_SHARE = 0.2  # of the time of all stages


def find_smaller_batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The last batch of an epoch may be smaller."""
    stage, order = pipeline.by_name["collate"], pipeline.stages[0]
    if stage.attributes.get("drop_remainder") is not False:
        return
    records, size = number(order, "records"), number(stage, "batch_size")
    if not records or not size:
        severity: Severity = "warning"
        smaller = "the last batch may be smaller, where the data end: nobody knows how many they are"
    elif records % size:
        severity = "error"
        smaller = f"the last batch is smaller, as {records} records are not whole batches of {size}"
    else:
        return
    iterable = flag(pipeline.by_name["getitem"], "iterable")
    each = number(pipeline.by_name["workers"], "num_workers") if iterable else 0
    yield about_loader(
        pipeline,
        "drop-remainder-missing",
        severity,
        f"{smaller}, and the CS system is programmed for one fixed shape",
        "BatchSampler(..., drop_last=True)"
        if flag(stage, "batch_sampler")
        else "DataLoader(..., drop_last=True)",
        not_speed(
            "the program can be compiled; of an epoch at most the last incomplete batch"
            f"{' of each worker process' if (each or 0) > 1 else ''} is left out"
        ),
    )


def find_missing_batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Records one by one."""
    stage = pipeline.by_name["workers"]
    if stage.attributes.get("batched_by_dataset") is False:
        yield about_loader(
            pipeline,
            "loader-batch-missing",
            "warning",
            "batch_size is None and the dataset does not make batches itself: every step would train on one "
            "record",
            "DataLoader(..., batch_size=N) with the batch size of the training",
            not_speed("the program is compiled for batches"),
        )


def find_missing_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Several tasks, and all of them read the same records."""
    if context.sharded is False:
        yield finding(
            "shard-missing",
            "error" if context.workers > 1 else "warning",
            pipeline.stages[0],
            "every task would read the same records: with several of them each record is trained on as often",
            _own_part(pipeline),
            not_speed("all tasks together read each record once an epoch"),
        )


def _own_part(pipeline: Pipeline) -> str:
    """What gives each task a part of its own."""
    if flag(pipeline.by_name["getitem"], "iterable"):
        return "islice(records, task, None, tasks), or files split among the tasks, in the dataset"
    kind = pipeline.stages[0].attributes.get("kind")
    if kind in ("SequentialSampler", "RandomSampler"):
        return "DistributedSampler(dataset, num_replicas=tasks, rank=task)"
    return f"a task's part of {kind}, in an order that all tasks have in common"


def find_unseeded_order(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Another order in every run."""
    stage = pipeline.stages[0]
    if context.seeded or not (context.training and flag(stage, "random")):
        return
    if stage.attributes.get("seeded") is not False:
        return
    identifier, generator = "shuffle-without-seed", "generator=torch.Generator().manual_seed(0)"
    message = (
        "without a generator of its own the order depends on all random numbers drawn before, so a training "
        "that is continued leaves out other batches than those it has seen"
    )
    gain = not_speed("a training that is continued sees the batches of an unbroken one")
    if flag(stage, "made_by_loader"):
        yield about_loader(pipeline, identifier, "info", message, f"DataLoader(..., {generator})", gain)
        return
    kind = stage.attributes.get("kind")
    recommended = f"{kind}(..., {generator})"  # that of the DataLoader has no effect on a sampler
    if not flag(stage, "takes_generator"):
        recommended = f"{kind} with a generator of its own that has a seed"
    yield finding(identifier, "info", stage, message, recommended, gain)


def find_slow_collate(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Much of the time goes into a collate function of the user's."""
    stage = pipeline.by_name["collate"]
    share = context.share((stage,))
    if flag(stage, "users") and pipeline.samples_per_element > 1 and (share or 0.0) > _COLLATE_SHARE:
        yield finding(
            "loader-collate-slow",
            "warning",
            stage,
            f"the collate function takes {100 * (share or 0.0):.0f} % of the time of the input",
            "records that torch.stack can put together as they are, or a dataset that makes a whole batch at "
            "once (__getitems__)",
            spared(pipeline, context, (stage,)),
        )


_MANY_NUMBERS = 8
_POSITION = re.compile(r"^(.+)\[\d+\]$")


def find_lists_of_numbers(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Records with lists of numbers, of which torch's collate function makes a tensor for each position."""
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
            yield about_loader(
                pipeline,
                "loader-lists",
                "warning",
                f"{name} is a list of {count} tensors with {size} numbers ({dtype}) each, one for every "
                "position: so torch puts lists of numbers together",
                "arrays or tensors in the records; of a dataset of Hugging Face with_format('torch')",
                not_speed(f"one tensor of {size} times {count} numbers, which a model takes as it is"),
            )


WORKERS_PER_CPU = 4
"""No more than that are recommended to one who has fewer: each has the dataset, its open files and batches
made ahead in memory."""

BATCHES_AHEAD_MEMORY = 0.1
"""Part of the memory that batches made ahead may take without a word."""

HAND_OVER_US, HAND_OVER_US_PER_BYTE = 150.0, 2.5e-4
"""What the main process computes to get a batch from a worker, where it was not measured: so much for the
queues, and a copy at 4 GB/s. Orders of magnitude of a 2020s server."""

_WORTH_IT = 1.15  # times the rate
_HAND_OVERS = 10
_ENOUGH = 0.95  # of the best rate: further workers would cost memory for nothing


def about_loader(
    pipeline: Pipeline,
    identifier: str,
    severity: Severity,
    message: str,
    recommended: str,
    gain: Gain | None = None,
    value: int | None = None,
) -> Finding:
    """A finding about an argument of DataLoader; its line is that of the call."""
    source = pipeline.by_name["workers"].source
    return Finding(identifier, severity, "DataLoader", source, message, recommended, gain, value)


def find_worker_count(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """No worker processes, too few of them, or too many."""
    stage = pipeline.by_name["workers"]
    present, cpus = number(stage, "num_workers") or 0, _cpus(pipeline, context)
    wanted = wanted_workers(pipeline, context)
    if not present:
        # One worker never repeats a record.
        yield from _missing(pipeline, context, wanted if _repeats(pipeline) is False else 1)
    elif present < wanted and _repeats(pipeline) is not True:
        gain = _gain(pipeline, context, wanted)
        if gain is not None and gain.times is not None and gain.times >= _WORTH_IT:
            yield about_loader(
                pipeline,
                "loader-workers-few",
                "warning",
                f"num_workers is {present}: with {counted_cpus(cpus)} more of them make batches faster",
                f"DataLoader(..., num_workers={wanted})",
                gain,
                wanted,
            )
    elif present > cpus and present >= 2 * wanted:
        yield about_loader(
            pipeline,
            "loader-workers-many",
            "warning",
            f"num_workers is {present}: by the times of the stages {wanted} would do with "
            f"{counted_cpus(cpus)}, and each has the dataset and its batches in memory",
            f"DataLoader(..., num_workers={wanted})",
            not_speed(
                f"the memory of {_processes(present - wanted)}, and the time to start each of them, is spared"
            ),
            wanted,
        )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _missing(pipeline: Pipeline, context: Context, wanted: int) -> Iterator[Finding]:
    gain = _gain(pipeline, context, wanted)
    if gain is None or (gain.times or 0.0) < _WORTH_IT:
        if context.times and not _worth_a_hand_over(pipeline, context):
            return
        gain = overlapped()
    loader = "num_workers is 0"
    recommended = f"DataLoader(..., num_workers={wanted}, persistent_workers=True)"
    if iterated := pipeline.by_name["workers"].attributes.get("iterated"):
        message = (
            f"the input is of type {iterated}: the next batch is made only when the last one has been sent"
        )
        recommended = "a torch.utils.data.DataLoader, which makes batches in worker processes (num_workers=1)"
    message = f"{loader}: the next batch is made only when the last one has been sent"
    yield about_loader(pipeline, "loader-workers-missing", "warning", message, recommended, gain, wanted)


def _worth_a_hand_over(pipeline: Pipeline, context: Context) -> bool:
    """Whether to make a batch takes so long that handing it over from a worker costs little.

    A worker takes all off the main process but the sampler, which that asks itself.
    """
    times = (time for time in context.times.values() if time.stage not in ("sampler", "workers"))
    return sum(time.self_time_us for time in times) > _HAND_OVERS * _hand_over_us(pipeline, 0.0, 1)


def wanted_workers(pipeline: Pipeline, context: Context) -> int:
    """The fewest worker processes that are as good as more of them, or as those that there are.

    As many as CPUs where no time is known.
    """
    cpus = _cpus(pipeline, context)
    if not context.times:
        return cpus
    most = max(WORKERS_PER_CPU * cpus, number(pipeline.by_name["workers"], "num_workers") or 0)
    rates = {n: _rate(pipeline, context, n) for n in range(1, most + 1)}
    best = max(rates.values())
    return next(n for n, rate in rates.items() if rate >= _ENOUGH * best)


def _rate(pipeline: Pipeline, context: Context, workers: int) -> float:
    """Samples per microsecond with so many workers, as the times of the stages promise.

    While one worker waits others want to compute, so they meet at the CPUs as `rate_model` says.
    """
    stage = pipeline.by_name["workers"]
    changed = replace(stage, attributes={**stage.attributes, "num_workers": workers})
    stages = tuple(changed if one is stage else one for one in pipeline.stages)
    lane_of = assign_lanes(replace(pipeline, stages=stages))
    costs = []
    for one in stages:
        time = context.times.get(one.name)
        cpu, wait = (time.cpu_us, time.wait_us) if time else (0.0, 0.0)
        if one is changed:
            cpu, wait = _hand_over_us(pipeline, cpu, workers), 0.0
        costs.append(StageCost(one.name, one.op, one.position, cpu + wait, cpu, wait, lane=lane_of[one.name]))
    cpus = _cpus(pipeline, context)
    time_of_sample = time_us(costs, cpus)
    if workers:
        of_worker = sum(cost.self_time_us_per_sample or 0.0 for cost in costs if cost.lane.threads > 1)
        computes = min(cpu_us(costs), of_worker)
        time_of_sample = max(time_of_sample, queueing_time(computes, of_worker - computes, workers, cpus))
    return 1 / time_of_sample if time_of_sample else math.inf


def _hand_over_us(pipeline: Pipeline, measured: float, workers: int) -> float:
    if measured or not workers:
        return measured
    size = number(pipeline.by_name["workers"], "batch_bytes") or 0
    return (HAND_OVER_US + HAND_OVER_US_PER_BYTE * size) / pipeline.samples_per_element


def _gain(pipeline: Pipeline, context: Context, workers: int) -> Gain | None:
    if not context.times:
        return None
    present = number(pipeline.by_name["workers"], "num_workers") or 0
    before = _rate(pipeline, context, present)
    times = _rate(pipeline, context, workers) / before if math.isfinite(before) else 1.0
    cpus = _cpus(pipeline, context)
    text = f"up to {figure(times)} times the rate with {counted_cpus(cpus)}"
    return Gain("expected", text, times, cpus=cpus)


def _cpus(pipeline: Pipeline, context: Context) -> int:
    return context.cpus or number(pipeline.by_name["workers"], "cpus") or 1


def _repeats(pipeline: Pipeline) -> bool | None:
    """Whether several workers would read the same; None where that is not known."""
    stage = pipeline.by_name["getitem"]
    if not flag(stage, "iterable"):
        return False
    splits = stage.attributes.get("split_by_workers")
    return None if splits is None else not splits


def find_restarted_workers(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """All workers are started again for every epoch."""
    stage = pipeline.by_name["workers"]
    workers = number(stage, "num_workers")
    if workers and not flag(stage, "persistent_workers") and context.training:
        of = "the worker process" if workers == 1 else f"{workers} worker processes"
        yield about_loader(
            pipeline,
            "loader-workers-restarted",
            "info",
            "persistent_workers is off: all worker processes are started again for every epoch",
            "DataLoader(..., persistent_workers=True)",
            Gain("expected", f"the time of starting {of} is spared in every epoch"),
        )


def find_prefetch_factor(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Too few batches made ahead, or more than the memory has room for."""
    stage = pipeline.by_name["workers"]
    workers, factor = number(stage, "num_workers"), number(stage, "prefetch_factor")
    if not workers or factor is None:
        return
    if factor < 2:
        yield about_loader(
            pipeline,
            "loader-prefetch-small",
            "info",
            f"prefetch_factor is {factor}: a worker begins its next batch only when its last one was taken",
            "DataLoader(..., prefetch_factor=2)",
            Gain("expected", "workers need not wait where some batches take longer than others"),
        )
    size = (number(stage, "batch_bytes") or 0) * workers
    if context.memory_bytes and factor > 2 and size * factor > BATCHES_AHEAD_MEMORY * context.memory_bytes:
        fits = max(2, int(BATCHES_AHEAD_MEMORY * context.memory_bytes / size))
        if fits < factor:
            yield about_loader(
                pipeline,
                "loader-prefetch-memory",
                "warning",
                f"{workers} workers make {factor} batches each ahead, {size * factor / 2**30:.2g} GiB of the "
                f"{context.memory_bytes / 2**30:.2g} GiB that a task may use",
                f"DataLoader(..., prefetch_factor={fits})",
                not_speed(f"{size * (factor - fits) / 2**30:.2g} GiB of memory are spared"),
                fits,
            )


def find_shared_randomness(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The same random numbers in every worker."""
    stage = pipeline.by_name["getitem"]
    if flag(stage, "same_random"):
        yield finding(
            "loader-random-same",
            "warning",
            stage,
            "all workers draw the same random numbers: their records get the same augmentation",
            "worker_init_fn that seeds the generator with torch.utils.data.get_worker_info().seed, or "
            "numbers made in __getitem__ from the index",
            not_speed("every record gets random numbers of its own"),
        )


def find_records_read_twice(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """An iterable dataset that every worker reads as a whole, or of which workers read parts that overlap."""
    stage = pipeline.by_name["getitem"]
    workers = number(pipeline.by_name["workers"], "num_workers") or 0
    if workers < 2:
        return
    said = None
    if stage.attributes.get("split_by_workers") is False:
        said = (
            "loader-records-repeated",
            f"each of the {workers} workers reads all of the records: each is trained on {workers} times an "
            "epoch",
            "islice(records, info.id, None, info.num_workers) with info = "
            "torch.utils.data.get_worker_info(), or files split by it",
        )
    elif flag(stage, "repeated_by_workers"):
        said = (
            "loader-parts-overlap",
            f"the {workers} workers share out the records, but not each once: some come from several, "
            "others from none, as where each shuffles the files for itself before it takes its part",
            "an order that all workers have in common before it is shared out: shuffled with a seed of its "
            "own, as info.seed - info.id of info = torch.utils.data.get_worker_info()",
        )
    if said is not None:
        yield finding(said[0], "error", stage, *said[1:], not_speed("each record is read once an epoch"))


def find_shared_handles(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A file or connection that was open before the workers began."""
    stage = pipeline.by_name["getitem"]
    held = stage.attributes.get("held")
    workers = number(pipeline.by_name["workers"], "num_workers") or 0
    if not isinstance(held, str) or workers < 2:
        return
    yield finding(
        "loader-file-shared",
        "warning",
        stage,
        f"{held} is open when the workers begin: the {workers} of them share the position in it, or the "
        "connection, and may get wrong records or errors",
        "open it where a record is first read, in each worker, and not in __init__",
        not_speed("every worker reads the records that it is asked for"),
    )


RULES: tuple[Rule, ...] = (
    find_smaller_batches,
    find_missing_batches,
    find_missing_shard,
    find_unseeded_order,
    find_slow_collate,
    find_lists_of_numbers,
    find_worker_count,
    find_restarted_workers,
    find_prefetch_factor,
    find_shared_randomness,
    find_records_read_twice,
    find_shared_handles,
    find_wide_types,
)
"""Findings of one severity are reported in this order."""


def find(pipeline: Pipeline, context: Context) -> tuple[Finding, ...]:
    """Apply all rules to the pipeline of a loader; return the findings, the gravest first."""
    return rules.find(pipeline, context, RULES)

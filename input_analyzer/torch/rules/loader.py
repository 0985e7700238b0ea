"""Records and batches of a torch DataLoader: which come, in which order, how they are put together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from input_analyzer.torch.rules.workers import about_loader
from input_rules.finding import Finding, Severity
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.context import Context, finding, flag, number
from input_rules.rules.expected_gains import not_speed, spared

_COLLATE_SHARE = 0.2  # of the time of all stages


def drop_last(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The last batch of an epoch may be smaller."""
    stage, order = pipeline.by_name["collate"], pipeline.stages[0]
    endless = flag(pipeline.by_name["getitem"], "endless")
    if stage.attributes.get("drop_remainder") is not False or endless:
        return
    severity, smaller = _last_batch(order, number(stage, "batch_size"), context.sharded)
    each = (
        number(pipeline.by_name["workers"], "num_workers")
        if flag(pipeline.by_name["getitem"], "iterable")
        else 0
    )
    if smaller:
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


MOST_TASKS = 16
"""The last batch is looked at for up to so many tasks."""


def _last_batch(order: Stage, size: int | None, sharded: bool | None) -> tuple[Severity, str]:
    """How grave it is that the last batch of an epoch is smaller, and whose it is; "" where none is."""
    records = number(order, "records")
    if not records or not size:
        return "warning", "the last batch may be smaller, where the data end: nobody knows how many they are"
    if records % size:
        return "error", f"the last batch is smaller, as {records} records are not whole batches of {size}"
    uneven = next(((n, own) for n, own in _of_tasks(order, records, sharded) if own % size), None)
    if uneven is None:
        return "info", ""
    tasks, own = uneven
    return "warning", (
        f"the last batch of one of several tasks may be smaller, as of {tasks} tasks one has {own} records, "
        f"which are not whole batches of {size}"
    )


def _of_tasks(order: Stage, records: int, sharded: bool | None) -> Iterator[tuple[int, int]]:
    """Numbers of tasks, with how many records of an epoch one of so many has, as far as that is known."""
    if flag(order, "draws_some"):  # every task draws as many as it is told to
        return
    if sharded is False:  # as they would be shared out
        for tasks in range(2, MOST_TASKS + 1):
            yield from ((tasks, own) for own in dict.fromkeys((-(-records // tasks), records // tasks)))
        return
    two = order.attributes.get("records_by_task")
    yield from ((2, own) for own in (two if isinstance(two, tuple) else ()) if isinstance(own, int))


def batches(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Several tasks, and all of them read the same records."""
    if context.sharded is not False:
        return
    first = pipeline.stages[0]
    iterable = flag(pipeline.by_name["getitem"], "iterable")
    message = (
        "every task would read the same records: with several of them each record is trained on as often"
    )
    gain = "all tasks together read each record once an epoch"
    if not iterable and flag(first, "draws_some"):
        message = (
            "every task would draw from all records, and those whose random numbers begin alike draw the "
            "same ones: with several of them an epoch is as many times as long"
        )
        gain = "every task draws records of its own, and all together as many as one task alone"
    yield finding(
        "shard-missing",
        "error" if context.workers > 1 else "warning",
        first,
        message,
        _own_part(first, iterable),
        not_speed(gain),
    )


_OF_TASK = "generator=torch.Generator().manual_seed(seed + task)"


def _own_part(order: Stage, iterable: bool) -> str:
    """What gives each task a part of its own."""
    if iterable:
        return "islice(records, task, None, tasks), or files split among the tasks, in the dataset"
    kind = str(order.attributes.get("kind"))
    if flag(order, "draws_some"):
        if order.attributes.get("torchs") is False:
            return (
                f"{kind} that draws a task's part, with random numbers that begin with another seed in each"
            )
        return f"{kind}(..., num_samples=a task's part, {_OF_TASK})"
    if kind == "SubsetRandomSampler":  # the others may be kept for an evaluation
        return "DistributedSampler(Subset(dataset, indices), num_replicas=tasks, rank=task)"
    if order.attributes.get("torchs") is False:
        return f"islice(order, task, None, tasks) in {kind}, of an order that all tasks have in common"
    return "DistributedSampler(dataset, num_replicas=tasks, rank=task)"


def uneven(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Records that cannot be split evenly among the tasks."""
    stage = pipeline.stages[0]
    padded, counts = number(stage, "padded"), stage.attributes.get("records_by_task")
    if padded:
        yield finding(
            "records-not-divisible",
            "info",
            stage,
            f"its records do not divide by 2 tasks: {stage.attributes.get('kind')} fills up by reading some "
            "twice an epoch, with more tasks up to one less than there are tasks",
            "DistributedSampler(..., drop_last=True), or a number of records that the tasks divide",
            not_speed("no record is trained on more often than others"),
        )
    elif isinstance(counts, tuple) and len(set(counts)) > 1:
        shown = " and ".join(map(str, counts))
        yield finding(
            "records-not-divisible",
            "info",
            stage,
            f"2 tasks would have {shown} records: the epoch of one of them ends before that of the other",
            "a number of records that the tasks divide, or an endless order of the records",
            not_speed("no record is trained on more often than others"),
        )


def unseeded(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Another order in every run."""
    stage = pipeline.stages[0]
    if not (context.training and flag(stage, "random") and stage.attributes.get("seeded") is False):
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
    if flag(stage, "draws_some"):  # tasks that draw alike would train on the same records
        generator = _OF_TASK
    recommended = f"{kind}(..., {generator})"  # that of the DataLoader has no effect on a sampler
    if not flag(stage, "takes_generator"):
        recommended = f"{kind} with a generator of its own that has a seed"
    yield finding(identifier, "info", stage, message, recommended, gain)


def slow_collate(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Much of the time goes into a collate function of the user's."""
    stage = pipeline.by_name["collate"]
    share = context.share((stage,))
    if flag(stage, "users") and pipeline.samples_per_element > 1 and (share or 0.0) > _COLLATE_SHARE:
        time = context.times[stage.name]
        waits = time.wait_us > time.cpu_us
        yield finding(
            "loader-collate-slow",
            "warning",
            stage,
            f"the collate function takes {100 * (share or 0.0):.0f} % of the time of the input"
            f"{', most of it waiting' if waits else ''}",
            "more workers, which wait side by side, or a collate function that does not wait"
            if waits
            else "records that torch.stack can put together as they are, or a dataset that makes a whole "
            "batch at once (__getitems__)",
            spared(pipeline, context, (stage,)),
        )


_MANY_NUMBERS = 8
_POSITION = re.compile(r"^(.+)\[\d+\]$")


def lists(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


RULES = (drop_last, batches, shard, uneven, unseeded, slow_collate, lists)

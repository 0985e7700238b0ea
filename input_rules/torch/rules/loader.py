"""Records and batches of a torch DataLoader: which come, in which order, how they are put together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from input_rules.findings import Finding, Severity
from input_rules.pipeline import Pipeline
from input_rules.rules.context import Context, finding, flag, number
from input_rules.rules.expected_gains import not_speed, spared
from input_rules.torch.rules.workers import about_loader

_COLLATE_SHARE = 0.2  # of the time of all stages


def drop_last(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def unseeded(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


def slow_collate(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
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


RULES = (drop_last, batches, shard, unseeded, slow_collate, lists)

"""What a torch DataLoader could do better."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import Context, finding, flag, number
from input_analyzer.pipeline import Pipeline


def workers(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """No worker processes."""
    stage = pipeline.by_name["workers"]
    if number(stage, "num_workers") == 0:
        yield finding(
            "loader-workers-missing",
            "warning",
            stage,
            "num_workers is 0: the next batch is made only when the last one has been sent",
            "DataLoader(..., num_workers=N) with N the CPUs of a task",
        )
    elif not flag(stage, "persistent_workers") and context.training:
        yield finding(
            "loader-workers-restarted",
            "info",
            stage,
            "persistent_workers is off: all worker processes are started again for every epoch",
            "DataLoader(..., persistent_workers=True)",
        )


def drop_last(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """The last batch of an epoch may be smaller."""
    stage = pipeline.by_name["collate"]
    records = number(pipeline.stages[0], "records")
    size = number(stage, "batch_size")
    even = records is not None and size is not None and records % size == 0
    if stage.attributes.get("drop_remainder") is False and not even:
        yield finding(
            "drop-remainder-missing",
            "error",
            stage,
            "the last batch may be smaller, and the CS system is programmed for one fixed shape",
            "DataLoader(..., drop_last=True)",
        )


def shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Several tasks, and all of them read the same records."""
    if context.sharded is False:
        yield finding(
            "shard-missing",
            "error" if context.workers > 1 else "warning",
            pipeline.stages[0],
            "every task would read the same records: with several of them each record is trained on as often",
            "DistributedSampler(dataset, num_replicas=tasks, rank=task)",
        )


RULES = (workers, drop_last, shard)

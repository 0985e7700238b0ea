"""Every worker reads a part of its own."""

from __future__ import annotations

from collections.abc import Iterator

from input_analyzer.analysis import Finding
from input_analyzer.findings.context import BATCHES, Context, finding, number
from input_analyzer.findings.gains import not_repeated, not_speed
from input_analyzer.pipeline import Pipeline


def missing(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Several workers, and all of them read the same records in the same order."""
    if any(stage.op == "shard" for stage in pipeline.stages) or context.sharded is not False:
        return
    source = pipeline.stages[0]
    several = context.workers > 1
    message = (
        f"all {context.workers} workers read the same records: each record is trained on {context.workers} "
        "times an epoch"
        if several
        else "every worker would read the same records: with several workers each record is trained on as "
        "often"
    )
    yield finding(
        "shard-missing",
        "error" if several and context.training else "warning",
        source,
        message,
        "shard(num_workers, worker_index) right behind the source, both from TF_CONFIG or input_context",
        not_speed("all workers together read each record once an epoch"),
    )


def late(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A shard of what was shuffled or batched before."""
    for stage in pipeline.stages:
        if stage.op != "shard":
            continue
        before = list(pipeline.before(stage))
        shuffles = [other for other in before if other.op == "shuffle"]
        if shuffles:
            yield finding(
                "shard-after-shuffle",
                "error",
                stage,
                f"it stands behind the shuffle of {shuffles[0].source or 'a library'}: workers shuffle "
                "differently, so some records are read by several of them and others by none",
                "shard() before shuffle()",
                not_speed("all workers together read each record once an epoch"),
            )
        elif any(other.op in BATCHES for other in before):
            yield finding(
                "shard-after-batch",
                "warning",
                stage,
                "it stands behind batch(): every worker reads and batches all records and throws most away",
                "shard() right behind the source",
                not_repeated(pipeline, context, before, max(context.workers, 2)),
            )


def uneven_files(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Files that cannot be split evenly among the workers."""
    counts = context.files_by_worker
    source = next((stage for stage in pipeline.stages if "files" in stage.attributes), None)
    if source is None or context.workers < 2:
        return
    files = sum(counts) if counts else number(source, "files")
    by_file = bool(counts) and len(set(counts)) > 1
    shards = [s for s in pipeline.stages if s.op == "shard" and s.position > source.position]
    reads = [s for s in pipeline.stages if s.attributes.get("reads")]
    if shards and files and (not reads or shards[0].position < reads[0].position):
        by_file = by_file or files % context.workers != 0
    if by_file and files:
        yield finding(
            "files-not-divisible",
            "warning",
            source,
            f"{files} files for {context.workers} workers: some workers have more records than others, which "
            "are then trained on more often",
            f"a number of files that {context.workers} divides, or another number of workers",
            not_speed(_least_and_most(files, context.workers)),
        )


def _least_and_most(files: int, workers: int) -> str:
    """How often records are trained on, by whose they are."""
    least, rest = divmod(files, workers)
    if not rest or not least:
        return "every record is trained on as often as any other"
    more = 100 / least
    return (
        f"no record is trained on {more:.0f} % more often than others, as with {least} and {least + 1} files"
    )


RULES = (missing, late, uneven_files)

"""Rules about sharding: every worker should read its own part of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from input_rules.findings import Finding, Severity
from input_rules.formatting import plural
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import (
    Context,
    count_records,
    describe_call,
    flag,
    is_batched,
    make_finding,
    makes_records,
    non_speed_gain,
    number,
    reads_batches,
    sharding_gain,
    shuffles,
)
from input_rules.rules.batching import WORTHWHILE_SHARE
from input_rules.rules.order import is_unseeded

EACH_ONCE = "all workers together read each record once per epoch"


@dataclass(frozen=True)
class Split:
    """Files that are distributed whole among the workers.

    Attributes:
        files: Number of files.
        op: The operation that has their names.
        source: The user's line of that operation.
    """

    files: int
    op: str
    source: str | None


def find_split(single: Pipeline, of_two: Pipeline, counts: tuple[int, ...]) -> Split | None:
    """Return how files are distributed; None if records are distributed instead, or if it is unknown.

    Args:
        single: The pipeline of the only worker, which has all files.
        of_two: The pipeline of the first of two workers.
        counts: Files that the sources of each of two workers have.
    """
    source, first = _files_source(single), _files_source(of_two)
    files = None if source is None else number(source, "files")
    if source is None or first is None or not files:
        return None
    sliced = len(counts) == 2 and sum(counts) == files and max(counts) < files
    return Split(files, source.op, source.source) if sliced or _shards_files(of_two, first) else None


def find_uneven_split(split: Split, workers: int) -> Finding | None:
    """Return a finding if this number of workers cannot have the same number of files each."""
    files = split.files
    if not files % workers:
        return None
    severity: Severity = (
        "error" if files < workers else "info" if files > _MANY_FILES_PER_WORKER * workers else "warning"
    )
    divisors = [n for n in range(1, files + 1) if not files % n]
    near = [n for n in divisors if n < workers][-1:] + [n for n in divisors if n > workers][:1]
    fewest = files // workers  # files of some workers; others have one more
    multiples = f"{fewest * workers} or {(fewest + 1) * workers}" if fewest else str(workers)
    gain = "every record is trained on as often as any other"
    if fewest:
        gain = (
            f"no record is trained on {100 / fewest:.0f} % more often than others, as with {fewest} and "
            f"{fewest + 1} files"
        )
    return Finding(
        "files-not-divisible",
        severity,
        split.op,
        split.source,
        f"{plural(files, 'file')} for {workers} workers: {_UNEVEN if files > workers else _TOO_FEW}",
        f"{' or '.join(map(str, near))} worker{'' if near == [1] else 's'} (the chief's task not counted), "
        f"or a number of files that {workers} divides: {multiples}",
        non_speed_gain(gain),
    )


# With this many files per worker, one file more or less hardly matters.
_MANY_FILES_PER_WORKER = 100

_UNEVEN = "some workers have fewer records than others, which are trained on more often"
_TOO_FEW = "some workers have no file and nothing to read"


def find_missing_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find workers that all read the same records in the same order."""
    if any(stage.op == "shard" for stage in pipeline.stages) or context.sharded is not False:
        return
    one_record = all(
        stage.op in _KEEPING_ONE_RECORD if stage.inputs else stage.kinds == ("TensorDataset",)
        for stage in pipeline.stages
    )
    if one_record and is_batched(pipeline.last):
        return  # synthetic data that repeat a single record: there is nothing to shard
    # After the last stage that joins datasets or selects records: sharded before it, a worker would select
    # other records, or none. A stage that numbers batches, or carries state from one to the next, may do so
    # per worker.
    selecting = [
        stage
        for stage in pipeline.stages
        if len(stage.inputs) > 1
        or makes_records(stage)
        or stage.op in _SELECTING
        or (stage.op in _SELECTING_RECORDS_BY_POSITION and not reads_batches(pipeline, stage))
    ]
    stage = selecting[-1] if selecting else pipeline.stages[0]
    joins_batches = len(stage.inputs) > 1 and reads_batches(pipeline, stage)
    where = (
        _shard_of_each_input(stage)
        if stage.op == _SAMPLING or joins_batches
        else _describe_shard(pipeline, stage)
    )
    workers = context.workers
    message = "each worker would read the same records: with N workers, each is trained on N times per epoch"
    if workers > 1:
        message = (
            f"all {workers} workers read the same records: each record is trained on {workers} times per "
            "epoch"
        )
    yield make_finding(
        "shard-missing",
        "error" if workers > 1 and context.training else "warning",
        stage,
        message,
        f"{where}, both from TF_CONFIG or input_context",
        non_speed_gain(EACH_ONCE),
    )


# Calls that make no other records of a single one, such as a user's synthetic input.
_KEEPING_ONE_RECORD = frozenset(
    {"repeat", "map", "shuffle", "batch", "take", "cache", "prefetch", "with_options"}
)


def _describe_shard(pipeline: Pipeline, stage: Stage) -> str:
    """Describe the call of shard() after a stage, or its arguments, that gives every worker its own part."""
    if stage.op == _LISTING and is_unseeded(stage):
        # Every worker would shard its results in another order.
        return f"{_LISTING}(..., shuffle=False), {_SHARD} after {describe_call(stage)}, then shuffle()"
    place = f"{'after' if stage.inputs else 'right after the source,'} {describe_call(stage)}"
    if not stage.inputs and is_batched(stage):
        place += " with batch_size=None, followed by batch()"
    if any(map(shuffles, (stage, *pipeline.before(stage)))):
        place += ", with one seed in all workers for the shuffle before it"
    return f"{_SHARD} {place}"


_SELECTING = frozenset({"take", "skip", "take_while"})
_SELECTING_RECORDS_BY_POSITION = frozenset({"scan", "enumerate", "window", "filter"})


def find_late_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find shards of data that were shuffled, batched or computed before."""
    for stage in pipeline.stages:
        if stage.op != "shard":
            continue
        before = list(pipeline.before(stage))
        mixing = next((other for other in before if is_unseeded(other)), None)
        # A common seed is usual for shuffles of file names.
        wasteful = next(
            (
                other
                for other in before
                if shuffles(other)
                and other.op != _LISTING
                and not any(later.attributes.get("reads") for later in pipeline.after(other))
            ),
            None,
        )
        if mixing is not None:
            yield make_finding(
                "shard-after-shuffle",
                "error",
                stage,
                f"it follows the {_describe_shuffle(mixing)}, which has no seed: workers shuffle "
                "differently, so some records are read by several of them and others by none",
                _shard_first(mixing),
                non_speed_gain(EACH_ONCE),
            )
        elif wasteful is not None:
            yield make_finding(
                "shard-after-shuffle",
                "warning",
                stage,
                f"it follows the {_describe_shuffle(wasteful)}: every worker makes and shuffles all records "
                "and discards most of them, and each record is read once only if all workers have the same "
                "seed",
                _shard_first(wasteful),
                sharding_gain(max(context.workers, 2), "what precedes it"),
            )
        elif any(other.op in _SELECTING and reads_batches(pipeline, other) for other in before):
            continue  # earlier, it would select other records
        elif reads_batches(pipeline, stage):
            yield make_finding(
                "shard-after-batch",
                "warning",
                stage,
                "it follows batch(): every worker reads and batches all records and discards most of them",
                "shard() right after the source",
                sharding_gain(max(context.workers, 2), "what precedes it"),
            )
        else:
            yield from _find_shard_after_work(pipeline, context, stage)


def _find_shard_after_work(pipeline: Pipeline, context: Context, shard: Stage) -> Iterator[Finding]:
    """Find a shard that could come before a function, a batch or a choice among datasets."""
    work, stage = None, shard  # the first stage that computes records and that the shard could precede
    while len(stage.inputs) == 1:
        (stage,) = pipeline.inputs_of(stage)
        if stage.op == _SAMPLING:
            work = stage
            break
        computes = stage.op in _BATCHING or (stage.op == "map" and not flag(stage, "free"))
        parts_batches = stage.op == "unbatch" and reads_batches(pipeline, stage)
        if makes_records(stage) or not (computes or parts_batches or stage.op in _PASSING):
            break
        # Elements that are unbatched later can be sharded only before they are batched, a single element
        # never.
        single = any(count_records(pipeline, other) in (0, 1) for other in pipeline.inputs_of(stage))
        if computes and not reads_batches(pipeline, stage) and not single:
            work = stage
    if work is None:
        return
    repeated = [stage for stage in pipeline.before(shard) if stage.position >= work.position]
    share = context.share(tuple(repeated))
    if share is not None and share < WORTHWHILE_SHARE:
        return
    yield make_finding(
        "shard-late",
        "warning",
        shard,
        f"it follows {describe_call(work)}: every worker makes all records up to there and discards most of "
        "them",
        _shard_of_each_input(work) if work.op == _SAMPLING else f"shard() before {describe_call(work)}",
        sharding_gain(max(context.workers, 2), "what precedes it"),
    )


def _shard_of_each_input(choice: Stage) -> str:
    takes = "chooses from" if choice.op in (_SAMPLING, "choose_from_datasets") else "joins"
    return f"{_SHARD} of each dataset that {describe_call(choice)} {takes}"


_SHARD = "shard(num_workers, worker_index)"
_SAMPLING = "sample_from_datasets"
_LISTING = "list_files"
_BATCHING = frozenset({"batch", "padded_batch"})
_PASSING = frozenset({"map", "prefetch", "with_options", "cache"})


def _describe_shuffle(mixing: Stage) -> str:
    by = "" if mixing.op == "shuffle" else f" of {mixing.op}()"
    return f"shuffle{by} in {mixing.source or 'a library'}"


def _shard_first(mixing: Stage) -> str:
    if mixing.op == "shuffle":
        return "shard() before shuffle()"
    return f"{mixing.op}(..., shuffle=False), then shard(), then shuffle()"


def find_uneven_files(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find files that cannot be split evenly among the workers."""
    source = _files_source(pipeline)
    files = None if source is None else number(source, "files")
    if source is None or not files or context.workers < 2 or not _shards_files(pipeline, source):
        return
    found = find_uneven_split(Split(files, source.op, source.source), context.workers)
    if found is not None:
        yield found


def _files_source(pipeline: Pipeline) -> Stage | None:
    return next((stage for stage in pipeline.stages if "files" in stage.attributes), None)


def _shards_files(pipeline: Pipeline, source: Stage) -> bool:
    """Return True if a shard() selects names of files, all of which every worker has, and not records."""
    shards = [s for s in pipeline.stages if s.op == "shard" and s.position > source.position]
    reads = [s for s in pipeline.stages if s.attributes.get("reads")]
    return bool(shards) and (not reads or shards[0].position < reads[0].position)

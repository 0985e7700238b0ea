"""Rules about sharding: every worker should read its own part of the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from input_rules.findings import Finding, Severity
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


def find_split(alone: Pipeline, of_two: Pipeline, counts: tuple[int, ...]) -> Split | None:
    """Return how files are distributed; None if records are distributed instead, or if it is unknown.

    Args:
        alone: The pipeline of the only worker, which has all files.
        of_two: The pipeline of the first of two workers.
        counts: Files that the sources of each of two workers have.
    """
    source, first = _files_source(alone), _files_source(of_two)
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
    counted = "1 file" if files == 1 else f"{files} files"
    return Finding(
        "files-not-divisible",
        severity,
        split.op,
        split.source,
        f"{counted} for {workers} workers: {_UNEVEN if files > workers else _TOO_FEW}",
        f"{_nearest_divisors(files, workers)}, or a number of files that {workers} divides: "
        f"{_nearest_multiples(files, workers)}",
        non_speed_gain(_describe_imbalance(files // workers, files // workers + 1)),
    )


# With this many files per worker, one file more or less hardly matters.
_MANY_FILES_PER_WORKER = 100

_UNEVEN = "some workers have fewer records than others, which are trained on more often"
_TOO_FEW = "some workers have no file and nothing to read"


def _nearest_divisors(files: int, workers: int) -> str:
    """Describe the numbers of workers nearest to the given one that divide the files."""
    divisors = [n for n in range(1, files + 1) if not files % n]
    below = [n for n in divisors if n < workers][-1:]
    near = below + [n for n in divisors if n > workers][:1]
    return f"{' or '.join(map(str, near))} worker{'' if near == [1] else 's'} (the chief's task not counted)"


def _nearest_multiples(files: int, workers: int) -> str:
    """Describe the nearest numbers of files that the workers divide."""
    below = files // workers * workers
    return f"{below} or {below + workers}" if below else str(workers)


def find_missing_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find workers that all read the same records in the same order."""
    if any(stage.op == "shard" for stage in pipeline.stages) or context.sharded is not False:
        return
    if is_batched(pipeline.last) and all(map(_is_one_record, pipeline.stages)):
        return  # a single record, repeated: there is nothing to shard
    selecting = [stage for stage in pipeline.stages if _selects(pipeline, stage)]
    # After the last stage that joins datasets or selects records: sharded before it, a worker would select
    # other records, or none.
    stage = selecting[-1] if selecting else pipeline.stages[0]
    joins_batches = len(stage.inputs) > 1 and reads_batches(pipeline, stage)
    where = (
        _shard_of_each_input(stage)
        if stage.op == _SAMPLING or joins_batches
        else _place_for_shard(pipeline, stage)
    )
    yield make_finding(
        "shard-missing",
        "error" if context.workers > 1 and context.training else "warning",
        stage,
        _same_records(context.workers),
        f"{where}, both from TF_CONFIG or input_context",
        non_speed_gain(EACH_ONCE),
    )


def _is_one_record(stage: Stage) -> bool:
    """Return True if a stage is a single record, or only repeats and changes one, as synthetic data do."""
    return stage.kinds == ("TensorDataset",) if not stage.inputs else stage.op in _KEEPING_ONE_RECORD


# Calls that make no other records of a single one, such as a user's synthetic input.
_KEEPING_ONE_RECORD = frozenset(
    {"repeat", "map", "shuffle", "batch", "take", "cache", "prefetch", "with_options"}
)


def _same_records(workers: int) -> str:
    """Describe the effect of all workers reading the same records."""
    if workers > 1:
        return (
            f"all {workers} workers read the same records: each record is trained on {workers} times per "
            "epoch"
        )
    return "each worker would read the same records: with N workers, each is trained on N times per epoch"


def _place_for_shard(pipeline: Pipeline, stage: Stage) -> str:
    """Describe what to write after a stage, or as its arguments, so that every worker reads its own part."""
    if stage.op == _LISTING and is_unseeded(stage):
        # Every worker would shard its results in another order.
        return f"{_LISTING}(..., shuffle=False), {_SHARD} after {describe_call(stage)}, then shuffle()"
    place = f"{'after' if stage.inputs else 'right after the source,'} {describe_call(stage)}"
    if not stage.inputs and is_batched(stage):
        place += " with batch_size=None, followed by batch()"
    if any(map(shuffles, (stage, *pipeline.before(stage)))):
        place += ", with one seed in all workers for the shuffle before it"
    return f"{_SHARD} {place}"


def _selects(pipeline: Pipeline, stage: Stage) -> bool:
    if len(stage.inputs) > 1 or makes_records(stage):
        return True
    # A stage that numbers batches, or carries state from one to the next, may do so per worker.
    return stage.op in _SELECTING or (
        stage.op in _SELECTING_RECORDS_BY_POSITION and not reads_batches(pipeline, stage)
    )


_SELECTING = frozenset({"take", "skip", "take_while"})
_SELECTING_RECORDS_BY_POSITION = frozenset({"scan", "enumerate", "window", "filter"})


def find_late_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Find shards of data that were shuffled, batched or computed before."""
    for stage in pipeline.stages:
        if stage.op != "shard":
            continue
        before = list(pipeline.before(stage))
        mixing = next((other for other in before if is_unseeded(other)), None)
        wasteful = next((other for other in before if _mixes_records(pipeline, other)), None)
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
    work = _repeated_work(pipeline, shard)
    if work is None:
        return
    again = [stage for stage in pipeline.before(shard) if stage.position >= work.position]
    share = context.share(tuple(again))
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


def _repeated_work(pipeline: Pipeline, shard: Stage) -> Stage | None:
    """Return the first stage that computes records and that the shard could precede."""
    found, stage = None, shard
    while len(stage.inputs) == 1:
        (stage,) = pipeline.inputs_of(stage)
        if stage.op == _SAMPLING:
            return stage
        computes = stage.op in _BATCHING or (stage.op == "map" and not flag(stage, "free"))
        parts_batches = stage.op == "unbatch" and reads_batches(pipeline, stage)
        if makes_records(stage) or not (computes or parts_batches or stage.op in _PASSING):
            break
        # Elements that are unbatched later can be sharded only before they are batched, a single element
        # never.
        lone = any(count_records(pipeline, other) in (0, 1) for other in pipeline.inputs_of(stage))
        if computes and not reads_batches(pipeline, stage) and not lone:
            found = stage
    return found


def _shard_of_each_input(choice: Stage) -> str:
    takes = "chooses from" if choice.op in (_SAMPLING, "choose_from_datasets") else "joins"
    return f"{_SHARD} of each dataset that {describe_call(choice)} {takes}"


_SHARD = "shard(num_workers, worker_index)"
_SAMPLING = "sample_from_datasets"
_LISTING = "list_files"
_BATCHING = frozenset({"batch", "padded_batch"})
_PASSING = frozenset({"map", "prefetch", "with_options", "cache"})


def _mixes_records(pipeline: Pipeline, stage: Stage) -> bool:
    """Return True if a stage shuffles records; a common seed is usual for names of files."""
    of_names = stage.op == _LISTING or any(later.attributes.get("reads") for later in pipeline.after(stage))
    return shuffles(stage) and not of_names


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


def _describe_imbalance(fewest: int, most: int) -> str:
    """Describe how much more often some records are trained on than others."""
    if not fewest:
        return "every record is trained on as often as any other"
    more = 100 * (most / fewest - 1)
    return f"no record is trained on {more:.0f} % more often than others, as with {fewest} and {most} files"

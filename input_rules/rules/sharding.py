"""Every worker reads a part of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from input_rules.findings import Finding, Severity
from input_rules.pipeline import Pipeline, Stage
from input_rules.rules.base import (
    Context,
    called,
    finding,
    flag,
    is_batched,
    makes_records,
    not_repeated,
    not_speed,
    number,
    reads_batches,
    records_at,
    shuffles,
)
from input_rules.rules.batching import MUCH
from input_rules.rules.order import is_unseeded

EACH_ONCE = "all workers together read each record once an epoch"


@dataclass(frozen=True)
class Split:
    """Files that workers share out whole among them.

    Attributes:
        files: How many there are.
        op: The operation that has their names.
        source: The user's line of that.
    """

    files: int
    op: str
    source: str | None


def split_of(alone: Pipeline, of_two: Pipeline, counts: tuple[int, ...]) -> Split | None:
    """How the files are shared out; None where records are, or where that is not known.

    Args:
        alone: The pipeline of an only worker, which has all files.
        of_two: That of the first of two workers.
        counts: Files that the sources of both of two workers have.
    """
    source, first = _files_source(alone), _files_source(of_two)
    files = None if source is None else number(source, "files")
    if source is None or first is None or not files:
        return None
    sliced = len(counts) == 2 and sum(counts) == files and max(counts) < files
    return Split(files, source.op, source.source) if sliced or _shards_files(of_two, first) else None


def uneven_split(split: Split, workers: int) -> Finding | None:
    """The finding about a number of workers among whom the files cannot be shared out evenly."""
    files = split.files
    if not files % workers:
        return None
    severity: Severity = "error" if files < workers else "info" if files > _MANY * workers else "warning"
    counted = "1 file" if files == 1 else f"{files} files"
    return Finding(
        "files-not-divisible",
        severity,
        split.op,
        split.source,
        f"{counted} for {workers} workers: {_UNEVEN if files > workers else _TOO_FEW}",
        f"{_dividing(files, workers)}, or a number of files that {workers} divides: "
        f"{_multiples(files, workers)}",
        not_speed(_least_and_most(files // workers, files // workers + 1)),
    )


_MANY = 100
"""From so many files of a worker on one more changes little."""

_UNEVEN = "some workers have fewer records than others, and train on these more often"
_TOO_FEW = "some workers have none and nothing to read"


def _dividing(files: int, workers: int) -> str:
    """The numbers of workers next to the one given that divide the files."""
    divisors = [n for n in range(1, files + 1) if not files % n]
    below = [n for n in divisors if n < workers][-1:]
    near = below + [n for n in divisors if n > workers][:1]
    return f"{' or '.join(map(str, near))} worker{'' if near == [1] else 's'} (the chief's task not counted)"


def _multiples(files: int, workers: int) -> str:
    """The next numbers of files that a number of workers divides."""
    below = files // workers * workers
    return f"{below} or {below + workers}" if below else str(workers)


def find_missing_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Several workers, and all of them read the same records in the same order."""
    if any(stage.op == "shard" for stage in pipeline.stages) or context.sharded is not False:
        return
    if is_batched(pipeline.last) and all(map(_is_one_record, pipeline.stages)):
        return  # one record, again and again: there is nothing to share out
    choosing = [stage for stage in pipeline.stages if _chooses(pipeline, stage)]
    # Behind what joins datasets, or chooses records by their order or by what they are: a part of a worker
    # would have others, or none.
    stage = choosing[-1] if choosing else pipeline.stages[0]
    joins_batches = len(stage.inputs) > 1 and reads_batches(pipeline, stage)
    where = _each_of(stage) if stage.op == _SAMPLE or joins_batches else _where(pipeline, stage)
    yield finding(
        "shard-missing",
        "error" if context.workers > 1 and context.training else "warning",
        stage,
        same_records(context.workers),
        f"{where}, both from TF_CONFIG or input_context",
        not_speed(EACH_ONCE),
    )


def _is_one_record(stage: Stage) -> bool:
    """Whether a stage is a record, or only repeats and changes it, as for data that are made up."""
    return stage.kinds == ("TensorDataset",) if not stage.inputs else stage.op in _OF_ONE


_OF_ONE = frozenset({"repeat", "map", "shuffle", "batch", "take", "cache", "prefetch", "with_options"})
"""Calls that make of a single record, of which a user writes a synthetic input, no others."""


def same_records(workers: int) -> str:
    """What is wrong where all of so many workers read the same."""
    if workers > 1:
        return (
            f"all {workers} workers read the same records: each record is trained on {workers} times an epoch"
        )
    return "every worker would read the same records: with several workers each record is trained on as often"


def _where(pipeline: Pipeline, stage: Stage) -> str:
    """What to write behind a stage, or as its arguments, so that every worker reads a part of its own."""
    if stage.op == _LISTING and is_unseeded(stage):
        # A shard of its results would be one of another order in every worker.
        return f"{_LISTING}(..., shuffle=False), {_SHARD} behind {called(stage)}, then shuffle()"
    place = f"{'behind' if stage.inputs else 'right behind the source,'} {called(stage)}"
    if not stage.inputs and is_batched(stage):
        place += " with batch_size=None, and batch() behind that"
    if any(map(shuffles, (stage, *pipeline.before(stage)))):
        place += ", with one seed in all workers for the shuffle before it"
    return f"{_SHARD} {place}"


def _chooses(pipeline: Pipeline, stage: Stage) -> bool:
    if len(stage.inputs) > 1 or makes_records(stage):
        return True
    # What numbers batches, or goes on from one to the next, does so with those of a worker.
    return stage.op in _CHOOSING or (stage.op in _BY_ORDER and not reads_batches(pipeline, stage))


_CHOOSING = frozenset({"take", "skip", "take_while"})
_BY_ORDER = frozenset({"scan", "enumerate", "window", "filter"})


def find_late_shard(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """A shard of what was shuffled or batched before."""
    for stage in pipeline.stages:
        if stage.op != "shard":
            continue
        before = list(pipeline.before(stage))
        mixing = next((other for other in before if is_unseeded(other)), None)
        wasteful = next((other for other in before if _mixes_records(pipeline, other)), None)
        if mixing is not None:
            yield finding(
                "shard-after-shuffle",
                "error",
                stage,
                f"it stands behind the {_named(mixing)}, which has no seed: workers shuffle differently, so "
                "some records are read by several of them and others by none",
                _shard_first(mixing),
                not_speed(EACH_ONCE),
            )
        elif wasteful is not None:
            yield finding(
                "shard-after-shuffle",
                "warning",
                stage,
                f"it stands behind the {_named(wasteful)}: every worker makes and shuffles all records and "
                "throws most away, and only while all have the same seed each record is read once",
                _shard_first(wasteful),
                not_repeated(max(context.workers, 2), "what stands before it"),
            )
        elif any(other.op in _CHOOSING and reads_batches(pipeline, other) for other in before):
            continue  # of other batches that would take others
        elif reads_batches(pipeline, stage):
            yield finding(
                "shard-after-batch",
                "warning",
                stage,
                "it stands behind batch(): every worker reads and batches all records and throws most away",
                "shard() right behind the source",
                not_repeated(max(context.workers, 2), "what stands before it"),
            )
        else:
            yield from _behind_work(pipeline, context, stage)


def _behind_work(pipeline: Pipeline, context: Context, shard: Stage) -> Iterator[Finding]:
    """What stands before a shard and could stand behind it: a function, a batch, a choice among datasets."""
    work = _repeated_work(pipeline, shard)
    if work is None:
        return
    again = [stage for stage in pipeline.before(shard) if stage.position >= work.position]
    share = context.share(tuple(again))
    if share is not None and share < MUCH:
        return
    yield finding(
        "shard-late",
        "warning",
        shard,
        f"it stands behind {called(work)}: every worker makes all records up to there and throws most away",
        _each_of(work) if work.op == _SAMPLE else f"shard() before {called(work)}",
        not_repeated(max(context.workers, 2), "what stands before it"),
    )


def _repeated_work(pipeline: Pipeline, shard: Stage) -> Stage | None:
    """The first stage that computes records, and between which and a shard none chooses among them."""
    found, stage = None, shard
    while len(stage.inputs) == 1:
        (stage,) = pipeline.inputs_of(stage)
        if stage.op == _SAMPLE:
            return stage
        computes = stage.op in _MAKING or (stage.op == "map" and not flag(stage, "free"))
        parts_batches = stage.op == "unbatch" and reads_batches(pipeline, stage)
        if makes_records(stage) or not (computes or parts_batches or stage.op in _PASSING):
            break
        # What is unbatched later can be shared out only before its batches are made, a lone element never.
        lone = any(records_at(pipeline, other) in (0, 1) for other in pipeline.inputs_of(stage))
        if computes and not reads_batches(pipeline, stage) and not lone:
            found = stage
    return found


def _each_of(choice: Stage) -> str:
    takes = "chooses from" if choice.op in (_SAMPLE, "choose_from_datasets") else "joins"
    return f"{_SHARD} of each dataset that {called(choice)} {takes}"


_SHARD = "shard(num_workers, worker_index)"
_SAMPLE = "sample_from_datasets"
_LISTING = "list_files"
_MAKING = frozenset({"batch", "padded_batch"})
_PASSING = frozenset({"map", "prefetch", "with_options", "cache"})


def _mixes_records(pipeline: Pipeline, stage: Stage) -> bool:
    """Whether a stage shuffles records; for names of files a seed that all have in common is usual."""
    of_names = stage.op == _LISTING or any(later.attributes.get("reads") for later in pipeline.after(stage))
    return shuffles(stage) and not of_names


def _named(mixing: Stage) -> str:
    by = "" if mixing.op == "shuffle" else f" of {mixing.op}()"
    return f"shuffle{by} in {mixing.source or 'a library'}"


def _shard_first(mixing: Stage) -> str:
    if mixing.op == "shuffle":
        return "shard() before shuffle()"
    return f"{mixing.op}(..., shuffle=False), then shard(), then shuffle()"


def find_uneven_files(pipeline: Pipeline, context: Context) -> Iterator[Finding]:
    """Files that cannot be split evenly among the workers."""
    source = _files_source(pipeline)
    files = None if source is None else number(source, "files")
    if source is None or not files or context.workers < 2 or not _shards_files(pipeline, source):
        return
    found = uneven_split(Split(files, source.op, source.source), context.workers)
    if found is not None:
        yield found


def _files_source(pipeline: Pipeline) -> Stage | None:
    return next((stage for stage in pipeline.stages if "files" in stage.attributes), None)


def _shards_files(pipeline: Pipeline, source: Stage) -> bool:
    """Whether a shard() has names of files before it, not their records; all workers have all names then."""
    shards = [s for s in pipeline.stages if s.op == "shard" and s.position > source.position]
    reads = [s for s in pipeline.stages if s.attributes.get("reads")]
    return bool(shards) and (not reads or shards[0].position < reads[0].position)


def _least_and_most(fewest: int, most: int) -> str:
    """How often records are trained on, by whose they are."""
    if not fewest:
        return "every record is trained on as often as any other"
    more = 100 * (most / fewest - 1)
    return f"no record is trained on {more:.0f} % more often than others, as with {fewest} and {most} files"

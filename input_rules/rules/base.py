"""What every rule is made of: its context, questions about a pipeline, findings, and expected gains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from input_rules.findings import Finding, Gain, Severity
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage, StageTime, Value
from input_rules.throughput import LARGEST_RATIO, StageCost, assign_lanes, time_us

READERS = frozenset({"TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset"})
AUTOTUNE_NAME = "CS_AUTOTUNE"


@dataclass(frozen=True)
class Context:
    """The run that an input is for.

    Attributes:
        training: Whether it is read for training; evaluation and prediction end with their data.
        workers: Tasks that read it, each with an input function of its own.
        sharded: Whether the inputs of two workers differ; None where that was not tried, or nobody can tell.
        shared_caches: Names of files in which the first worker and the last one keep a cache both.
        memory_bytes: What the input of a worker may use; None where that is not known.
        times: Measured time of the stages by name; empty where they were not measured.
        cpus: CPUs of a worker, for what is expected of more calls at once; None where that is not known.
        seeded: The random numbers that it draws begin again in every run, the same ones.
    """

    training: bool = True
    workers: int = 1
    sharded: bool | None = None
    shared_caches: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    times: Mapping[str, StageTime] = field(default_factory=dict)
    cpus: int | None = None
    seeded: bool = False

    def share(self, stages: tuple[Stage, ...]) -> float | None:
        """Part of the measured time of all stages that some take, 0 to 1; None without measurements."""
        total = sum(time.self_time_us for time in self.times.values())
        if not total:
            return None
        return sum(self.times[s.name].self_time_us for s in stages if s.name in self.times) / total


def finding(
    identifier: str,
    severity: Severity,
    stage: Stage,
    message: str,
    recommended: str,
    gain: Gain | None = None,
    value: int | None = None,
    by_hand: str | None = None,
) -> Finding:
    """A finding about a stage."""
    return Finding(identifier, severity, stage.op, stage.source, message, recommended, gain, value, by_hand)


def called(stage: Stage) -> str:
    """How a user knows a stage: `take() in data.py:12`."""
    return f"{stage.op}() in {stage.source}" if stage.source else f"{stage.op}()"


def choosing_behind(pipeline: Pipeline, stage: Stage) -> str | None:
    """What stands behind a stage and takes, numbers or pairs elements by their order; None: nothing."""
    choosing = next((later for later in pipeline.after(stage) if later.op in _BY_ORDER), None)
    return None if choosing is None else f"{called(choosing)} behind it would take other records"


_BY_ORDER = frozenset(
    {
        *("take", "skip", "take_while", "shard", "enumerate", "zip", "window", "scan", "group_by_window"),
        "choose_from_datasets",
    }
)


def number(stage: Stage, name: str) -> int | None:
    """A whole number among the attributes of a stage."""
    value = stage.attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(stage: Stage, name: str) -> bool:
    """Whether an attribute of a stage is there and true."""
    return stage.attributes.get(name) is True


def is_batched(stage: Stage) -> bool:
    """Whether elements of a stage are batches of records, made there or before; unbatching undoes it."""
    return flag(stage, "batched")


def reads_batches(pipeline: Pipeline, stage: Stage) -> bool:
    """Whether a stage is given batches."""
    return any(map(is_batched, pipeline.inputs_of(stage)))


def makes_records(stage: Stage) -> bool:
    """Whether a stage makes a record of several elements that follow each other."""
    return flag(stage, "makes_record")


def mixes_each_epoch(stage: Stage) -> bool:
    """Whether a `shuffle` has another order in every epoch."""
    return stage.op == "shuffle" and stage.attributes.get("reshuffle_each_iteration") is not False


def shuffles(stage: Stage) -> bool:
    """Whether a stage mixes its elements; a call of a library may do so within."""
    return stage.op == "shuffle" or any(kind.startswith("ShuffleDataset") for kind in stage.kinds)


def records_at(pipeline: Pipeline, stage: Stage) -> int | None:
    """Elements of an epoch at a stage, where they follow from the size of the source and batches alone."""
    behind: list[Stage] = []
    while stage.inputs:
        if len(stage.inputs) > 1 or stage.op not in _SIZES_KEPT | _OF_RECORDS | {"shard", "take"}:
            return None
        behind.append(stage)
        stage = pipeline.by_name[stage.inputs[0]]
    records = number(stage, "records")
    for later in reversed(behind):
        records = None if records is None else _records_of(later, records)
    return records


def _records_of(stage: Stage, before: int) -> int | None:
    """Elements that a stage makes of so many."""
    if stage.op in _OF_RECORDS:
        size = number(stage, "batch_size")
        return None if not size else before // size if flag(stage, "drop_remainder") else -(-before // size)
    if stage.op == "shard":
        shards = number(stage, "num_shards")
        return None if not shards else -(-before // shards)
    if stage.op == "take":
        count = number(stage, "count")
        return before if count is None or count < 0 else min(before, count)
    return before


_SIZES_KEPT = frozenset({"map", "shuffle", "cache", "prefetch", "enumerate", "with_options", "repeat"})
_OF_RECORDS = frozenset({"batch", "padded_batch", "ragged_batch", "map_and_batch"})
"""Batches of as many elements as their `batch_size` says."""


_NO_GAIN = 1.005
_ABOUT = "about"

FILES_AT_ONCE = 4
"""Files that a reader waits for at once where TensorFlow would choose fewer by itself."""
_CPUS_FOR_A_FILE = 3
"""CPUs for each file of an interleave with CS_AUTOTUNE: its own thread and two that prefetch from it
(tensorflow/core/kernels/data/parallel_interleave_dataset_op.cc)."""


def files_at_once(cpus: int | None) -> int:
    """What to write as `cycle_length` or `num_parallel_reads`: a number, or AUTOTUNE where that is more."""
    return AUTOTUNE if cpus is not None and cpus > _CPUS_FOR_A_FILE * FILES_AT_ONCE else FILES_AT_ONCE


def argument(value: int) -> str:
    """A number as it is written in a call."""
    return AUTOTUNE_NAME if value == AUTOTUNE else str(value)


def most_cpus_for(files: int) -> int:
    """The CPUs with which CS_AUTOTUNE reads no more files at once than so many."""
    return _CPUS_FOR_A_FILE * files


def not_speed(text: str) -> Gain:
    """Something other than speed is won."""
    return Gain("not-speed", text)


def side_by_side(pipeline: Pipeline, context: Context, stage: Stage, files: int | None = None) -> Gain | None:
    """Calls or files of a stage are worked on at once, by as many threads as suit the CPUs.

    Args:
        pipeline: All stages.
        context: Their times, and the CPUs.
        stage: One of them.
        files: That it is to read at once, or AUTOTUNE; by default what suits the stage.
    """
    if files is None and stage.op != "map":
        files = _files_of(stage, context.cpus)
    parallel: dict[str, Value] = {"kinds": ("ParallelInterleaveDataset",), "num_parallel_calls": AUTOTUNE}
    if files is not None:
        parallel["cycle_length"] = files
    changed = replace(stage, attributes={**stage.attributes, **parallel})
    stages = tuple(changed if one is stage else one for one in pipeline.stages)
    changed_pipeline = replace(pipeline, stages=stages)
    if not context.times or context.cpus is None:
        return _at_once(pipeline, changed_pipeline, stage, files)
    gain = _expected(pipeline, context, [stage], changed_pipeline, context.times)
    return gain and replace(gain, at_most=True)


def _files_of(stage: Stage, cpus: int | None) -> int:
    """Files that a stage reads at once with parallel calls, or AUTOTUNE."""
    written = stage.attributes.get("cycle_length")
    calls = stage.attributes.get("num_parallel_calls")
    if stage.op == "interleave" and calls is None and isinstance(written, int) and written > 0:
        return written
    return files_at_once(cpus)


def _at_once(pipeline: Pipeline, changed_pipeline: Pipeline, stage: Stage, files: int | None) -> Gain:
    """What more threads give at most, whatever the stage takes."""
    before, after = assign_lanes(pipeline)[stage.name], assign_lanes(changed_pipeline)[stage.name]
    if (before.threads, before.threads_per_cpu) == (after.threads, after.threads_per_cpu):
        return Gain("expected", "nothing, as TensorFlow does so by itself here", 1.0, at_most=True)
    read = "files" if stage.attributes.get("reads") else "what it reads"
    if files is not None and files > 0:
        text = f"at most {files} times the rate, where the wait for {read} takes all of the time"
        return Gain("expected", text, float(files), at_most=True)
    what = "it" if files is None else f"the wait for {read}"
    text = f"at most as many times the rate as a worker has CPUs, where {what} takes all of the time"
    return Gain("expected", text)


def spared(pipeline: Pipeline, context: Context, stages: Collection[Stage], when: str = "") -> Gain | None:
    """Stages cost nothing any more; `when` says from when on."""
    names = {stage.name for stage in stages}
    left = {name: time for name, time in context.times.items() if name not in names}
    if not context.times or context.cpus is None:
        return Gain("expected", f"the time that this takes is spared{when}")
    gain = _expected(pipeline, context, stages, pipeline, left, _ABOUT)
    if gain is None:
        return None
    why = ", as almost nothing else takes time" if gain.times is None else ""
    return replace(gain, text=f"{gain.text}{when}{why}, beside what handing elements over takes")


def not_repeated(workers: int, what: str) -> Gain:
    """Stages whose work all workers but one throw away, where one would do an n-th of it."""
    text = f"up to {workers} times the rate in a job of {workers} workers, where {what} takes all of the time"
    return Gain("expected", text, float(workers), at_most=True)


def overlapped() -> Gain:
    """Batches are made while the training works on others, not before: (a + b) / max(a, b) is 2 at most."""
    text = "up to twice the rate, where a step of the training takes as long as its input"
    return Gain("expected", text, 2.0, at_most=True)


def figure(times: float) -> str:
    """A ratio for a reader."""
    return f"{times:.2f}" if times < 10 else f"{times:.0f}"


def counted_cpus(cpus: int) -> str:
    """1 CPU, 2 CPUs."""
    return "1 CPU" if cpus == 1 else f"{cpus} CPUs"


def _expected(
    pipeline: Pipeline,
    context: Context,
    stages: Collection[Stage],
    changed: Pipeline,
    changed_times: Mapping[str, StageTime],
    bound: str = "up to",
) -> Gain | None:
    """None without times, or where the CPUs are not known."""
    if context.cpus is None or not context.times:
        return None
    # What stands before a cache is done in the first epoch, and only there.
    first = any(context.times[stage.name].once for stage in stages if stage.name in context.times)
    before = time_us(_costs(pipeline, context.times, first), context.cpus)
    after = time_us(_costs(changed, changed_times, first), context.cpus)
    if not before:
        return None
    times = None if after <= 0 else before / after
    if times is None or (bound == _ABOUT and times >= LARGEST_RATIO):
        times, text = None, f"more than {LARGEST_RATIO:.0f} times the rate"
    else:
        text = f"{bound} {figure(times)} times the rate" if times >= _NO_GAIN else "nothing"
    epoch = " in the first epoch" if first else ""
    text = f"{text} with {counted_cpus(context.cpus)}{epoch}"
    return Gain("expected", text, times, cpus=context.cpus)


def _costs(pipeline: Pipeline, times: Mapping[str, StageTime], first: bool) -> list[StageCost]:
    lane_of = assign_lanes(pipeline)
    return [
        StageCost.of_stage(stage, lane_of[stage.name], time, once=time.once and not first)
        for stage in pipeline.stages
        if (time := times.get(stage.name)) is not None
    ]

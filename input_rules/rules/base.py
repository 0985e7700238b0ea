"""Foundations of all rules: the context, questions about a pipeline, findings, and expected gains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from input_rules.findings import Finding, Gain, Severity
from input_rules.formatting import plural
from input_rules.pipeline import AUTOTUNE, Pipeline, Stage, StageTime, Value
from input_rules.throughput import LARGEST_RATIO, StageCost, assign_lanes, time_us

READERS = frozenset({"TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset"})
AUTOTUNE_NAME = "CS_AUTOTUNE"


@dataclass(frozen=True)
class Context:
    """The run that an input is for.

    Attributes:
        training: The input is read for training; evaluation and prediction end with their data.
        workers: Tasks that read it, each with its own input function.
        sharded: The inputs of two workers differ; None if that was not tried or cannot be determined.
        shared_caches: Names of cache files that both the first and the last worker would write.
        memory_bytes: Memory for the input of a worker; None if unknown.
        times: Measured times of the stages by name; empty if they were not measured.
        cpus: CPUs of a worker, from which gains of parallel calls are derived; None if unknown.
        seeded: Every run draws the same random numbers.
        tries_changes: Changes are tried before they are recommended, so rules may propose those whose safety
            only their results show.
    """

    training: bool = True
    workers: int = 1
    sharded: bool | None = None
    shared_caches: frozenset[str] = frozenset()
    memory_bytes: int | None = None
    times: Mapping[str, StageTime] = field(default_factory=dict)
    cpus: int | None = None
    seeded: bool = False
    tries_changes: bool = False

    def share(self, stages: tuple[Stage, ...]) -> float | None:
        """Return the fraction of the measured time that some stages take; None without measurements."""
        total = sum(time.self_time_us for time in self.times.values())
        if not total:
            return None
        return sum(self.times[s.name].self_time_us for s in stages if s.name in self.times) / total


def make_finding(
    identifier: str,
    severity: Severity,
    stage: Stage,
    message: str,
    recommended: str,
    gain: Gain | None = None,
    value: int | None = None,
    by_hand: str | None = None,
    related: tuple[str, ...] = (),
    form: str | None = None,
) -> Finding:
    """Make a finding about a stage."""
    return Finding(
        identifier,
        severity,
        stage.op,
        stage.source,
        message,
        recommended,
        gain,
        value,
        by_hand,
        related=related,
        form=form,
    )


def describe_call(stage: Stage) -> str:
    """Name a stage as the user knows it: `take() in data.py:12`."""
    return f"{stage.op}() in {stage.source}" if stage.source else f"{stage.op}()"


def order_dependence(pipeline: Pipeline, stage: Stage) -> str | None:
    """Return why the order after a stage must not change: a later call selects by position; else None."""
    selecting = next((later for later in pipeline.after(stage) if later.op in _SELECTING_BY_POSITION), None)
    return None if selecting is None else f"{describe_call(selecting)} after it would select other records"


_SELECTING_BY_POSITION = frozenset(
    {
        *("take", "skip", "take_while", "shard", "enumerate", "zip", "window", "scan", "group_by_window"),
        "choose_from_datasets",
    }
)


def number(stage: Stage, name: str) -> int | None:
    """Return an integer attribute of a stage, if it has one."""
    value = stage.attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def flag(stage: Stage, name: str) -> bool:
    """Return True if an attribute of a stage is set and true."""
    return stage.attributes.get(name) is True


def is_batched(stage: Stage) -> bool:
    """Return True if the elements of a stage are batches of records."""
    return flag(stage, "batched")


def reads_batches(pipeline: Pipeline, stage: Stage) -> bool:
    """Return True if an input of a stage delivers batches."""
    return any(map(is_batched, pipeline.inputs_of(stage)))


def makes_records(stage: Stage) -> bool:
    """Return True if a stage combines several consecutive elements to a record."""
    return flag(stage, "makes_record")


def reshuffles(stage: Stage) -> bool:
    """Return True if a `shuffle` has another order in every epoch."""
    return stage.op == "shuffle" and stage.attributes.get("reshuffle_each_iteration") is not False


def shuffles(stage: Stage) -> bool:
    """Return True if a stage shuffles its elements, also if a library call does so internally."""
    return stage.op == "shuffle" or any(kind.startswith("ShuffleDataset") for kind in stage.kinds)


def count_records(pipeline: Pipeline, stage: Stage) -> int | None:
    """Return the elements of an epoch at a stage if they follow from source and batch sizes; else None."""
    downstream: list[Stage] = []
    while stage.inputs:
        if len(stage.inputs) > 1 or stage.op not in _SIZES_KEPT | _BATCHING | {"shard", "take"}:
            return None
        downstream.append(stage)
        stage = pipeline.by_name[stage.inputs[0]]
    records = number(stage, "records")
    for later in reversed(downstream):
        if records is None:
            return None
        if later.op in _BATCHING or later.op == "shard":
            parts = number(later, "num_shards" if later.op == "shard" else "batch_size")
            if not parts:
                return None
            drops = later.op in _BATCHING and flag(later, "drop_remainder")
            records = records // parts if drops else -(-records // parts)
        elif later.op == "take":
            count = number(later, "count")
            records = records if count is None or count < 0 else min(records, count)
    return records


_SIZES_KEPT = frozenset({"map", "shuffle", "cache", "prefetch", "enumerate", "with_options", "repeat"})
# Operations whose batches have exactly `batch_size` elements.
_BATCHING = frozenset({"batch", "padded_batch", "ragged_batch", "map_and_batch"})


_NO_GAIN = 1.005
_ABOUT = "about"

# Files that a reader waits for at once if TensorFlow would choose fewer by itself.
FILES_AT_ONCE = 4
# CPUs per file of an interleave with CS_AUTOTUNE: one thread for the file and two that prefetch from it
# (tensorflow/core/kernels/data/parallel_interleave_dataset_op.cc).
_CPUS_FOR_A_FILE = 3


def files_at_once(cpus: int | None) -> int:
    """Return the value for `cycle_length` or `num_parallel_reads`: a number, or AUTOTUNE if that is more."""
    return AUTOTUNE if cpus is not None and cpus > _CPUS_FOR_A_FILE * FILES_AT_ONCE else FILES_AT_ONCE


def format_argument(value: int) -> str:
    """Format a number as it is written in a call."""
    return AUTOTUNE_NAME if value == AUTOTUNE else str(value)


def most_cpus_for(files: int) -> int:
    """Return the largest number of CPUs with which CS_AUTOTUNE reads at most this many files at once."""
    return _CPUS_FOR_A_FILE * files


def non_speed_gain(text: str) -> Gain:
    """Make a gain that is something other than speed."""
    return Gain("not-speed", text)


def parallel_gain(
    pipeline: Pipeline, context: Context, stage: Stage, files: int | None = None
) -> Gain | None:
    """Estimate the gain of running the calls, or reading the files, of a stage in parallel.

    Args:
        pipeline: All stages.
        context: Their times, and the CPUs.
        stage: The stage that is changed.
        files: Files that it reads at once, or AUTOTUNE; by default what suits the stage.
    """
    if files is None and stage.op != "map":
        written = number(stage, "cycle_length") or 0
        unparallel = stage.op == "interleave" and stage.attributes.get("num_parallel_calls") is None
        files = written if unparallel and written > 0 else files_at_once(context.cpus)
    parallel: dict[str, Value] = {"kinds": ("ParallelInterleaveDataset",), "num_parallel_calls": AUTOTUNE}
    if files is not None:
        parallel["cycle_length"] = files
    changed = replace(stage, attributes={**stage.attributes, **parallel})
    stages = tuple(changed if one is stage else one for one in pipeline.stages)
    changed_pipeline = replace(pipeline, stages=stages)
    if context.times and context.cpus is not None:
        gain = _model_gain(pipeline, context, [stage], changed_pipeline, context.times)
        return gain and replace(gain, at_most=True)
    # The cost of the stage is unknown: bound the gain by the number of additional threads.
    before, after = assign_lanes(pipeline)[stage.name], assign_lanes(changed_pipeline)[stage.name]
    if (before.threads, before.threads_per_cpu) == (after.threads, after.threads_per_cpu):
        return Gain("expected", "nothing, as TensorFlow does this by itself here", 1.0, at_most=True)
    read = "files" if stage.attributes.get("reads") else "its input"
    if files is not None and files > 0:
        text = f"at most {files} times the rate, if the wait for {read} takes all of the time"
        return Gain("expected", text, float(files), at_most=True)
    what = "it" if files is None else f"the wait for {read}"
    text = f"at most as many times the rate as a worker has CPUs, if {what} takes all of the time"
    return Gain("expected", text)


def time_saving_gain(
    pipeline: Pipeline, context: Context, stages: Collection[Stage], when: str = ""
) -> Gain | None:
    """Estimate the gain if stages no longer take time; `when` states from which epoch on."""
    names = {stage.name for stage in stages}
    left = {name: time for name, time in context.times.items() if name not in names}
    if not context.times or context.cpus is None:
        return Gain("expected", f"the time that this takes is saved{when}")
    gain = _model_gain(pipeline, context, stages, pipeline, left, _ABOUT)
    if gain is None:
        return None
    why = ", as almost nothing else takes time" if gain.times is None else ""
    return replace(gain, text=f"{gain.text}{when}{why}, not counting the cost of passing elements on")


def sharding_gain(workers: int, what: str) -> Gain:
    """Bound the gain for stages whose results are currently discarded by all workers but one."""
    text = f"up to {workers} times the rate in a job of {workers} workers, if {what} takes all of the time"
    return Gain("expected", text, float(workers), at_most=True)


def overlap_gain() -> Gain:
    """Bound the gain of making batches while the accelerator trains: (a + b) / max(a, b) is at most 2."""
    text = "up to twice the rate, if a training step takes as long as its input"
    return Gain("expected", text, 2.0, at_most=True)


def format_ratio(times: float) -> str:
    """Format a ratio for readers."""
    return f"{times:.2f}" if times < 10 else f"{times:.0f}"


def _model_gain(
    pipeline: Pipeline,
    context: Context,
    stages: Collection[Stage],
    changed: Pipeline,
    changed_times: Mapping[str, StageTime],
    bound: str = "up to",
) -> Gain | None:
    """Compare the modeled rates before and after a change; None without times or if the CPUs are unknown."""
    if context.cpus is None or not context.times:
        return None
    # Stages before a cache run in the first epoch only.
    first = any(context.times[stage.name].once for stage in stages if stage.name in context.times)
    before = time_us(_costs(pipeline, context.times, first), context.cpus)
    after = time_us(_costs(changed, changed_times, first), context.cpus)
    if not before:
        return None
    times = None if after <= 0 else before / after
    if times is None or (bound == _ABOUT and times >= LARGEST_RATIO):
        times, text = None, f"more than {LARGEST_RATIO:.0f} times the rate"
    else:
        text = f"{bound} {format_ratio(times)} times the rate" if times >= _NO_GAIN else "nothing"
    epoch = " in the first epoch" if first else ""
    text = f"{text} with {plural(context.cpus, 'CPU')}{epoch}"
    return Gain("expected", text, times, cpus=context.cpus)


def _costs(pipeline: Pipeline, times: Mapping[str, StageTime], first: bool) -> list[StageCost]:
    lane_of = assign_lanes(pipeline)
    return [
        StageCost.of_stage(stage, lane_of[stage.name], time, once=time.once and not first)
        for stage in pipeline.stages
        if (time := times.get(stage.name)) is not None
    ]

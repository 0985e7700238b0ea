"""What rules know beside the pipeline, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from input_rules.findings import Finding, Gain, Severity
from input_rules.pipeline import Pipeline, Stage, StageTime

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

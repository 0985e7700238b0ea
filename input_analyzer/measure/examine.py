"""Examine an input: its batches, its stages with their times, findings, and the records that workers share.

A framework is imported only through its folder, and only for a program that uses it.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from input_analyzer.analysis import Component
from input_analyzer.errors import InputEndedError, VaryingShapesError
from input_analyzer.measure.link import Link, Order
from input_rules.batches import Batch, SampleCounter, batch_bytes, text_notes
from input_rules.findings import Finding
from input_rules.formatting import display_path
from input_rules.input_export import InputProgram, Shard
from input_rules.pipeline import Framework, Pipeline, StageTime
from input_rules.rules.base import count_records, flag, is_batched, number
from input_rules.rules.sharding import Split
from input_rules.throughput import StageCost, assign_lanes

FIRST_BATCHES_S = 3.0


@dataclass(frozen=True)
class Examination:
    """The findings of a framework's part.

    Attributes:
        pipeline: the stages.
        times: times of the stages that were timed.
        findings: findings of all rules.
        sharded: two workers read different data; None if unknown.
        notes: remarks for readers, one sentence each.
        split: files that are distributed among the workers; None if records are, or if it is unknown.
    """

    pipeline: Pipeline
    times: tuple[StageTime, ...]
    findings: tuple[Finding, ...]
    sharded: bool | None = None
    notes: tuple[str, ...] = ()
    split: Split | None = None


class _Examiner(Protocol):
    def examine(self, program: InputProgram, order: Order, say: Callable[[str], None]) -> Examination:
        """Examine an input as ordered; `say` receives progress."""
        ...


def examine(program: InputProgram, order: Order, link: Link) -> dict[str, Any]:
    """Return all facts about the input as a JSON object, which `ExaminedInput` reads.

    Raises:
        WrongTypeError: it is no dataset.
        VaryingShapesError: its batches differ.
        InputEndedError: there are too few batches.
        Exception: anything that the input function raises, unchanged.
    """

    def say(doing: str) -> None:
        link.send(event="alive", doing=doing)

    first: dict[str, Any] = {"batch_size": 0, "components": [], "bytes_per_sample": 0.0}
    if not order.source_only:
        say("reading the first batches")
        with program.role(Shard(1, 0)):
            first = read_first_batches(program, say)
    say("looking at the pipeline")
    examiner = cast("_Examiner", import_module(f"input_analyzer.{_PACKAGE[program.framework]}.examine"))
    found = examiner.examine(program, order, say)
    return {
        "function": function_name(program.function),
        "source": function_source(program.function),
        "framework": program.framework,
        "artifact_dirs": [str(path.absolute()) for path in program.artifact_dirs],
        "epoch_samples": epoch_samples(found.pipeline),
        "may_read_files": may_read_files(found.pipeline),
        "sharded": found.sharded,
        "stages": [asdict(cost) for cost in stage_costs(found.pipeline, found.times)],
        "findings": [asdict(finding) for finding in found.findings],
        "notes": [*text_notes((one["name"], one["dtype"]) for one in first["components"]), *found.notes],
        "split": None if found.split is None else asdict(found.split),
        **first,
    }


_PACKAGE = {"tensorflow": "tf", "torch": "torch"}


def read_first_batches(program: InputProgram, say: Callable[[str], None]) -> dict[str, Any]:
    """Read batches for some seconds; return their size, components and bytes per sample, as JSON values."""
    names = program.component_names()  # now, as it raises for inputs that no run could use
    shapes = Shapes(lambda: names, program.batch_size)
    shard = Shard(1, 0)
    count = samples = size = 0
    end = time.monotonic() + FIRST_BATCHES_S
    for batch in _read_epochs(program, shard):
        own_samples, own_size = shapes.check(batch)
        count, samples, size = count + 1, samples + own_samples, size + own_size
        say("reading the first batches")
        # Of a slow pipeline, some batches within that time suffice; a fast one has to deliver enough of them.
        if count > FEWEST_BATCHES or (count > 1 and time.monotonic() > end):
            break
    components = [
        asdict(Component(shapes.name(index), dtype, shape))
        for index, (dtype, shape) in enumerate(shapes.first)
    ]
    return {
        "batch_size": shapes.samples,
        "components": components,
        "bytes_per_sample": size / samples if samples else 0.0,
    }


def _read_epochs(program: InputProgram, shard: Shard) -> Iterator[tuple[Any, ...]]:
    """Yield the batches of a worker; for torch epoch after epoch, as training reads them.

    Raises:
        InputEndedError: an epoch has too few of them.
    """
    while True:
        count = samples = 0
        sizes = SampleCounter(program.batch_size)
        for batch in program.batches(shard):
            count, samples = count + 1, samples + sizes(batch)
            yield batch
        check_length(count, samples, shard, program.framework)
        if program.framework != "torch":
            return


def stage_costs(pipeline: Pipeline, times: tuple[StageTime, ...]) -> tuple[StageCost, ...]:
    """Combine the stages with their times, in pipeline order."""
    by_name, lane_of = {time.stage: time for time in times}, assign_lanes(pipeline)
    return tuple(
        StageCost.of_stage(stage, lane_of[stage.name], time, once=time is not None and time.once)
        for stage in pipeline.stages
        for time in [by_name.get(stage.name)]
    )


def epoch_samples(pipeline: Pipeline) -> int | None:
    """Return the samples of an epoch, which ends at the first `repeat` or with the pipeline."""
    if not pipeline.stages:
        return None
    if pipeline.framework == "torch":
        return number(pipeline.last, "epoch_samples")
    repeat = next((stage for stage in pipeline.stages if stage.op == "repeat"), None)
    if repeat is not None and len(repeat.inputs) != 1:
        return None
    end = pipeline.last if repeat is None else pipeline.by_name[repeat.inputs[0]]
    elements = count_records(pipeline, end)
    if elements is None:
        return None
    if not is_batched(end):
        return elements
    batched = elements * pipeline.samples_per_element
    # A smaller last batch counts with its actual size if the number of records before the batches is known.
    stage = end
    while is_batched(stage):
        several_inputs = len(stage.inputs) != 1
        if several_inputs or number(stage, "batch_size") not in (None, pipeline.samples_per_element):
            return batched
        stage = pipeline.by_name[stage.inputs[0]]
    records = count_records(pipeline, stage)
    # Records beyond the full batches were dropped.
    return batched if records is None else min(batched, records)


def may_read_files(pipeline: Pipeline) -> bool:
    """Return True if a batch may be read from files; Python code always may."""
    if pipeline.framework == "torch" or not pipeline.stages:
        return True
    return any(
        flag(stage, "python")
        or flag(stage, "opens")
        or "reads" in stage.attributes
        or (not stage.inputs and not all(_IN_MEMORY.match(kind) for kind in stage.kinds or (stage.op,)))
        for stage in pipeline.stages
    )


# Sources whose elements are tensors in memory.
_IN_MEMORY = re.compile(r"(Tensor|Range|from_tensor|range)")


def function_name(function: Any) -> str:
    """Return the name by which the user knows an input function."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def function_source(function: Any) -> str | None:
    """Return where an input function is defined, "file:line"; None if that is no file."""
    while isinstance(function, partial):
        function = function.func
    try:
        function = inspect.unwrap(function)
        path = Path(inspect.getsourcefile(function) or "").absolute()
        return f"{display_path(str(path))}:{inspect.getsourcelines(function)[1]}"
    except (TypeError, OSError):
        return None


# An input with fewer batches is not that of a training run.
FEWEST_BATCHES = 10

# Training with torch reads a loader epoch after epoch; epochs of fewer batches consist mostly of their
# start.
FEWEST_OF_AN_EPOCH = {"tensorflow": FEWEST_BATCHES, "torch": 4}


class Shapes:
    """Checks that all batches have the same types and shapes; one may have fewer samples than the first.

    Args:
        names: Returns the user's names of the arrays; called if one is to be named.
        batch_size: Records of a full batch, see SampleCounter.
    """

    def __init__(self, names: Callable[[], Sequence[str]] = tuple, batch_size: int | None = None) -> None:
        self._names = names
        self._count = SampleCounter(batch_size)
        self._first: tuple[tuple[str, tuple[int, ...]], ...] | None = None
        self._usual: list[tuple[Any, Any]] | None = None
        self._counts = (0, 0)
        self._seen = 0
        self.samples = 0  # samples of the first batch

    @property
    def first(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(dtype, shape) of every array of the first batch; empty before it."""
        return self._first or ()

    def name(self, index: int) -> str:
        """Return the user's name of an array."""
        names = self._names()
        return names[index] if index < len(names) else f"component {index}"

    def check(self, batch: Batch) -> tuple[int, int]:
        """Compare a batch with the first one; return its samples and bytes.

        Raises:
            VaryingShapesError: another number of arrays, other types, or other shapes.
        """
        self._seen += 1
        # Fast path of about 1 us, as a whole batch may take only 100 us.
        plain = [(array.dtype, array.shape) for array in batch]
        if plain == self._usual:
            return self._counts
        counts = self._count(batch), batch_bytes(batch)
        # torch's tensors then have NumPy's names of types, too.
        now = tuple(
            (str(array.dtype).removeprefix("torch."), tuple(map(int, array.shape))) for array in batch
        )
        if self._first is None:
            self._first, self.samples = now, self._count(batch)
        if now == self._first:
            self._usual, self._counts = plain, counts
            return counts
        if len(now) != len(self._first):
            raise VaryingShapesError(
                "the batch", f"{len(self._first)} arrays", f"{len(now)} arrays", self._seen
            )
        for index, (before, after) in enumerate(zip(self._first, now, strict=True)):
            (dtype, shape), (other_dtype, other_shape) = before, after
            alike = dtype == other_dtype and len(shape) == len(other_shape) and shape[1:] == other_shape[1:]
            # A batch with fewer samples is the last one of an epoch without drop_remainder; a finding
            # reports that.
            if not alike or shape[:1] < other_shape[:1]:
                raise VaryingShapesError(
                    self.name(index), _format_array(before), _format_array(after), self._seen
                )
        return counts


def _format_array(array: tuple[str, tuple[int, ...]]) -> str:
    dtype, shape = array
    return f"{dtype}{list(shape)}"


def check_length(batches: int, samples: int, shard: Shard, framework: Framework = "tensorflow") -> None:
    """Check that an input that has ended was long enough to be measured.

    Raises:
        InputEndedError: it was not.
    """
    if batches < FEWEST_OF_AN_EPOCH[framework]:
        part = f" in shard {shard.index} of {shard.count}" if shard.count > 1 else ""
        raise InputEndedError(batches, samples, part, FEWEST_OF_AN_EPOCH[framework], framework)


# Fraction of its records that a reader may share with another because the records do not divide evenly.
PADDING = 0.02


class Overlap(Enum):
    """The records that two readers have in common."""

    SAME = "the same records"
    SOME = "some of the records"
    NONE = "no record"


@dataclass(frozen=True, slots=True)
class Reading:
    """The records that a reader has read in an epoch.

    Attributes:
        digests: one digest per record, in order.
        whole: the epoch is complete; otherwise reading was cut off.
    """

    digests: tuple[str, ...]
    whole: bool


def overlap(first: Reading, other: Reading, again: Reading) -> Overlap | None:
    """Determine the records that two readers have in common.

    Args:
        first: the records of the first reader.
        other: the records of the second reader.
        again: the records of the first reader when it starts again, with the same random numbers.

    Returns:
        None if unknown: all records are equal, or the first reader finds other records each time.
    """
    if len(set(first.digests)) < 2 or not _same_records(first, again):
        return None
    if _same_records(first, other):
        return Overlap.SAME
    common = set(first.digests) & set(other.digests)
    few = max(1, PADDING * len(first.digests)) if first.whole and other.whole else 0
    return Overlap.NONE if len(common) <= few else Overlap.SOME


def _same_records(one: Reading, other: Reading) -> bool:
    """Return True if two epochs have the same records, or begin with the same if one was cut off."""
    if one.whole and other.whole:
        return sorted(one.digests) == sorted(other.digests)
    common = min(len(one.digests), len(other.digests))
    shorter, longer = sorted((one, other), key=lambda reading: len(reading.digests))
    if shorter.whole and len(longer.digests) > common:
        return False
    return common > 0 and one.digests[:common] == other.digests[:common]

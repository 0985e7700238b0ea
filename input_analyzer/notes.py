"""What a reader must know of an analysis, one sentence each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from input_analyzer.analysis import Layout, Measurement, Recommendation, Target
from input_analyzer.measure.page_cache import ColdFiles
from input_analyzer.measure.rates import FEWEST_BATCHES, Effort, Plan
from input_analyzer.rate_model import RateModel
from input_analyzer.recommend import HEADROOM, Limits, nodes_for, predictions, recommend, used_part
from input_analyzer.report.words import counted, percent, rate, shape
from input_rules.rules.sharding import Split
from input_rules.words import size

_BUSY_CPUS = 0.25
_UNMEASURED_ERROR = 0.15
_HARDLY = 0.01


def first_epoch_note(cpus_per_task: Sequence[int], slow_first: str, *, cold: bool) -> str:
    """That rates are those of the first epoch: those with so many CPUs per task, or, with none named, all.

    Args:
        cpus_per_task: numbers of CPUs per task.
        slow_first: what may make later epochs faster.
        cold: files were made cold before.
    """
    some = f" with {' or '.join(map(str, cpus_per_task))} CPUs per task" if cpus_per_task else ""
    return (
        f"No epoch ended while it was measured{some}{', as far as can be seen' if cold else ''}: "
        f"{'these' if some else 'the'} rates are those of the first epoch; {slow_first} may make later ones "
        "faster."
    )


def cold_notes(cold: ColdFiles, measurements: Sequence[Measurement]) -> list[str]:
    """What was dropped for the first epoch, and what speaks against its being cold."""
    dropped, where = cold.last, ", ".join(map(str, cold.folders))
    notes = [
        f"Cold: {counted(dropped.files, 'file')} below {where}, {size(dropped.size_bytes)} in all, "
        f"{'was' if dropped.files == 1 else 'were'} dropped from the memory of the operating system before "
        "the first epoch. What another machine or the disk itself keeps in memory stays there."
    ]
    if any(_nothing_read(one) for one in measurements):
        notes.append(
            "Hardly anything was read from a disk in the first epoch, so it was not cold: the input reads "
            "other files or keeps them in memory, or they are on tmpfs, mapped by a program, or on a network "
            "file system, of which the kernel counts nothing."
        )
    return notes


def _nothing_read(measurement: Measurement) -> bool:
    read = measurement.first_epoch_disk_bytes_per_sample
    return read is not None and read < _HARDLY * measurement.bytes_per_sample


def file_notes(
    split: Split | None, model: RateModel, limits: Limits, target: Target | None
) -> tuple[str, ...]:
    """That there are fewer files than workers that the nodes have room for, and what that costs."""
    everything = predictions(model, replace(limits, files=None))
    if split is None or max(one.layout.workers for one in everything) <= split.files:
        return ()
    wanted = None if target is None else target.samples_per_s
    found, other = recommend(predictions(model, limits), wanted), recommend(everything, wanted)
    files, place = counted(split.files, "file"), split.source or "a library"
    note = (
        f"The input has {files} that workers share out whole ({split.op} at {place}): one more worker than "
        "files would have nothing to read, so layouts with more are left out."
    )
    if other.samples_per_s <= found.samples_per_s or other.layout == found.layout:
        return (note,)  # where the same layout is slowed down by uneven files, that is told by itself
    workers = other.layout.workers
    enough = (split.files // workers + 1) * workers
    multiple = f"{enough} files, or another number that {workers} divides,"
    limiting = "The files are the limit: with" if found.utilization != 1 else "With"
    return (
        f"{note} {limiting} {multiple} {shape(other.layout)} would be expected to "
        f"deliver {rate(other.samples_per_s)} samples/s instead of {rate(found.samples_per_s)}: write the "
        "data to more files, or shard the records behind the reading (each worker then reads all files).",
    )


def uneven_notes(split: Split | None, layout: Layout) -> tuple[str, ...]:
    """What files that the recommended layout shares out unevenly cost it."""
    part = 1.0 if split is None else used_part(split.files, layout.workers)
    if split is None or part > 1 - _HARDLY:
        return ()
    most = math.ceil(split.files / layout.workers)
    return (
        f"Some of the {counted(layout.workers, 'worker')} have {counted(most, 'file')} and others fewer: "
        f"the expected rate is {percent(part)} of what the workers deliver, as an epoch takes until those "
        "with the most files are through.",
    )


def unsettled_notes(measurements: Sequence[Measurement], half_width: float) -> list[str]:
    """Measurements that would have needed more time, by what they lack.

    Args:
        measurements: all of them.
        half_width: half of a confidence interval is to be at most that part of the rate.
    """
    lacking: dict[str, int] = {}
    for one in measurements:
        if one.settled:
            continue
        if one.batches < FEWEST_BATCHES:
            said = (
                f"had fewer than {FEWEST_BATCHES} batches of each copy, too few to trust {{intervals}}. "
                "More time: --seconds."
            )
        elif (one.high - one.low) / 2 > half_width * one.samples_per_s:
            said = "did not become as tight as asked for, see {intervals}. More time: --seconds."
        else:
            said = (
                "had not come to rest by the middle of {its} time, so what counts is the last part only. "
                "More time: --seconds."
            )
        lacking[said] = lacking.get(said, 0) + 1
    return [_of_some(count, len(measurements), said) for said, count in lacking.items()]


def _of_some(count: int, together: int, said: str) -> str:
    """A sentence about some of all measurements, with "its" and "their" as these ask for."""
    which = "The only measurement" if together == 1 else f"{count} of {together} measurements"
    its, plural = ("its", "") if count == 1 else ("their", "s")
    return f"{which} {said.format(its=its, intervals=f'{its} confidence interval{plural}')}"


def reservations(
    measurements: Sequence[Measurement],
    effort: Effort,
    model: RateModel,
    limits: Limits,
    target: Target | None,
    todo: Sequence[Plan],
) -> list[str]:
    """What takes from the trust in an analysis, one sentence each."""
    notes = []
    busy = max(m.other_cpus for m in measurements)
    if busy > _BUSY_CPUS:
        notes.append(
            f"Other programs kept up to {busy:.1f} of the {limits.node_cpus} CPUs busy while it was "
            "measured: on a quiet node the rates are higher."
        )
    notes += unsettled_notes(measurements, effort.half_width)
    if model.relative_error > _UNMEASURED_ERROR:
        notes.append(
            f"The fitted model is {100 * model.relative_error:.0f} % away from the measurements: trust the "
            "rows that were measured."
        )
    if any(limits.memory_binds(plan.cpus_per_task) for plan in todo):
        each = limits.memory_per_task_bytes / 2**30
        notes.append(f"A task needs {each:.1f} GiB: memory, not CPUs, limits the tasks of a node.")
    if limits.nodes > 1:
        notes.append(
            "One node was measured; what several share, a file server for instance, is not in the "
            "predictions."
        )
    if target is None:
        notes.append(
            "There is no target: compile first (--mode=compile_only), or give --target-samples-per-s; the "
            "layout with the highest rate is recommended."
        )
    return notes


def more_nodes_notes(
    model: RateModel, limits: Limits, target: Target | None, found: Recommendation
) -> tuple[str, ...]:
    """How many nodes would be enough where those that are available are not."""
    if target is None or found.samples_per_s >= target.samples_per_s:
        return ()
    nodes = nodes_for(model, limits, target.samples_per_s)
    if nodes is None:
        return ()
    return (
        f"{nodes} nodes like the measured one would be expected to reach the target with {percent(HEADROOM)} "
        f"to spare: analyse it with --available-nodes={nodes} for their layout.",
    )

"""What a reader must know of an analysis, one sentence each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from input_analyzer.analysis import Measurement, Recommendation, Target
from input_analyzer.measure.page_cache import ColdFiles
from input_analyzer.measure.rates import FEWEST_BATCHES, Plan
from input_analyzer.rate_model import RateModel
from input_analyzer.recommend import HEADROOM, Limits, layouts, nodes_for
from input_analyzer.report.words import counted, percent
from input_rules.formatting import format_bytes
from input_rules.rules.sharding import Split

_BUSY_CPUS = 0.25
_UNMEASURED_ERROR = 0.15
_HARDLY = 0.01


def first_epoch_note(cpus_per_task: Sequence[int]) -> str:
    """That rates are those of the first epoch: those with so many CPUs per task, or, with none named, all."""
    some = f" with {' or '.join(map(str, cpus_per_task))} CPUs per task" if cpus_per_task else ""
    return (
        f"No epoch ended while it was measured{some}: {'these' if some else 'the'} rates are those of the "
        "first epoch; a cache, or files that stay in memory, may make later ones faster. With --cold files "
        "are read from the disk."
    )


def cold_notes(cold: ColdFiles, measurements: Sequence[Measurement]) -> list[str]:
    """What was dropped for the first epoch, and what speaks against its being cold."""
    where = ", ".join(map(str, cold.folders))
    notes = [
        f"Cold: {counted(cold.files, 'file')} below {where}, {format_bytes(cold.size_bytes)} in all, "
        f"{'was' if cold.files == 1 else 'were'} dropped from the memory of the operating system before "
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


def file_notes(split: Split | None, limits: Limits) -> tuple[str, ...]:
    """That there are fewer files than workers that the nodes have room for."""
    if split is None:
        return ()
    room = max(one.workers for one in layouts(replace(limits, files=None)))
    if room <= split.files:
        return ()
    return (
        f"The input has {counted(split.files, 'file')} that workers share out whole ({split.op} at "
        f"{split.source or 'a library'}), and the nodes have room for {room} workers: one more worker than "
        "files would have nothing to read, so layouts with more are left out. Write the data to more files, "
        "or shard the records behind the reading (each worker then reads all files).",
    )


def unsettled_notes(measurements: Sequence[Measurement]) -> list[str]:
    """That some of all measurements would have needed more time."""
    count = sum(not one.settled for one in measurements)
    if not count:
        return []
    return [
        f"{count} of {counted(len(measurements), 'measurement')} needed more time (--seconds): a copy had "
        f"fewer than {FEWEST_BATCHES} batches, the rate had not come to rest, or its interval is wider than "
        "asked for."
    ]


def reservations(
    measurements: Sequence[Measurement],
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
    notes += unsettled_notes(measurements)
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

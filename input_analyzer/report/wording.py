"""Sentences and figures that the text report and the page share: verdict, notes, training command. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from shlex import join

from input_analyzer.analysis import Analysis, Layout, Measurement, Recommendation, Target
from input_analyzer.conclusions import HEADROOM, Limits, list_layouts, nodes_needed
from input_analyzer.measure.node import ColdFiles
from input_analyzer.measure.rates import FEWEST_BATCHES, Plan
from input_analyzer.rate_model import RateModel
from input_rules.formatting import format_bytes, format_number, format_percent, plural
from input_rules.rules.sharding import Split

# From this ratio on, a factor is shown instead of percent.
_MANY_TIMES = 10.0
_LEAST_US, _LEAST_SHARE = 0.001, 0.001
# Fractions above this would be rounded to 100 %.
_NEARLY_ALL = 0.995


def microseconds(value: float | None) -> str:
    """Format the time of a stage per sample; less than a nanosecond is noise."""
    if value is None:
        return "-"
    return format_number(value) if value >= _LEAST_US or not value else f"< {_LEAST_US}"


def share(part: float) -> str:
    """Format the fraction of a stage in the time of all stages; less than a thousandth is noise."""
    return format_percent(part) if part >= _LEAST_SHARE or not part else f"< {format_percent(_LEAST_SHARE)}"


def of_target(ratio: float) -> str:
    """Format the ratio of a rate to the target: 85 %, or 119 times."""
    return f"{ratio:,.0f} times" if ratio >= _MANY_TIMES else format_percent(ratio)


def above(headroom: float) -> str:
    """Format how far a rate exceeds the target: "7.7 % more than", or "119 times", or "just"."""
    if 1 + headroom >= _MANY_TIMES:
        return f"{1 + headroom:,.0f} times"
    if headroom < HEADROOM:  # never as much as that
        headroom = math.floor(1000 * headroom + 1e-9) / 1000
    return f"{format_percent(headroom)} more than" if headroom else "just"


def from_disk(one: Measurement) -> float | None:
    """Return the bytes per sample that a first epoch read from disks; None if no such epoch was measured.

    Without a first epoch, pages that were read, such as the program's own code, say nothing about the input.
    """
    return None if one.first_epoch_samples_per_s is None else one.first_epoch_disk_bytes_per_sample


def shape(layout: Layout) -> str:
    """Describe a layout."""
    return (
        f"{plural(layout.nodes, 'node')} x {plural(layout.tasks_per_node, 'task')} x "
        f"{plural(layout.cpus_per_task, 'CPU')}"
    )


def no_findings(analysis: Analysis) -> str:
    """Describe an empty list of findings."""
    return (
        "nothing to improve" if analysis.stages else "not looked at: the stages are not known, see below why"
    )


def unaccounted(analysis: Analysis) -> str | None:
    """Describe the CPU time outside of all stages; None if it is unknown."""
    unaccounted_us = analysis.unaccounted_cpu_us_per_sample
    if unaccounted_us is None:
        return None
    stages = sum(stage.cpu_us_per_sample or 0.0 for stage in analysis.stages if not stage.once)
    if unaccounted_us <= 0:
        return (
            f"CPU time in no stage: none; a copy used no more than the {format_number(stages)} us per "
            "sample of the "
            "stages, each of which is timed alone."
        )
    return (
        f"CPU time in no stage: {format_number(unaccounted_us)} us per sample, beside "
        f"{format_number(stages)} us of the stages; it goes into calls and into handing elements and "
        "batches over, between threads, processes and in memory."
    )


def fit(analysis: Analysis) -> str:
    """Describe the error of the model; rounding errors of a fit are ignored."""
    error = analysis.model.relative_error
    if error < 1e-6:
        return "it goes through all measured points"
    return f"it is {format_percent(error)} away from the measurements (root mean square)"


def subject(analysis: Analysis) -> str:
    """Describe the analyzed input; for a program that trains several times, only the first one."""
    found = analysis.subject
    where = f" ({found.source})" if found.source else ""
    which = ", with which the program first trains or compiles" if of_program(found.command) else ""
    return f"{found.function}{where}{which}; {found.framework}"


def of_program(command: tuple[str, ...]) -> bool:
    """Return True if a program was analyzed, and not a function by its name."""
    return len(command) > 1 or ":" not in command[0]


def verdict(analysis: Analysis) -> str:
    """State whether training will wait for input, in one to three sentences."""
    found, target = analysis.recommendation, analysis.target
    workers = plural(found.layout.workers, "worker")
    verb = "delivers" if found.layout.workers == 1 else "deliver"
    expected = f"{workers} of the recommended layout {verb} {format_number(found.samples_per_s)} samples/s"
    if target is None or found.headroom is None or found.utilization is None:
        return (
            f"{expected}, the highest rate that was found. Without a target nobody can say whether that is "
            "enough."
        )
    wanted = f"the {format_number(target.samples_per_s)} samples/s that the training can use"
    if analysis.input_bound:
        part = "nearly all" if found.utilization >= _NEARLY_ALL else format_percent(found.utilization)
        return (
            f"Even the best layout of {plural(analysis.available_nodes, 'node')} "
            f"reaches {format_number(found.samples_per_s)} of {wanted}, so the accelerator is expected to "
            "work "
            f"{part} of the time.{_doubt(found, target)}"
        )
    expected = f"{expected}, {above(found.headroom)} {wanted}"
    tight = ""
    if found.headroom < HEADROOM:
        tight = (
            f" That is less than the {format_percent(HEADROOM)} that are to be kept for sending the batches, "
            "so the training may wait for input now and then."
        )
    if _doubtful(found, target):
        return f"The training will probably not wait for input: {expected}.{tight}{_doubt(found, target)}"
    if tight:
        return f"The input is only just fast enough: {expected}.{tight}"
    return f"The training will not wait for input: {expected}."


def _doubtful(found: Recommendation, target: Target) -> bool:
    """Whether a rate within the interval would turn the verdict."""
    if found.low is None or found.high is None:
        return False
    return found.low < target.samples_per_s <= found.high


def _doubt(found: Recommendation, target: Target) -> str:
    """That the measurements are too loose for a plain verdict; empty where they are not."""
    if not _doubtful(found, target) or found.low is None or found.high is None:
        return ""
    return (
        " The verdict is not sure: the measurements only tell that the rate lies between "
        f"{format_number(found.low)} and {format_number(found.high)} samples/s. A quiet machine, or more "
        "time (--seconds), "
        "tells more."
    )


def title(analysis: Analysis) -> str:
    """The verdict in a few words."""
    found, target = analysis.recommendation, analysis.target
    if analysis.input_bound is None or target is None:
        return "How fast the input can be"
    probably = "probably " if _doubtful(found, target) else ""
    if analysis.input_bound:
        return f"The training will {probably}be input-bound"
    if not probably and found.headroom is not None and found.headroom < HEADROOM:
        return "The input is only just fast enough"
    return f"The input is {probably}fast enough"


def training_command(analysis: Analysis) -> str:
    """Return the command to train with the recommended layout, without the program for a single function."""
    layout = analysis.recommendation.layout
    words = [
        "csrun_wse",
        f"--total-nodes={layout.nodes}",
        f"--tasks-per-node={layout.tasks_per_node}",
        f"--cpus-per-task={layout.cpus_per_task}",
    ]
    command = analysis.subject.command
    program = command if of_program(command) else ("python", "run.py", "--mode=train")
    return join([*words, *_training_words(program)])


_MODE = re.compile(
    r"(?:^| )(?:(?:--mode[= ]|-m ?)(?:train|train_and_eval|eval|compile_only|validate_only)"
    r"|--(?:compile|validate)_only)(?: |$)"
)
"""Flags by which the example programs are told what to do."""


def _training_words(command: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a program that trains where they were to validate or to compile, and on a CS system.

    A program that gets no address trains on the CPU of its node. Only one with the flags of the example
    programs, which have a mode, is known to take it as `--cs_ip`: others may refuse that.
    """
    kept = [word for word in command if word not in ("--compile_only", "--validate_only")]
    trains = [re.sub(r"^(--mode=|-m)?(compile_only|validate_only)$", r"\1train", word) for word in kept]
    addressed = any(word.split("=")[0] == "--cs_ip" for word in trains)
    takes_address = _MODE.search(" ".join(command)) is not None
    return tuple(trains if addressed or not takes_address else [*trains, "--cs_ip=IP:PORT"])


_BUSY_CPUS = 0.25
_UNMEASURED_ERROR = 0.15
_HARDLY = 0.01


def first_epoch_note(cpus_per_task: Sequence[int]) -> str:
    """State that rates are those of the first epoch, with some numbers of CPUs per task or with all."""
    some = f" with {' or '.join(map(str, cpus_per_task))} CPUs per task" if cpus_per_task else ""
    return (
        f"No epoch ended while it was measured{some}: {'these' if some else 'the'} rates are those of the "
        "first epoch; a cache, or files that stay in memory, may make later ones faster. With --cold files "
        "are read from the disk."
    )


def cold_notes(cold: ColdFiles, measurements: Sequence[Measurement]) -> list[str]:
    """State which files were dropped before the first epoch, and whether it may not have been cold."""
    where = ", ".join(map(str, cold.folders))
    notes = [
        f"Cold: {plural(cold.files, 'file')} below {where}, {format_bytes(cold.size_bytes)} in all, "
        f"{'was' if cold.files == 1 else 'were'} dropped from the memory of the operating system before "
        "the first epoch. What another machine or the disk itself keeps in memory stays there."
    ]
    if any(_read_no_disk(one) for one in measurements):
        notes.append(
            "Hardly anything was read from a disk in the first epoch, so it was not cold: the input reads "
            "other files or keeps them in memory, or they are on tmpfs, mapped by a program, or on a network "
            "file system, of which the kernel counts nothing."
        )
    return notes


def _read_no_disk(measurement: Measurement) -> bool:
    read = measurement.first_epoch_disk_bytes_per_sample
    return read is not None and read < _HARDLY * measurement.bytes_per_sample


def file_notes(split: Split | None, limits: Limits) -> tuple[str, ...]:
    """State that there are fewer files than workers for which the nodes have room."""
    if split is None:
        return ()
    room = max(one.workers for one in list_layouts(replace(limits, files=None)))
    if room <= split.files:
        return ()
    return (
        f"The input has {plural(split.files, 'file')} that workers share out whole ({split.op} at "
        f"{split.source or 'a library'}), and the nodes have room for {room} workers: one more worker than "
        "files would have nothing to read, so layouts with more are left out. Write the data to more files, "
        "or shard the records behind the reading (each worker then reads all files).",
    )


def unsettled_notes(measurements: Sequence[Measurement]) -> list[str]:
    """State that some measurements would have needed more time."""
    count = sum(not one.settled for one in measurements)
    if not count:
        return []
    return [
        f"{count} of {plural(len(measurements), 'measurement')} needed more time (--seconds): a copy had "
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
    """State what limits the trust in an analysis, one sentence each."""
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
    """State how many nodes would suffice if the available ones do not."""
    if target is None or found.samples_per_s >= target.samples_per_s:
        return ()
    nodes = nodes_needed(model, limits, target.samples_per_s)
    if nodes is None:
        return ()
    return (
        f"{nodes} nodes like the measured one would be expected to reach the target with "
        f"{format_percent(HEADROOM)} "
        f"to spare: analyze it with --available-nodes={nodes} for their layout.",
    )

"""Sentences and figures of the text report and the page: verdict, notes, training command. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from shlex import join

from input_analyzer.analysis import Analysis, Layout, Measurement, Recommendation, Target
from input_analyzer.conclusions import HEADROOM, Limits, list_layouts, nodes_needed
from input_analyzer.measure.node import ColdFiles
from input_analyzer.measure.rates import FEWEST_BATCHES, Plan
from input_analyzer.rate_model import RateModel
from input_rules.findings import Finding
from input_rules.formatting import format_bytes, format_number, format_percent, plural
from input_rules.rules.base import format_ratio
from input_rules.rules.sharding import Split

# From this ratio on, a factor is shown instead of percent.
_MANY_TIMES = 10.0
_MIN_US, _MIN_SHARE = 0.001, 0.001  # smaller values are noise
# Fractions above this would be rounded to 100 %.
_NEARLY_ALL = 0.995


def microseconds(value: float | None) -> str:
    """Format the time of a stage per sample; less than a nanosecond is shown as a bound."""
    if value is None:
        return "-"
    return format_number(value) if value >= _MIN_US or not value else f"< {_MIN_US}"


def share(part: float) -> str:
    """Format the fraction of a stage in the time of all stages; below a thousandth, as a bound."""
    return format_percent(part) if part >= _MIN_SHARE or not part else f"< {format_percent(_MIN_SHARE)}"


def of_target(ratio: float) -> str:
    """Format the ratio of a rate to the target: 85 %, or 119 times."""
    return f"{ratio:,.0f} times" if ratio >= _MANY_TIMES else format_percent(ratio)


def above(headroom: float) -> str:
    """Format how far a rate exceeds the target: "7.7 % more than", or "119 times", or "just"."""
    if 1 + headroom >= _MANY_TIMES:
        return f"{1 + headroom:,.0f} times"
    if headroom < HEADROOM:  # rounded down, so that it is never shown as enough
        headroom = math.floor(1000 * headroom + 1e-9) / 1000
    return f"{format_percent(headroom)} more than" if headroom else "just"


def from_disk(one: Measurement) -> float | None:
    """Return the bytes per sample that a first epoch read from disks; None if no such epoch was measured."""
    # Without a first epoch, other pages were read, such as those of the program's own code.
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
        "nothing to improve"
        if analysis.stages
        else "not available: the stages are unknown; the notes below state why"
    )


def combination(analysis: Analysis) -> str | None:
    """State the fastest combination of changes that was measured; None if nothing was measured."""
    if analysis.gain_together is not None:
        changes = " + ".join(analysis.combination)
        return f"Recommended changes: {changes}; {analysis.gain_together}."
    if any(finding.gain and finding.gain.kind == "measured" for finding in analysis.findings):
        return "None of the tested changes makes the input faster."
    return None


def withdrawal(finding: Finding) -> str:
    """State that a recommendation is withdrawn: "withdrawn: measured 0.50 times as fast with 2 CPUs ..."."""
    gain = finding.gain
    if gain is None or gain.times is None or gain.low is None or gain.high is None or gain.cpus is None:
        return "withdrawn"
    return (
        f"withdrawn: measured {format_ratio(gain.times)} times as fast with {plural(gain.cpus, 'CPU')} "
        f"({format_ratio(gain.low)} to {format_ratio(gain.high)})"
    )


def time_outside_stages(analysis: Analysis) -> str | None:
    """Describe the CPU time outside of all stages; None if it is unknown."""
    unaccounted_us = analysis.unaccounted_cpu_us_per_sample
    if unaccounted_us is None:
        return None
    stages = sum(stage.cpu_us_per_sample or 0.0 for stage in analysis.stages if not stage.once)
    if unaccounted_us <= 0:
        return (
            f"CPU time outside of stages: none; a copy used no more than the {format_number(stages)} us per "
            "sample of all stages, each of which is timed by itself."
        )
    return (
        f"CPU time outside of stages: {format_number(unaccounted_us)} us per sample, in addition to "
        f"{format_number(stages)} us in stages; it is spent on calls and on passing elements and batches "
        "between threads and processes and in memory."
    )


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A part of the time of a sample: a stage, or time in no stage.

    Attributes:
        name: the stage, or a description.
        computing_us: its time on a CPU, microseconds per sample; None if unknown.
        waiting_us: its other time.
        share: fraction of the whole time after the first epoch; None for a stage that takes none of it.
        computing_share: part of the share that is computing.
        source: the user's line.
        slowest: it is the bottleneck.
        once: it takes time in the first epoch only.
        no_stage: it belongs to no stage.
    """

    name: str
    computing_us: float | None
    waiting_us: float | None
    share: float | None = None
    computing_share: float = 0.0
    source: str | None = None
    slowest: bool = False
    once: bool = False
    no_stage: bool = False

    @property
    def time_us(self) -> float | None:
        """Computing and waiting."""
        return None if self.computing_us is None else self.computing_us + (self.waiting_us or 0.0)


def time_rows(analysis: Analysis) -> list[TimeRow]:
    """List all parts of the time of a sample: the stages in pipeline order, then time in no stage."""
    slowest = None if analysis.bottleneck is None else analysis.bottleneck.stage
    rows = []
    for stage in analysis.stages:
        time, waits = stage.self_time_us_per_sample, stage.wait_us_per_sample or 0.0
        computing = None if time is None else time - waits
        rows.append(
            TimeRow(
                stage.name,
                computing,
                None if time is None else waits,
                source=stage.source,
                slowest=stage.name == slowest,
                once=stage.once,
            )
        )
    overhead, idle = analysis.unaccounted_cpu_us_per_sample, analysis.unaccounted_wait_us_per_sample
    if overhead:
        rows.append(TimeRow("no stage: overhead", overhead, 0.0, no_stage=True))
    if idle:
        rows.append(TimeRow("no stage: waiting", 0.0, idle, no_stage=True))
    total = sum(row.time_us or 0.0 for row in rows if not row.once)
    return [
        row
        if row.once or row.computing_us is None or not total
        else replace(row, share=(row.time_us or 0.0) / total, computing_share=row.computing_us / total)
        for row in rows
    ]


def fit(analysis: Analysis) -> str:
    """Describe the error of the model."""
    error = analysis.model.relative_error
    if error < 1e-6:  # rounding errors of the fit
        return "it passes through all measured points"
    return f"it deviates from the measurements by {format_percent(error)} (root mean square)"


def subject(analysis: Analysis) -> str:
    """Describe the analyzed input; for a program that trains several times, only the first one."""
    found = analysis.subject
    where = f" ({found.source})" if found.source else ""
    which = ", the input of the program's first training run or compile" if is_program(found.command) else ""
    return f"{found.function}{where}{which}; {found.framework}"


def is_program(command: tuple[str, ...]) -> bool:
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
            f"{expected}, the highest rate that was found. Without a target rate it is unknown whether this "
            f"is enough.{_unsettled_sentence(analysis)}"
        )
    wanted = f"the {format_number(target.samples_per_s)} samples/s that training can use"
    doubt = _unsettled_sentence(analysis)
    if _is_uncertain(found, target) and found.low is not None and found.high is not None:
        doubt = (
            " This is uncertain, as the measured interval of the rate is "
            f"{format_number(found.low)} to {format_number(found.high)} samples/s."
        ) + (doubt or " Measure on an idle machine or for longer (--seconds) to narrow it.")
    if analysis.input_bound:
        part = "nearly all" if found.utilization >= _NEARLY_ALL else format_percent(found.utilization)
        return (
            f"Even the best layout of {plural(analysis.available_nodes, 'node')} reaches only "
            f"{format_number(found.samples_per_s)} of {wanted}, so the accelerator is expected to be busy "
            f"{part} of the time.{doubt}"
        )
    expected = f"{expected}, {above(found.headroom)} {wanted}"
    tight = ""
    if found.headroom < HEADROOM:
        tight = (
            f" This is less than the {format_percent(HEADROOM)} reserved for sending the batches, so "
            "training may wait for input occasionally."
        )
    if doubt:
        return f"Training will probably not wait for input: {expected}.{tight}{doubt}"
    if tight:
        return f"The input is only just fast enough: {expected}.{tight}"
    return f"Training will not wait for input: {expected}."


def _is_uncertain(found: Recommendation, target: Target) -> bool:
    """Return True if the interval of the rate includes the target, so that the verdict may be wrong."""
    if found.low is None or found.high is None:
        return False
    return found.low < target.samples_per_s <= found.high


def _unsettled_sentence(analysis: Analysis) -> str:
    """State why the measurements do not support the verdict, and how to measure again."""
    if not analysis.unsettled:
        return ""
    return f" The measurements are unsettled: {' and '.join(analysis.unsettled)}. {analysis.measure_again}"


def title(analysis: Analysis) -> str:
    """Return the verdict in a few words, which begin with "Unsettled" if the measurements are."""
    verdict = _title(analysis)
    return f"Unsettled: {verdict[0].lower()}{verdict[1:]}" if analysis.unsettled else verdict


def _title(analysis: Analysis) -> str:
    found, target = analysis.recommendation, analysis.target
    if analysis.input_bound is None or target is None:
        return "Highest rate of the input"
    probably = "probably " if _is_uncertain(found, target) else ""
    if analysis.input_bound:
        return f"Training will {probably}be input-bound"
    if not probably and found.headroom is not None and found.headroom < HEADROOM:
        return "The input is only just fast enough"
    return f"The input is {probably}fast enough"


def training_command(analysis: Analysis) -> str:
    """Return the command that trains with the recommended layout.

    It has the analyzed program, in training mode, or `run.py` if a single function was analyzed.
    """
    layout = analysis.recommendation.layout
    launcher = [
        "csrun_wse",
        f"--total-nodes={layout.nodes}",
        f"--tasks-per-node={layout.tasks_per_node}",
        f"--cpus-per-task={layout.cpus_per_task}",
    ]
    command = analysis.subject.command
    program = command if is_program(command) else ("python", "run.py", "--mode=train")
    kept = [word for word in program if word not in ("--compile_only", "--validate_only")]
    trains = [re.sub(r"^(--mode=|-m)?(compile_only|validate_only)$", r"\1train", word) for word in kept]
    # Without an address, a program trains on the CPU of its node. Only programs with the flags of the
    # examples are known to accept --cs_ip; others may refuse it.
    has_address = any(word.split("=")[0] == "--cs_ip" for word in trains)
    if not has_address and _MODE.search(" ".join(program)):
        trains.append("--cs_ip=IP:PORT")
    return join([*launcher, *trains])


# Flags that select the mode of the example programs.
_MODE = re.compile(
    r"(?:^| )(?:(?:--mode[= ]|-m ?)(?:train|train_and_eval|eval|compile_only|validate_only)"
    r"|--(?:compile|validate)_only)(?: |$)"
)


# CPUs used by other programs, and their fraction of a node, from which on rates are not trusted.
_BUSY_CPUS, _BUSY_SHARE = 0.25, 0.05
_LONGER_FACTOR = 4  # rates that did not settle get this many times as long
_LARGE_MODEL_ERROR = 0.15
_HARDLY = 0.01  # fraction of an input's bytes


def first_epoch_note(cpus_per_task: Sequence[int]) -> str:
    """State that rates with these numbers of CPUs per task (empty: all) are those of the first epoch."""
    some = f" with {' or '.join(map(str, cpus_per_task))} CPUs per task" if cpus_per_task else ""
    return (
        f"No epoch ended during the measurements{some}, so {'these' if some else 'the'} rates are those of "
        "the first epoch; later epochs may be faster because of a cache or of files in the page cache. With "
        "--cold, files are read from the disk."
    )


def cold_notes(cold: ColdFiles, measurements: Sequence[Measurement]) -> list[str]:
    """State which files were dropped before the first epoch, and whether it may not have been cold."""
    where = ", ".join(map(str, cold.folders))
    notes = [
        f"Cold: {plural(cold.files, 'file')} below {where}, {format_bytes(cold.size_bytes)} in total, "
        f"{'was' if cold.files == 1 else 'were'} dropped from the page cache before the first epoch. Caches "
        "of another machine or of the disk itself are not affected."
    ]
    read = [(one.first_epoch_disk_bytes_per_sample, one.bytes_per_sample) for one in measurements]
    if any(disk is not None and disk < _HARDLY * size for disk, size in read):
        notes.append(
            "Hardly anything was read from a disk in the first epoch, so it was not cold: the input reads "
            "other files or keeps them in memory, or they are on tmpfs, mapped by a program, or on a network "
            "file system whose reads the kernel does not count."
        )
    return notes


def file_notes(split: Split | None, limits: Limits) -> tuple[str, ...]:
    """State that there are fewer files than the workers that the nodes have room for."""
    if split is None:
        return ()
    room = max(one.workers for one in list_layouts(replace(limits, files=None)))
    if room <= split.files:
        return ()
    return (
        f"The input has {plural(split.files, 'file')}, each of which is read by one worker ({split.op} at "
        f"{split.source or 'a library'}), and the nodes have room for {room} workers. Additional workers "
        "would have nothing to read, so layouts with more workers than files are omitted. Write the data to "
        "more files, or shard the records after reading (each worker then reads all files).",
    )


def unsettled_reasons(measurements: Sequence[Measurement], node_cpus: int) -> tuple[str, ...]:
    """Return the reasons why measurements do not support a verdict; nothing if they do."""
    reasons = []
    busy = max(one.other_cpus for one in measurements)
    if _is_disturbed(busy, node_cpus):
        reasons.append(f"other programs kept up to {busy:.1f} of {plural(node_cpus, 'CPU')} busy")
    count = sum(not one.settled for one in measurements)
    if count:
        reasons.append(f"{count} of {plural(len(measurements), 'rate')} did not settle in time")
    return tuple(reasons)


def measure_again(
    measurements: Sequence[Measurement],
    node_cpus: int,
    seconds: float,
    command: tuple[str, ...],
    flags: Sequence[str] = (),
) -> str:
    """State how to get measurements that settle, with the command to type.

    Args:
        measurements: The unsettled measurements.
        node_cpus: CPUs of the node.
        seconds: Maximum time that each of them had.
        command: The user's command.
        flags: Other flags of the analysis.
    """
    longer = any(not one.settled for one in measurements)
    where = ""
    if _is_disturbed(max(one.other_cpus for one in measurements), node_cpus):
        where = " on a node without other programs (for example in an exclusive job of Slurm)"
    time = [f"--seconds={_LONGER_FACTOR * seconds:g}"] if longer else []
    return f"Measure again{where}: {join(['cs_input_analyzer', *time, *flags, *command])}"


def _is_disturbed(other_cpus: float, node_cpus: int) -> bool:
    """Return True if other programs use enough of a node to change its rates."""
    return other_cpus > max(_BUSY_CPUS, _BUSY_SHARE * node_cpus)


def settling_notes(measurements: Sequence[Measurement]) -> list[str]:
    """State that some measurements would have needed more time."""
    count = sum(not one.settled for one in measurements)
    if not count:
        return []
    return [
        f"{count} of {plural(len(measurements), 'measurement')} needed more time (--seconds): a copy "
        f"delivered fewer than {FEWEST_BATCHES} batches, the rate was not steady yet, or its interval is "
        "wider than requested."
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
    if _is_disturbed(busy, limits.node_cpus):
        notes.append(
            f"Other programs used up to {busy:.1f} of the {limits.node_cpus} CPUs during the measurements: "
            "on an idle node the rates are higher."
        )
    notes += settling_notes(measurements)
    if model.relative_error > _LARGE_MODEL_ERROR:
        notes.append(
            f"The fitted model deviates from the measurements by {100 * model.relative_error:.0f} %: rely on "
            "the measured rates rather than on predicted ones."
        )
    if any(limits.memory_binds(plan.cpus_per_task) for plan in todo):
        each = limits.memory_per_task_bytes / 2**30
        notes.append(f"A task needs {each:.1f} GiB: memory, not CPUs, limits the tasks of a node.")
    if limits.nodes > 1:
        notes.append(
            "One node was measured; predictions do not include resources that nodes share, such as a file "
            "server."
        )
    if target is None:
        notes.append(
            "There is no target rate, so the layout with the highest rate is recommended. To get one, "
            "compile first (--mode=compile_only), or give --target-samples-per-s."
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
        f"{nodes} nodes like the measured one are expected to exceed the target by "
        f"{format_percent(HEADROOM)}; --available-nodes={nodes} shows their layout.",
    )

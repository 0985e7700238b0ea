"""What text and page have in common: numbers for readers, the verdict, the command to train with. Pure."""

from __future__ import annotations

import math
import re
from shlex import join

from input_analyzer.analysis import Analysis, Layout, Measurement, Recommendation, Target
from input_analyzer.recommend import HEADROOM

_MANY_TIMES = 10.0
"""From there on a ratio is told as a factor: nobody reads 11,831 %."""
_LEAST_US, _LEAST_SHARE = 0.001, 0.001
_NEARLY_ALL = 0.995
"""What would be rounded to 100 % and is less."""


def rate(value: float) -> str:
    """1,559,633 or 12.25 or 0.00001234: digits that a reader can use, never an exponent."""
    if abs(value) >= 999.95:  # with four digits 1000, too
        return f"{value:,.0f}"
    text = f"{value:.4g}"
    if "e" not in text:
        return text
    decimals = 3 - math.floor(math.log10(abs(value)))
    return f"{value:.{decimals}f}".rstrip("0")


def microseconds(value: float | None) -> str:
    """Time of a stage per sample; less than a nanosecond is noise."""
    if value is None:
        return "-"
    return rate(value) if value >= _LEAST_US or not value else f"< {_LEAST_US}"


def share(part: float) -> str:
    """Part of a stage in the time of all; less than a thousandth is noise."""
    return percent(part) if part >= _LEAST_SHARE or not part else f"< {percent(_LEAST_SHARE)}"


def percent(part: float) -> str:
    """A part as percent: 85 %, 0.61 %, 1,250 %."""
    value = 100 * part
    if abs(value) >= 10:
        return f"{value:,.0f} %"
    return f"{value:.2g} %" if abs(value) >= 1e-4 or not value else "0 %"


def of_target(ratio: float) -> str:
    """A rate by the target: 85 %, or 119 times."""
    return f"{ratio:,.0f} times" if ratio >= _MANY_TIMES else percent(ratio)


def above(headroom: float) -> str:
    """By what a rate exceeds the target: "7.7 % more than", or "119 times", or "just"."""
    if 1 + headroom >= _MANY_TIMES:
        return f"{1 + headroom:,.0f} times"
    if headroom < HEADROOM:  # never as much as that
        headroom = math.floor(1000 * headroom + 1e-9) / 1000
    return f"{percent(headroom)} more than" if headroom else "just"


def from_disk(one: Measurement) -> float | None:
    """Bytes that a sample of a first epoch was read from disks with; None where no such epoch was measured.

    What was paged in meanwhile, the program's own code for instance, says nothing about the input.
    """
    return None if one.first_epoch_samples_per_s is None else one.first_epoch_disk_bytes_per_sample


def counted(count: int, noun: str) -> str:
    """ "1 node", "2 nodes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shape(layout: Layout) -> str:
    """A layout in words."""
    return (
        f"{counted(layout.nodes, 'node')} x {counted(layout.tasks_per_node, 'task')} x "
        f"{counted(layout.cpus_per_task, 'CPU')}"
    )


def no_findings(analysis: Analysis) -> str:
    """What an empty list of findings means."""
    return (
        "nothing to improve" if analysis.stages else "not looked at: the stages are not known, see below why"
    )


def unaccounted(analysis: Analysis) -> str | None:
    """The CPU time that is that of no stage; None where it is not known."""
    beside = analysis.unaccounted_cpu_us_per_sample
    if beside is None:
        return None
    stages = sum(stage.cpu_us_per_sample or 0.0 for stage in analysis.stages if not stage.once)
    if beside <= 0:
        return (
            f"CPU time in no stage: none; a copy used no more than the {rate(stages)} us per sample of the "
            "stages, each of which is timed alone."
        )
    return (
        f"CPU time in no stage: {rate(beside)} us per sample, beside {rate(stages)} us of the stages; it "
        "goes into calls and into handing elements and batches over, between threads, processes and in "
        "memory."
    )


def fit(analysis: Analysis) -> str:
    """How far the model is from the measurements; the rounding of a fit is not told."""
    error = analysis.model.relative_error
    if error < 1e-6:
        return "it goes through all measured points"
    return f"it is {percent(error)} away from the measurements (root mean square)"


def subject(analysis: Analysis) -> str:
    """What was analysed; of a program that trains several times it is only the first input."""
    found = analysis.subject
    where = f" ({found.source})" if found.source else ""
    which = ", with which the program first trains or compiles" if of_program(found.command) else ""
    return f"{found.function}{where}{which}; {found.framework}"


def of_program(command: tuple[str, ...]) -> bool:
    """Whether a program was analysed, and not a function that is named by itself."""
    return len(command) > 1 or ":" not in command[0]


def verdict(analysis: Analysis) -> str:
    """Whether the training will wait for input, in one to three sentences."""
    found, target = analysis.recommendation, analysis.target
    workers = counted(found.layout.workers, "worker")
    verb = "delivers" if found.layout.workers == 1 else "deliver"
    expected = f"{workers} of the recommended layout {verb} {rate(found.samples_per_s)} samples/s"
    if target is None or found.headroom is None or found.utilization is None:
        return (
            f"{expected}, the highest rate that was found. Without a target nobody can say whether that is "
            "enough."
        )
    wanted = f"the {rate(target.samples_per_s)} samples/s that the training can use"
    if analysis.input_bound:
        part = "nearly all" if found.utilization >= _NEARLY_ALL else percent(found.utilization)
        return (
            f"Even the best layout of {counted(analysis.available_nodes, 'node')} "
            f"reaches {rate(found.samples_per_s)} of {wanted}, so the accelerator is expected to work "
            f"{part} of the time.{_doubt(found, target)}"
        )
    expected = f"{expected}, {above(found.headroom)} {wanted}"
    tight = ""
    if found.headroom < HEADROOM:
        tight = (
            f" That is less than the {percent(HEADROOM)} that are to be kept for sending the batches, "
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
        f"{rate(found.low)} and {rate(found.high)} samples/s. A quiet machine, or more time (--seconds), "
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
    """How to train with the recommended layout; without the command where a function was analysed."""
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

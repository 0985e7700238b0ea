"""What text and page have in common: numbers for readers, the verdict, the command to train with. Pure."""

from __future__ import annotations

import re
from shlex import join

from input_analyzer.analysis import Analysis, Layout


def rate(value: float) -> str:
    """1,559,633 or 12.25: digits that a reader can use."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def size(value: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def percent(part: float) -> str:
    """A part as percent: 85 %, 0.61 %."""
    value = 100 * part
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.2g} %"


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
    return (
        f"CPU time in no stage: {beside:,.4g} us per sample, beside {stages:,.4g} us of the stages; it goes "
        "into calls and into handing elements and batches over, between threads, processes and in memory."
    )


def fit(analysis: Analysis) -> str:
    """How far the model is from the measurements; the rounding of a fit is not told."""
    error = analysis.model.relative_error
    if error < 1e-6:
        return "it goes through all measured points"
    return f"it is {percent(error)} away from the measurements (root mean square)"


def verdict(analysis: Analysis) -> str:
    """Whether the training will wait for input, in one or two sentences."""
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
        return (
            f"Even the best layout of {counted(analysis.available_nodes, 'node')} "
            f"reaches {rate(found.samples_per_s)} of {wanted}, so the accelerator is expected to work "
            f"{percent(found.utilization)} of the time."
        )
    return f"The training will not wait for input: {expected}, {percent(found.headroom)} more than {wanted}."


def title(analysis: Analysis) -> str:
    """The verdict in a few words."""
    if analysis.input_bound is None:
        return "How fast the input can be"
    return "The training will be input-bound" if analysis.input_bound else "The input is fast enough"


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
    program = command if len(command) > 1 else ("python", "run.py", "--mode=train")
    return join([*words, *_training_words(program)])


def _training_words(command: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a program that trains where they were to validate or to compile, and on a CS system.

    A program that gets no address trains on the CPU of its node.
    """
    kept = [word for word in command if word not in ("--compile_only", "--validate_only")]
    trains = [re.sub(r"^(--mode=|-m)?(compile_only|validate_only)$", r"\1train", word) for word in kept]
    addressed = any(word.split("=")[0] == "--cs_ip" for word in trains)
    return tuple(trains if addressed else [*trains, "--cs_ip=IP:PORT"])

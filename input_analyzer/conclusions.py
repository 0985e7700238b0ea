"""Draw conclusions from measurements: predicted rates, the recommended layout, and the bottleneck stage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cgc.manifest import REPORT_JSON
from cs_toolkit.files import read_json
from input_analyzer.analysis import Bottleneck, Layout, Measurement, Prediction, Recommendation, Target
from input_analyzer.rate_model import RateModel
from input_rules.formatting import format_number
from input_rules.throughput import LARGEST_RATIO, StageCost, time_us

# Margin over the target for the smallest layout: only the input was measured, while workers of a training
# run also send their batches.
HEADROOM = 0.1

# Fraction of a node's memory that tasks may use.
USABLE_MEMORY = 0.9

_SAME_RATE = 0.02  # rates within this fraction count as equal


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that layouts may use.

    Attributes:
        nodes: available nodes, all like the measured one.
        node_cpus: CPUs of a node.
        node_memory_bytes: memory of a node.
        memory_per_task_bytes: memory of a task.
        cpus_per_task: numbers of CPUs per task that were measured.
        files: files that are distributed whole, at least 1, so that more workers would have nothing to read;
            None: any number of workers has the same amount to read.
    """

    nodes: int
    node_cpus: int
    node_memory_bytes: int
    memory_per_task_bytes: int
    cpus_per_task: tuple[int, ...]
    files: int | None = None

    def most_tasks(self, cpus_per_task: int) -> int:
        """Return the tasks that fit on a node by CPUs and memory, at least one."""
        by_cpus = self.node_cpus // cpus_per_task
        usable = int(USABLE_MEMORY * self.node_memory_bytes)
        by_memory = usable // self.memory_per_task_bytes if self.memory_per_task_bytes else by_cpus
        return max(1, min(by_cpus, by_memory))

    def memory_binds(self, cpus_per_task: int) -> bool:
        """Return True if memory allows fewer tasks than the CPUs do."""
        return self.most_tasks(cpus_per_task) < max(1, self.node_cpus // cpus_per_task)


def list_layouts(limits: Limits) -> Iterator[Layout]:
    """Yield all layouts within the limits, the smallest first: by nodes, then CPUs in use, then tasks.

    Every task has its own CPUs. A job of one task, in which worker and chief share a process, is included
    only if no larger one is possible.
    """
    most = limits.files
    found = [
        Layout(nodes, tasks, cpus)
        for nodes in range(1, limits.nodes + 1)
        for cpus in limits.cpus_per_task
        for tasks in range(1, limits.most_tasks(cpus) + 1)
        if most is None or Layout(nodes, tasks, cpus).workers <= most
    ]
    several = [layout for layout in found if layout.nodes * layout.tasks_per_node > 1]
    yield from sorted(several or found, key=_layout_size)


def predict_rate(model: RateModel, layout: Layout) -> float:
    """Return the samples per second of all workers of a layout."""
    # The nodes are added up: shared resources such as a file server cannot be measured on one node. The chief
    # is one of the first node's tasks.
    tasks, cpus = layout.tasks_per_node, layout.cpus_per_task
    first_node = layout.workers - (layout.nodes - 1) * tasks
    return (layout.nodes - 1) * model.rate(tasks, cpus) + model.rate(first_node, cpus)


def predict_layouts(model: RateModel, limits: Limits) -> tuple[Prediction, ...]:
    """Predict the rates of all layouts within the limits, the smallest layout first."""
    # If files are distributed unevenly, an epoch lasts until the worker with the most files has read them,
    # while others wait or repeat records. So only the `usable_fraction` of a rate counts.
    return tuple(
        Prediction(layout, predict_rate(model, layout) * usable_fraction(limits.files, layout.workers))
        for layout in list_layouts(limits)
    )


def usable_fraction(files: int | None, workers: int) -> float:
    """Return the fraction of the rate of all workers that reads each record of an epoch once; at most 1."""
    # The mean of their shares divided by the largest share: 5 workers read 6 files in the time in which one
    # of them reads 2, as 3 workers do. Files are assumed to have the same size.
    return 1.0 if files is None else files / workers / math.ceil(files / workers)


_MOST_NODES = 256


def nodes_needed(model: RateModel, limits: Limits, target_samples_per_s: float) -> int | None:
    """Return the fewest nodes beyond `limits` that reach a target with `HEADROOM`; else None."""
    wanted = target_samples_per_s * (1 + HEADROOM)
    for nodes in range(limits.nodes + 1, _MOST_NODES + 1):
        for cpus in limits.cpus_per_task:
            for tasks in range(1, limits.most_tasks(cpus) + 1):
                layout = Layout(nodes, tasks, cpus)
                if limits.files is not None and layout.workers > limits.files:
                    break
                if predict_rate(model, layout) * usable_fraction(limits.files, layout.workers) >= wanted:
                    return nodes
    return None


def recommend(candidates: Sequence[Prediction], target_samples_per_s: float | None) -> Recommendation:
    """Choose the smallest layout that reaches the target with `HEADROOM`, or the best one if none does.

    The best one, also without a target, is the smallest of those within 2 % of the highest rate.

    Raises:
        ValueError: no candidates.
    """
    if not candidates:
        raise ValueError("a recommendation needs at least one layout")
    best_rate = max(candidate.samples_per_s for candidate in candidates)
    enough = best_rate * (1 - _SAME_RATE)
    if target_samples_per_s is not None:
        wanted = target_samples_per_s * (1 + HEADROOM)
        # If no layout has the headroom, still prefer one that reaches the target.
        enough = wanted if best_rate >= wanted else max(enough, min(best_rate, target_samples_per_s))
    chosen = next(
        one for one in sorted(candidates, key=lambda p: _layout_size(p.layout)) if one.samples_per_s >= enough
    )
    if target_samples_per_s is None:
        return Recommendation(chosen.layout, chosen.samples_per_s, None, None)
    ratio = chosen.samples_per_s / target_samples_per_s
    return Recommendation(chosen.layout, chosen.samples_per_s, ratio - 1, min(1.0, ratio))


def _layout_size(layout: Layout) -> tuple[int, int, int, int]:
    tasks, cpus = layout.tasks_per_node, layout.cpus_per_task
    return layout.nodes, layout.nodes * tasks * cpus, tasks, cpus


def add_interval(
    found: Recommendation, measurements: Sequence[Measurement], model_error: float
) -> Recommendation:
    """Add the interval of its rate to a recommendation.

    It combines the relative interval of the nearest measurement (by CPUs per task, then by tasks of a node,
    where the chief does not count) with the distance of the model from all measurements.

    Args:
        found: the recommendation.
        measurements: all measurements, at least one.
        model_error: root mean square of the relative distance of the model from the measurements.
    """
    layout, expected = found.layout, found.samples_per_s
    workers = layout.workers if layout.nodes == 1 else layout.tasks_per_node  # without the chief

    def distance(one: Measurement) -> tuple[int, int, float]:
        # Of two measurements at the same distance, the one with the wider interval is used.
        width = (one.high - one.low) / one.samples_per_s
        return abs(one.cpus_per_task - layout.cpus_per_task), abs(one.tasks - workers), -width

    nearest = min(measurements, key=distance)
    # The two errors are independent, so their squares are added. Errors of several nodes are not assumed to
    # be independent.
    below = math.hypot(1 - nearest.low / nearest.samples_per_s, model_error)
    above = math.hypot(nearest.high / nearest.samples_per_s - 1, model_error)
    return replace(found, low=expected * max(0.0, 1 - below), high=expected * (1 + above))


def read_report_target(folders: Iterable[Path]) -> Target | None:
    """Return the rate of the newest compile report in the artifacts below `folders`; None without one.

    Reports that cannot be read are ignored.
    """

    def modification_time(path: Path) -> float:
        with suppress(OSError):  # it may have been removed in the meantime
            return path.stat().st_mtime
        return 0.0

    found = [path for folder in folders for path in folder.glob(f"cs_*/{REPORT_JSON}")]
    for path in sorted(found, key=modification_time, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            report = read_json(path)
            rate = float(report["overall"]["samples_per_s"])
            if rate > 0:
                return Target(rate, f"estimated for the wafer in {relative_path(path)}")
    return None


def relative_path(path: Path) -> str:
    """Return a path relative to the current directory if it is below that."""
    here = Path.cwd()
    full = path.absolute()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(path)


_NOTEWORTHY_RATIO = 1.005
_NEGLIGIBLE = 0.05  # fraction of a time that is within its error
_SAME_GAIN = 0.02  # difference of equal gains, as a fraction of the whole time


def find_bottleneck(
    stages: Sequence[StageCost], cpus: int = 1, unaccounted_us: float = 0.0
) -> Bottleneck | None:
    """Find the stage without which the pipeline would be fastest, after the first epoch.

    In a single thread, and on one CPU if nothing waits, that is the stage with the largest self time. If
    lanes run in parallel it is a stage of the slowest lane, and if there are too few CPUs for all lanes it is
    the stage with the most CPU time. Of several stages with the same gain it is the one with the largest self
    time.

    Args:
        stages: All stages of a pipeline.
        cpus: CPUs of a task.
        unaccounted_us: CPU time per sample outside of all stages, which remains whatever stage is removed.

    Returns:
        None if no stage was timed.
    """
    timed = [stage for stage in stages if stage.self_time_us_per_sample and not stage.once]
    if not timed:
        return None
    whole = time_us(timed, cpus)
    spared = {stage.name: whole - time_us(_without(timed, stage), cpus) for stage in timed}
    most = max(spared.values())
    chosen = max((s for s in timed if spared[s.name] >= most - _SAME_GAIN * whole), key=_self_time_us)
    return Bottleneck(chosen.name, chosen.op, _describe_bottleneck(chosen, timed, cpus, unaccounted_us))


def _without(stages: Sequence[StageCost], left_out: StageCost) -> list[StageCost]:
    return [stage for stage in stages if stage is not left_out]


def _describe_bottleneck(
    chosen: StageCost, timed: Sequence[StageCost], cpus: int, unaccounted_us: float
) -> str:
    of_stages = sum(map(_self_time_us, timed))
    waits, time = chosen.wait_us_per_sample or 0.0, _self_time_us(chosen)
    if waits < _NEGLIGIBLE * time:
        text = f"{format_number(time)} us of computing per sample"
    elif waits > (1 - _NEGLIGIBLE) * time:
        text = f"{format_number(time)} us of waiting per sample"
    else:
        text = f"{format_number(time)} us per sample, of which {format_number(waits)} us waiting"
    threads = chosen.lane.threads_on(cpus)
    where = "" if threads == 1 else f" in {threads} threads"
    text = f"{text}{where}, {100 * time / of_stages:.0f} % of the time of all stages"
    on = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    if unaccounted_us > of_stages:
        return (
            f"{text}; more time is spent outside of stages: {format_number(unaccounted_us)} us of CPU time "
            "per sample on calls and on passing elements on, which fewer and larger elements reduce"
        )
    left = time_us(_without(timed, chosen), cpus, unaccounted_us)
    if left <= 0 or len(timed) == 1:
        return text
    times = time_us(timed, cpus, unaccounted_us) / left
    if unaccounted_us and times < _NOTEWORTHY_RATIO:
        return text
    if times >= LARGEST_RATIO:
        more = f"more than {LARGEST_RATIO:.0f} times"
        return f"{text}; almost nothing else takes time: without it a task with {on} could be {more} as fast"
    faster = f"a task with {on} could be {times:.3g} times as fast"
    if unaccounted_us <= _SAME_GAIN * of_stages:
        return f"{text}; without it {faster}"
    return (
        f"{text}; without it, and with the same {format_number(unaccounted_us)} us of CPU time outside of "
        f"stages (calls, passing elements on), {faster}; a change that also saves some of the latter gains "
        "more"
    )


def _self_time_us(stage: StageCost) -> float:
    return stage.self_time_us_per_sample or 0.0

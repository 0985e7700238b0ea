"""From a fitted rate model to the layout of a training. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cgc.manifest import REPORT_JSON
from input_analyzer.analysis import Bottleneck, Layout, Measurement, Prediction, Recommendation, Target
from input_analyzer.rate_model import RateModel
from input_rules.formatting import format_number
from input_rules.throughput import LARGEST_RATIO, StageCost, time_us

HEADROOM = 0.1
"""By so much the smallest layout exceeds the target: the measured rate is that of the input alone, while
workers of a training also send their batches."""

USABLE_MEMORY = 0.9
"""Part of a node's memory that tasks may fill."""

_AS_GOOD = 0.02  # rates that are so near to each other count as the same


@dataclass(frozen=True, slots=True)
class Limits:
    """What layouts may use.

    Attributes:
        nodes: nodes that are available, all like the measured one.
        node_cpus: CPUs of a node.
        node_memory_bytes: memory of a node.
        memory_per_task_bytes: memory of a task.
        cpus_per_task: the numbers of CPUs per task that were measured.
        files: that workers share out whole, at least 1, so no more workers have something to read; None: any
            number has, and as much as any other.
    """

    nodes: int
    node_cpus: int
    node_memory_bytes: int
    memory_per_task_bytes: int
    cpus_per_task: tuple[int, ...]
    files: int | None = None

    def most_tasks(self, cpus_per_task: int) -> int:
        """Tasks that fit on a node by CPUs and by memory, at least one."""
        by_cpus = self.node_cpus // cpus_per_task
        usable = int(USABLE_MEMORY * self.node_memory_bytes)
        by_memory = usable // self.memory_per_task_bytes if self.memory_per_task_bytes else by_cpus
        return max(1, min(by_cpus, by_memory))

    def memory_binds(self, cpus_per_task: int) -> bool:
        """Whether memory allows fewer tasks than the CPUs do."""
        return self.most_tasks(cpus_per_task) < max(1, self.node_cpus // cpus_per_task)


def layouts(limits: Limits) -> Iterator[Layout]:
    """All layouts within the limits, the smallest first: by nodes, then CPUs in use, then tasks.

    Every task has CPUs of its own. A job of one task, whose worker shares the chief's process, is there only
    where no larger one is possible.
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
    yield from sorted(several or found, key=_size)


def predict(model: RateModel, layout: Layout) -> float:
    """Samples per second of all workers of a layout; the chief is one of the first node's tasks.

    Nodes add up: what they share, a file server for instance, one node cannot measure.
    """
    tasks, cpus = layout.tasks_per_node, layout.cpus_per_task
    first_node = layout.workers - (layout.nodes - 1) * tasks
    return (layout.nodes - 1) * model.rate(tasks, cpus) + model.rate(first_node, cpus)


def predictions(model: RateModel, limits: Limits) -> tuple[Prediction, ...]:
    """Of all layouts within the limits, the smallest first.

    Where files are shared out unevenly, an epoch takes until the worker with the most of them has read these,
    and others wait, or go on with records that they have delivered before. So a rate counts for the part of
    it that `used_part` tells.
    """
    return tuple(
        Prediction(layout, predict(model, layout) * used_part(limits.files, layout.workers))
        for layout in layouts(limits)
    )


def used_part(files: int | None, workers: int) -> float:
    """The part of the rate of all workers that reads an epoch, each record once; at most 1.

    The mean of their shares over the largest one: 5 workers have 6 files in the time in which one has 2, as 3
    workers do. Files are taken to be of one size.
    """
    return 1.0 if files is None else files / workers / math.ceil(files / workers)


_MOST_NODES = 256


def nodes_for(model: RateModel, limits: Limits, target_samples_per_s: float) -> int | None:
    """The fewest nodes that reach a target with `HEADROOM`, where more than `limits` has do; else None."""
    wanted = target_samples_per_s * (1 + HEADROOM)
    for nodes in range(limits.nodes + 1, _MOST_NODES + 1):
        for cpus in limits.cpus_per_task:
            for tasks in range(1, limits.most_tasks(cpus) + 1):
                layout = Layout(nodes, tasks, cpus)
                if limits.files is not None and layout.workers > limits.files:
                    break
                if predict(model, layout) * used_part(limits.files, layout.workers) >= wanted:
                    return nodes
    return None


def recommend(candidates: Sequence[Prediction], target_samples_per_s: float | None) -> Recommendation:
    """The smallest layout that reaches the target with `HEADROOM`; where none does, the best one.

    The best one is the smallest of those whose rate is within 2 % of the highest. So it is without a target.

    Raises:
        ValueError: no candidates.
    """
    if not candidates:
        raise ValueError("a recommendation needs at least one layout")
    best_rate = max(candidate.samples_per_s for candidate in candidates)
    enough = best_rate * (1 - _AS_GOOD)
    if target_samples_per_s is not None:
        wanted = target_samples_per_s * (1 + HEADROOM)
        # A layout that misses the headroom is no reason to take one that misses the target.
        enough = wanted if best_rate >= wanted else max(enough, min(best_rate, target_samples_per_s))
    chosen = next(
        one for one in sorted(candidates, key=lambda p: _size(p.layout)) if one.samples_per_s >= enough
    )
    if target_samples_per_s is None:
        return Recommendation(chosen.layout, chosen.samples_per_s, None, None)
    ratio = chosen.samples_per_s / target_samples_per_s
    return Recommendation(chosen.layout, chosen.samples_per_s, ratio - 1, min(1.0, ratio))


def _size(layout: Layout) -> tuple[int, int, int, int]:
    tasks, cpus = layout.tasks_per_node, layout.cpus_per_task
    return layout.nodes, layout.nodes * tasks * cpus, tasks, cpus


def with_interval(
    found: Recommendation, measurements: Sequence[Measurement], model_error: float
) -> Recommendation:
    """A recommendation with the interval of its rate.

    Relative to the rate it has the interval of the measurement that is nearest to a node of its: with the
    CPUs per task of the layout and, of these, as many tasks as the node has workers, or the next smaller or
    larger number. What is wrong with one node may be wrong with all. The distance of the model from all
    measurements is independent of that, so the squares of the two add up.

    Args:
        found: what is recommended.
        measurements: all of them, at least one.
        model_error: root mean square of the relative distance of the model from the measurements.
    """
    layout, expected = found.layout, found.samples_per_s
    workers = layout.workers if layout.nodes == 1 else layout.tasks_per_node  # without the chief
    nearest = _nearest(measurements, workers, layout.cpus_per_task)
    below = math.hypot(1 - nearest.low / nearest.samples_per_s, model_error)
    above = math.hypot(nearest.high / nearest.samples_per_s - 1, model_error)
    return replace(found, low=expected * max(0.0, 1 - below), high=expected * (1 + above))


def _nearest(measurements: Sequence[Measurement], workers: int, cpus: int) -> Measurement:
    """The measurement that is nearest to a node; of two that are as near the looser one."""

    def distance(one: Measurement) -> tuple[int, int, float]:
        width = (one.high - one.low) / one.samples_per_s
        return abs(one.cpus_per_task - cpus), abs(one.tasks - workers), -width

    return min(measurements, key=distance)


def target_of_report(folders: Iterable[Path]) -> Target | None:
    """Of the newest compile report in the artifacts below `folders`; None without one.

    A report that cannot be read is passed over, as if it were not there.
    """
    found = [path for folder in folders for path in folder.glob(f"cs_*/{REPORT_JSON}")]
    for path in sorted(found, key=_age, reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            report = json.loads(path.read_text(encoding="utf-8"))
            rate = float(report["overall"]["samples_per_s"])
            if rate > 0:
                return Target(rate, f"estimated for the wafer in {shown(path)}")
    return None


def shown(path: Path) -> str:
    """A path as a reader of the report knows it: from the current directory on where it lies below that."""
    here = Path.cwd()
    full = path.absolute()
    return str(full.relative_to(here)) if full.is_relative_to(here) else str(path)


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


_FASTER = 1.005  # what is less is not worth a word
_SOME = 0.05  # of a time, what is less is within its error
_ALIKE = 0.02  # gains that differ by so little, as parts of the whole time, are the same


def bottleneck_of(
    stages: Sequence[StageCost], cpus: int = 1, unaccounted_us: float = 0.0
) -> Bottleneck | None:
    """The stage without which the pipeline would be fastest, once the first epoch is over.

    In one thread, and on one CPU where nothing waits, that is the stage with the largest self time. Where
    lanes work side by side it is a stage of the slowest one, and where the CPUs are too few for all of them
    the stage whose CPU time they lack most. Of several that are alike in this the one with the largest self
    time is taken.

    Args:
        stages: All stages of a pipeline.
        cpus: CPUs of a task.
        unaccounted_us: CPU time per sample in no stage, which stays whatever stage is left out.

    Returns:
        None where no stage was timed.
    """
    timed = [stage for stage in stages if stage.self_time_us_per_sample and not stage.once]
    if not timed:
        return None
    whole = time_us(timed, cpus)
    spared = {stage.name: whole - time_us(_without(timed, stage), cpus) for stage in timed}
    most = max(spared.values())
    chosen = max((s for s in timed if spared[s.name] >= most - _ALIKE * whole), key=_time)
    return Bottleneck(chosen.name, chosen.op, _reason(chosen, timed, cpus, unaccounted_us))


def _without(stages: Sequence[StageCost], left_out: StageCost) -> list[StageCost]:
    return [stage for stage in stages if stage is not left_out]


def _reason(chosen: StageCost, timed: Sequence[StageCost], cpus: int, unaccounted_us: float) -> str:
    of_stages = sum(map(_time, timed))
    share = 100 * _time(chosen) / of_stages
    threads = chosen.lane.threads_on(cpus)
    where = "" if threads == 1 else f" in {threads} threads"
    text = f"{_spent(chosen)}{where}, {share:.0f} % of the time of all stages"
    on = "1 CPU" if cpus == 1 else f"{cpus} CPUs"
    if unaccounted_us > of_stages:
        return (
            f"{text}; more time goes into no stage: {format_number(unaccounted_us)} us of CPU time per "
            "sample into "
            "calls and into handing elements over, which fewer and larger ones spare"
        )
    left = time_us(_without(timed, chosen), cpus, unaccounted_us)
    if left <= 0 or len(timed) == 1:
        return text
    times = time_us(timed, cpus, unaccounted_us) / left
    if unaccounted_us and times < _FASTER:
        return text
    if times >= LARGEST_RATIO:
        return f"{text}; almost nothing else takes time: without it a task with {on} could be {_MORE} as fast"
    faster = f"a task with {on} could be {times:.3g} times as fast"
    if unaccounted_us <= _ALIKE * of_stages:
        return f"{text}; without it {faster}"
    return (
        f"{text}; without that, and with the {format_number(unaccounted_us)} us of CPU time in no stage "
        "(calls, "
        f"handing elements over) as they are, {faster}; a change that spares some of these, too, gives more"
    )


_MORE = f"more than {LARGEST_RATIO:.0f} times"


def _spent(stage: StageCost) -> str:
    """The time of a stage, and what it does in it."""
    waits, time = stage.wait_us_per_sample or 0.0, _time(stage)
    if waits < _SOME * time:
        return f"{format_number(time)} us of computing per sample"
    if waits > (1 - _SOME) * time:
        return f"{format_number(time)} us of waiting per sample"
    return f"{format_number(time)} us per sample, of that {format_number(waits)} us waiting"


def _time(stage: StageCost) -> float:
    return stage.self_time_us_per_sample or 0.0

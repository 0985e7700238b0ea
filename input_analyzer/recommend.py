"""From a fitted rate model to the layout of a training. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from input_analyzer.analysis import Layout, Prediction, Recommendation
from input_analyzer.rate_model import RateModel

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

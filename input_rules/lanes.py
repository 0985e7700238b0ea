"""Which stages of a pipeline work side by side, and on how many threads. Pure.

A lane is a set of stages that take turns in the same threads. In tf.data everything between two hand-overs is
done by one thread: `prefetch` hands over, and so does whatever makes parallel calls; the calls themselves are
a lane of their own. All functions of a process are called in one pool, which has a thread for each of its
CPUs: where calls wait, no more of them run at once. Three optimizations that TensorFlow applies unless it is
told not to change what was written: a `map` whose function keeps no state becomes parallel, a `map` straight
before `batch` works ahead of it, and behind the last stage something is prefetched. (All this as seen with
TensorFlow 2.21 and `tf.data.experimental.get_model_proto`.) In a torch DataLoader the workers are a lane, and
the main process is another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from input_rules.pipeline import AUTOTUNE, Pipeline, Stage


@dataclass(frozen=True, slots=True)
class Lane:
    """Where a stage is worked on.

    Attributes:
        number: stages with the same number take turns.
        threads: so many threads, or processes, work on the lane at once.
        threads_per_cpu: where that depends on the CPUs: threads for each of them; else 0.
        locked: computing holds Python's lock, which one thread of a process has at a time.
        pooled: it takes a thread of the pool that has one for each CPU.
    """

    number: int
    threads: int = 1
    threads_per_cpu: float = 0.0
    locked: bool = False
    pooled: bool = False

    def threads_on(self, cpus: float) -> int:
        """Threads of a task with so many CPUs."""
        if not self.threads_per_cpu:
            return max(1, min(self.threads, int(cpus))) if self.pooled else self.threads
        # Without the margin 3 * (1 / 3) would be 2 for one rounding or the other.
        return max(1, math.ceil(self.threads_per_cpu * cpus - 1e-9))


ONE_LANE = Lane(0)
"""Of a pipeline in which one thread does everything."""


def lanes(pipeline: Pipeline) -> Mapping[str, Lane]:
    """The lane of every stage by its name."""
    return _of_loader(pipeline) if pipeline.framework == "torch" else _of_dataset(pipeline)


def _of_loader(pipeline: Pipeline) -> dict[str, Lane]:
    workers = max((_number(stage, "num_workers") or 0 for stage in pipeline.stages), default=0)
    if not workers:
        return {stage.name: Lane(0) for stage in pipeline.stages}
    return {stage.name: _lane_in_loader(stage.op, workers) for stage in pipeline.stages}


def _lane_in_loader(op: str, workers: int) -> Lane:
    """That of a stage of a torch DataLoader with so many worker processes."""
    in_workers = op in ("getitem", "transform", "collate")
    return Lane(1, workers) if in_workers else Lane(0)


def _of_dataset(pipeline: Pipeline) -> dict[str, Lane]:
    optimized = all(stage.attributes.get("optimized") is not False for stage in pipeline.stages)
    readers: dict[str, Stage] = {}
    for stage in pipeline.stages:
        readers.update((name, stage) for name in stage.inputs)
    found: dict[str, Lane] = {}
    fed: dict[str, int] = {}  # number of the lane that feeds a stage which hands over
    count = 0
    for stage in reversed(pipeline.stages):
        reader = readers.get(stage.name)
        calls = _calls(stage, reader, optimized)
        locked, pooled = (stage.attributes.get(name) is True for name in ("python", "pooled"))
        if calls is None and reader is not None and not _hands_over(reader, readers, optimized):
            number = found[reader.name].number
        elif calls is None and reader is not None and reader.name in fed:
            number = fed[reader.name]
        else:
            number = count
            count += 1
            if calls is None and reader is not None:
                fed[reader.name] = number
        threads, per_cpu = calls or (1, 0.0)
        found[stage.name] = Lane(number, threads, per_cpu, locked, pooled)
    return found


def _hands_over(stage: Stage, readers: Mapping[str, Stage], optimized: bool) -> bool:
    """Whether what a stage reads is made in another thread than its own results."""
    if stage.op == "prefetch":
        return _number(stage, "buffer_size") != 0
    return _calls(stage, readers.get(stage.name), optimized) is not None


def _calls(stage: Stage, reader: Stage | None, optimized: bool) -> tuple[int, float] | None:
    """Threads for the calls of a stage, as a number and for each CPU; None where the reading thread calls."""
    calls, length = _number(stage, "num_parallel_calls"), _number(stage, "cycle_length")
    if is_parallel(stage):
        if length is None:
            return (calls, 0.0) if calls is not None and calls > 0 else (1, 1.0)
        if length == AUTOTUNE:
            # A third of the CPUs, as two more threads read ahead of every file.
            return (calls, 0.0) if calls is not None and calls > 0 else (1, 1 / 3)
        return (min(length, calls) if calls is not None and calls > 0 else length, 0.0)
    if stage.op != "map" or not optimized:
        return None
    if stage.attributes.get("stateful") is False:
        return (1, 1.0)
    return (1, 0.0) if reader is not None and reader.op == "batch" else None


def is_parallel(stage: Stage) -> bool:
    """Whether a stage makes calls, or reads datasets, side by side as it is written."""
    return any("Parallel" in kind for kind in stage.kinds)


def _number(stage: Stage, name: str) -> int | None:
    value = stage.attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

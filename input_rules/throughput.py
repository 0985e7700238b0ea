"""How fast the stages of a pipeline are together: lanes, their times, and threads that share CPUs. Pure.

A lane is a set of stages that take turns in the same threads. In tf.data everything between two hand-overs is
done by one thread: `prefetch` hands over, and so does whatever makes parallel calls; the calls themselves are
a lane of their own. All functions of a process are called in one pool, which has a thread for each of its
CPUs: where calls wait, no more of them run at once. Three optimizations that TensorFlow applies unless it is
told not to change what was written: a `map` whose function keeps no state becomes parallel, a `map` straight
before `batch` works ahead of it, and behind the last stage something is prefetched. (All this as seen with
TensorFlow 2.21 and `tf.data.experimental.get_model_proto`.) In a torch DataLoader the workers are a lane, and
the main process is another one.

A sample takes as long as the slowest lane takes for it, or, where that is longer, as all CPUs of the task
need for the CPU time of all stages. Operational analysis knows this as the bound of the bottleneck device
(E. D. Lazowska et al., "Quantitative System Performance", 1984, chapter 5); hand-overs cost extra.

Threads meet at the CPUs although there is CPU time to spare: while one waits, two others may want to compute.
They are machines that break down after a while of waiting and c repairmen, the CPUs, repair in a
time of computing (a closed queue, L. Kleinrock, "Queueing Systems I", 1975, chapter 3, M/M/m//M). If r =
computing / waiting of a thread, k of N threads are at the CPUs for a part of the time that is proportional to

    w(k) = w(k-1) * (N - k + 1) * r / min(k, c)        w(0) = 1

and t(c) = computing * sum w(k) / sum min(k, c) w(k). A CPU that is shared in slices makes that true of any
distribution of the times (F. Baskett et al., "Open, closed, and mixed networks of queues", Journal of the ACM
22, 1975). Threads whose times never vary may do better or worse, as they happen to be in step: t(c) then is
anywhere between max(serial, parallel / c) and serial + (N - 1) / N * parallel (Lazowska).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from input_rules.pipeline import AUTOTUNE, Pipeline, Stage, StageTime


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


NEARLY_ALL = 20.0
"""Where a stage is left out a larger ratio says only that little is left, within the error of the times."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """One step of the pipeline and what it costs; see `pipeline.Stage` and `pipeline.StageTime`.

    Attributes:
        name: tells it from the others of its kind, for example "map_2".
        op: the operation.
        position: place in pipeline order; 0 is a source.
        self_time_us_per_sample: microseconds of this stage alone per sample; None where it was not measured.
        cpu_us_per_sample: the part of it that keeps a CPU busy.
        wait_us_per_sample: the part of it that waits for files, network or a sleep.
        once: it is paid in the first epoch only, because a cache stands behind it.
        source: the user's line as "file:line"; None where no line of the user's made it.
        lane: the stages that it takes turns with, and the threads that work on it.
    """

    name: str
    op: str
    position: int
    self_time_us_per_sample: float | None = None
    cpu_us_per_sample: float | None = None
    wait_us_per_sample: float | None = None
    once: bool = False
    source: str | None = None
    lane: Lane = ONE_LANE

    @classmethod
    def of_stage(cls, stage: Stage, lane: Lane, time: StageTime | None, *, once: bool) -> StageCost:
        """A stage with its measured time; without one it has none."""
        if time is None:
            return cls(stage.name, stage.op, stage.position, source=stage.source, lane=lane)
        times = (time.self_time_us, time.cpu_us, time.wait_us)
        return cls(stage.name, stage.op, stage.position, *times, once, stage.source, lane)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> StageCost:
        """A stage from its JSON object."""
        return cls(**{**value, "lane": Lane(**value["lane"])})


@dataclass(frozen=True, slots=True)
class Pace:
    """Time for a sample in the two parts of `rate_model`'s formula, microseconds.

    Attributes:
        serial_us: of the slowest lane whose number of threads does not depend on the CPUs.
        parallel_us: what CPUs share among them: the CPU time of all stages, or the time of what gets a
            thread for each CPU, whichever is longer.
        cpu_us: the CPU time of all stages.
        threads: of the slowest lane; where several of them compute and wait they meet at the CPUs.
    """

    serial_us: float
    parallel_us: float
    cpu_us: float = 0.0
    threads: int = 1

    def with_overhead(self, measured_us: float) -> Pace:
        """The same of a pipeline whose process is seen to use so much CPU time for a sample.

        What is more than that of the stages goes into handing batches over and into their memory, which the
        slowest lane does, or something that it has to wait for.
        """
        more = max(0.0, measured_us - self.cpu_us)
        cpu_us = self.cpu_us + more
        serial_us = self.serial_us + more / self.threads
        return Pace(serial_us, max(self.parallel_us, cpu_us), cpu_us, self.threads)


def lane_times(stages: Sequence[StageCost], cpus: float) -> dict[int, float]:
    """Microseconds per sample of each lane after the first epoch, in a task with so many CPUs."""
    found: dict[int, float] = {}
    for stage in _counted(stages):
        time = _time(stage) / stage.lane.threads_on(cpus)
        found[stage.lane.number] = found.get(stage.lane.number, 0.0) + time
    return found


def cpu_us(stages: Sequence[StageCost]) -> float:
    """CPU time per sample of all stages after the first epoch, microseconds."""
    return sum(stage.cpu_us_per_sample or 0.0 for stage in _counted(stages))


def locked_us(stages: Sequence[StageCost]) -> float:
    """The part of it that holds Python's lock."""
    return sum(stage.cpu_us_per_sample or 0.0 for stage in _counted(stages) if stage.lane.locked)


def pooled_us(stages: Sequence[StageCost]) -> float:
    """Time per sample for which functions have a thread of the pool, computing or waiting, microseconds."""
    return sum(_time(stage) for stage in _counted(stages) if stage.lane.pooled)


def time_us(stages: Sequence[StageCost], cpus: float, unaccounted_us: float = 0.0) -> float:
    """Microseconds per sample in a task with so many CPUs that nothing else uses; 0 without stages.

    Args:
        stages: All of a pipeline.
        cpus: CPUs of the task.
        unaccounted_us: CPU time in no stage, which the slowest lane has, as in `Pace.with_overhead`.
    """
    slowest = max(lane_times(stages, cpus).values(), default=0.0) + unaccounted_us
    return max(slowest, locked_us(stages), max(cpu_us(stages) + unaccounted_us, pooled_us(stages)) / cpus)


def unaccounted_us(stages: Sequence[StageCost], measured_us: float | None) -> float | None:
    """CPU time per sample of a copy that is that of no stage: elements and batches are handed over.

    Args:
        stages: All of a pipeline, after the first epoch.
        measured_us: CPU time per sample of a copy with all its threads and processes.

    Returns:
        Microseconds, never negative; None where a stage or the copy was not measured.
    """
    if measured_us is None or not stages or any(stage.self_time_us_per_sample is None for stage in stages):
        return None
    return max(0.0, measured_us - cpu_us(stages))


def pace(stages: Sequence[StageCost]) -> Pace | None:
    """What the stages say about more CPUs; None where one of them was not timed."""
    if not stages or any(stage.self_time_us_per_sample is None for stage in stages):
        return None
    fixed: dict[int, float] = {}
    threads: dict[int, int] = {}
    cpu = cpu_us(stages)
    shared = [cpu, pooled_us(stages)]
    for stage in _counted(stages):
        lane = stage.lane
        if lane.threads_per_cpu:
            shared.append(_time(stage) / lane.threads_per_cpu)
            continue
        fixed[lane.number] = fixed.get(lane.number, 0.0) + _time(stage) / lane.threads
        # The pool has no more threads than there are CPUs, so these do not queue for CPUs.
        own = 1 if lane.pooled else lane.threads
        threads[lane.number] = min(own, threads.get(lane.number, own))
    locked = locked_us(stages)
    slowest = max(fixed, key=fixed.__getitem__, default=None)
    if slowest is None or fixed[slowest] < locked:
        return Pace(locked, max(shared), cpu)
    return Pace(fixed[slowest], max(shared), cpu, threads[slowest])


def _counted(stages: Sequence[StageCost]) -> list[StageCost]:
    return [stage for stage in stages if not stage.once and stage.self_time_us_per_sample]


def _time(stage: StageCost) -> float:
    return stage.self_time_us_per_sample or 0.0


_ALWAYS_COMPUTING = 1e9  # times as long as waiting; that much less: always waiting


def queueing_time(computes: float, waits: float, threads: int, cpus: float) -> float:
    """Time per sample of threads that wait and compute alternately, by the formula of a closed queue above.

    Args:
        computes: CPU time that a thread takes for a sample, in any unit.
        waits: time for which it needs no CPU, in the same unit.
        threads: number of them, at least 1.
        cpus: that they share, more than 0.
    """
    if threads <= cpus:
        return (computes + waits) / threads
    if waits <= 0 or computes / waits > _ALWAYS_COMPUTING:
        return computes / cpus
    if computes / waits < 1 / _ALWAYS_COMPUTING / threads:
        return (computes + waits) / threads
    share = [0.0]  # of time, logarithm: the factors of many threads would overflow
    for at_cpus in range(1, threads + 1):
        arrive = (threads - at_cpus + 1) / min(at_cpus, cpus) * (computes / waits)
        share.append(share[-1] + math.log(arrive))
    most = max(share)
    weights = [math.exp(one - most) for one in share]
    busy = sum(weight * min(at_cpus, cpus) for at_cpus, weight in enumerate(weights))
    return computes * sum(weights) / busy

"""Model the throughput of a pipeline from the times of its stages. Pure.

A lane is a set of stages that share the same threads, one stage at a time. In tf.data one thread runs
everything between two hand-offs, which are those of `prefetch` and of calls that run in parallel; the
parallel calls are a lane themselves. All functions of a process run in one thread pool with a thread for
each of its CPUs: calls that wait are limited to that number, too. In a torch DataLoader the worker processes
are one lane and the main process is another.

The time per sample is that of the slowest lane, or, where that is longer, the CPU time of all stages divided
by the CPUs of the task. Operational analysis calls this the bound of the bottleneck device (E. D. Lazowska et
al., "Quantitative System Performance", 1984, chapter 5). Hand-offs are extra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from input_rules.pipeline import AUTOTUNE, Pipeline, Stage, StageTime


@dataclass(frozen=True, slots=True)
class Lane:
    """The threads that run a stage.

    Attributes:
        number: stages with the same number share threads.
        threads: threads, or processes, that work on the lane at the same time.
        threads_per_cpu: threads for each CPU if the number depends on the CPUs; otherwise 0.
        locked: computing holds Python's global interpreter lock, which one thread of a process has at a time.
        pooled: calls run in the thread pool, which has one thread for each CPU.
    """

    number: int
    threads: int = 1
    threads_per_cpu: float = 0.0
    locked: bool = False
    pooled: bool = False

    def threads_on(self, cpus: float) -> int:
        """Return the number of threads of the lane in a task with this many CPUs."""
        if not self.threads_per_cpu:
            return max(1, min(self.threads, int(cpus))) if self.pooled else self.threads
        # 3 * (1 / 3) must not be rounded up to 2.
        return max(1, math.ceil(self.threads_per_cpu * cpus - 1e-9))


# The lane of a pipeline that runs in a single thread.
ONE_LANE = Lane(0)


def assign_lanes(pipeline: Pipeline) -> Mapping[str, Lane]:
    """Return the lane of every stage, by stage name."""
    if pipeline.framework == "torch":
        workers = max((_number(stage, "num_workers") or 0 for stage in pipeline.stages), default=0)
        main, in_workers = Lane(0), Lane(1, workers)
        return {
            stage.name: in_workers if workers and stage.op in _WORKER_STAGES else main
            for stage in pipeline.stages
        }
    optimized = all(stage.attributes.get("optimized") is not False for stage in pipeline.stages)
    readers: dict[str, Stage] = {}
    for stage in pipeline.stages:
        readers.update((name, stage) for name in stage.inputs)
    found: dict[str, Lane] = {}
    fed: dict[str, int] = {}  # the lane that feeds a stage with its own producer, by stage
    count = 0
    for stage in reversed(pipeline.stages):
        reader = readers.get(stage.name)
        calls = _threads_for_calls(stage, reader, optimized)
        locked, pooled = (stage.attributes.get(name) is True for name in ("python", "pooled"))
        # Whether the input of the reader is produced in another thread than its results.
        produces = reader is not None and (
            _number(reader, "buffer_size") != 0
            if reader.op == "prefetch"
            else _threads_for_calls(reader, readers.get(reader.name), optimized) is not None
        )
        if calls is None and reader is not None and not produces:
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


_WORKER_STAGES = ("getitem", "transform", "collate")


# TensorFlow rewrites a pipeline unless its optimizations are turned off: a `map` whose function is stateless
# becomes parallel, a `map` directly before `batch` runs ahead of it, and a prefetch is added at the end.
# Observed with TensorFlow 2.21 and tf.data.experimental.get_model_proto.
def _threads_for_calls(stage: Stage, reader: Stage | None, optimized: bool) -> tuple[int, float] | None:
    """Return the threads for the calls of a stage: a fixed number, and a number for each CPU.

    Returns:
        None if the thread that reads the stage makes its calls.
    """
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
    """Return True if a stage is written to make calls, or to read datasets, in parallel."""
    return any("Parallel" in kind for kind in stage.kinds)


def _number(stage: Stage, name: str) -> int | None:
    value = stage.attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# Above this ratio of rates, leaving a stage out only shows that almost nothing is left, within the error
# of the measured times.
LARGEST_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage of the pipeline with its measured cost; see `pipeline.Stage` and `pipeline.StageTime`.

    Attributes:
        name: unique name, for example "map_2".
        op: the operation.
        position: index in pipeline order; 0 is a source.
        self_time_us_per_sample: microseconds of this stage by itself per sample; None if it was not measured.
        cpu_us_per_sample: the part of it that keeps a CPU busy.
        wait_us_per_sample: the part of it that waits for files, network or a sleep.
        once: paid in the first epoch only, because a cache follows.
        source: the user's line as "file:line"; None if the user did not write the call.
        lane: the threads that run it.
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
        """Combine a stage with its measured time, if it has one."""
        if time is None:
            return cls(stage.name, stage.op, stage.position, source=stage.source, lane=lane)
        times = (time.self_time_us, time.cpu_us, time.wait_us)
        return cls(stage.name, stage.op, stage.position, *times, once, stage.source, lane)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageCost:
        """Read a stage from its JSON object."""
        return cls(**{**value, "lane": Lane(**value["lane"])})


@dataclass(frozen=True, slots=True)
class SampleTime:
    """The time per sample in the two parts of the formula of `rate_model`, microseconds.

    Attributes:
        serial_us: time of the slowest lane whose number of threads does not depend on the CPUs.
        parallel_us: time that the CPUs share: the CPU time of all stages, or the time of the lanes that have
            a thread for each CPU, whichever is longer.
        cpu_us: CPU time of all stages.
        threads: threads of the slowest lane; several of them may queue for a CPU.
    """

    serial_us: float
    parallel_us: float
    cpu_us: float = 0.0
    threads: int = 1

    def with_overhead(self, measured_us: float) -> SampleTime:
        """Add the CPU time of the process that no stage accounts for.

        It is spent on passing batches on and on their memory, by the slowest lane or by something that this
        lane waits for.

        Args:
            measured_us: CPU time of the whole process per sample, microseconds.
        """
        more = max(0.0, measured_us - self.cpu_us)
        cpu_us = self.cpu_us + more
        serial_us = self.serial_us + more / self.threads
        return SampleTime(serial_us, max(self.parallel_us, cpu_us), cpu_us, self.threads)


def lane_times(stages: Sequence[StageCost], cpus: float) -> dict[int, float]:
    """Return the microseconds per sample of each lane after the first epoch, by lane number."""
    found: dict[int, float] = {}
    for stage in _steady(stages):
        time = _self_time_us(stage) / stage.lane.threads_on(cpus)
        found[stage.lane.number] = found.get(stage.lane.number, 0.0) + time
    return found


def cpu_us(stages: Sequence[StageCost]) -> float:
    """Return the CPU time per sample of all stages after the first epoch, microseconds."""
    return sum(stage.cpu_us_per_sample or 0.0 for stage in _steady(stages))


def locked_us(stages: Sequence[StageCost]) -> float:
    """Return the CPU time per sample that holds Python's lock, microseconds."""
    return sum(stage.cpu_us_per_sample or 0.0 for stage in _steady(stages) if stage.lane.locked)


def pooled_us(stages: Sequence[StageCost]) -> float:
    """Return the time per sample for which functions occupy a thread of the pool, microseconds."""
    return sum(_self_time_us(stage) for stage in _steady(stages) if stage.lane.pooled)


def time_us(stages: Sequence[StageCost], cpus: float, unaccounted_us: float = 0.0) -> float:
    """Return the microseconds per sample in a task whose CPUs nothing else uses; 0 without stages.

    Args:
        stages: All stages of a pipeline.
        cpus: CPUs of the task.
        unaccounted_us: CPU time outside of all stages, added to the slowest lane as in
            `SampleTime.with_overhead`.
    """
    slowest = max(lane_times(stages, cpus).values(), default=0.0) + unaccounted_us
    return max(slowest, locked_us(stages), max(cpu_us(stages) + unaccounted_us, pooled_us(stages)) / cpus)


def unaccounted_us(stages: Sequence[StageCost], measured_us: float | None) -> float | None:
    """Return the CPU time per sample of a copy that belongs to no stage, such as passing elements on.

    Args:
        stages: All stages of a pipeline, after the first epoch.
        measured_us: CPU time per sample of a copy with all its threads and processes.

    Returns:
        Microseconds, at least 0; None if a stage or the copy was not measured.
    """
    if measured_us is None or not stages or any(stage.self_time_us_per_sample is None for stage in stages):
        return None
    return max(0.0, measured_us - cpu_us(stages))


def sample_time(stages: Sequence[StageCost]) -> SampleTime | None:
    """Derive from the stages how the time per sample depends on the CPUs; None if one was not timed."""
    if not stages or any(stage.self_time_us_per_sample is None for stage in stages):
        return None
    fixed: dict[int, float] = {}
    threads: dict[int, int] = {}
    cpu = cpu_us(stages)
    shared = [cpu, pooled_us(stages)]
    for stage in _steady(stages):
        lane = stage.lane
        if lane.threads_per_cpu:
            shared.append(_self_time_us(stage) / lane.threads_per_cpu)
            continue
        fixed[lane.number] = fixed.get(lane.number, 0.0) + _self_time_us(stage) / lane.threads
        # The pool has no more threads than there are CPUs, so these do not queue for CPUs.
        own = 1 if lane.pooled else lane.threads
        threads[lane.number] = min(own, threads.get(lane.number, own))
    locked = locked_us(stages)
    slowest = max(fixed, key=fixed.__getitem__, default=None)
    if slowest is None or fixed[slowest] < locked:
        return SampleTime(locked, max(shared), cpu)
    return SampleTime(fixed[slowest], max(shared), cpu, threads[slowest])


def _steady(stages: Sequence[StageCost]) -> list[StageCost]:
    return [stage for stage in stages if not stage.once and stage.self_time_us_per_sample]


def _self_time_us(stage: StageCost) -> float:
    return stage.self_time_us_per_sample or 0.0


# Ratio of computing to waiting above which a thread counts as always computing; below 1 / it, as always
# waiting.
_ALWAYS_COMPUTING = 1e9


def queueing_time(computes: float, waits: float, threads: int, cpus: float) -> float:
    """Return the time per sample of threads that alternate between waiting and computing on shared CPUs.

    A thread may find all CPUs taken although they are idle part of the time. This is a closed queue: machines
    that run (wait) for a while, then need one of c repairmen (compute on one of c CPUs; L. Kleinrock,
    "Queueing Systems I", 1975, chapter 3, M/M/m//M). With r = computing / waiting of a thread, the
    probability that k of N threads are at the CPUs is proportional to

        w(k) = w(k-1) * (N - k + 1) * r / min(k, c)        w(0) = 1

    and the time per sample is t(c) = computing * sum w(k) / sum min(k, c) w(k). As CPUs are shared in time
    slices, this holds for any distribution of the times (F. Baskett et al., "Open, closed, and mixed networks
    of queues", Journal of the ACM 22, 1975). Threads with constant times may be in step and do better or
    worse: t(c) is then between max(serial, parallel / c) and serial + (N - 1) / N * parallel (Lazowska).

    Args:
        computes: CPU time of a thread for a sample, in any unit.
        waits: time of a thread for a sample without a CPU, in the same unit.
        threads: number of threads, at least 1.
        cpus: CPUs that they share, more than 0.
    """
    if threads <= cpus:
        return (computes + waits) / threads
    if waits <= 0 or computes / waits > _ALWAYS_COMPUTING:
        return computes / cpus
    if computes / waits < 1 / _ALWAYS_COMPUTING / threads:
        return (computes + waits) / threads
    share = [0.0]  # log w(k): the products overflow for many threads
    for at_cpus in range(1, threads + 1):
        arrive = (threads - at_cpus + 1) / min(at_cpus, cpus) * (computes / waits)
        share.append(share[-1] + math.log(arrive))
    most = max(share)
    weights = [math.exp(one - most) for one in share]
    busy = sum(weight * min(at_cpus, cpus) for at_cpus, weight in enumerate(weights))
    return computes * sum(weights) / busy

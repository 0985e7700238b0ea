"""How fast the stages of a pipeline can be together, by their own times. Pure.

A sample takes as long as the slowest lane takes for it, or, where that is longer, as all CPUs of the task
need for the CPU time of all stages. Operational analysis knows this as the bound of the bottleneck device
(E. D. Lazowska et al., "Quantitative System Performance", 1984, chapter 5); hand-overs cost extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from input_rules.lanes import ONE_LANE, Lane
from input_rules.pipeline import Stage, StageTime

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

"""An input pipeline as data: its stages, and what each costs. Knows no framework and does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Framework = Literal["tensorflow", "torch"]
Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None
AUTOTUNE = -1
"""`tf.data.AUTOTUNE`, as value of `num_parallel_calls` and the like."""


@dataclass(frozen=True)
class Stage:
    """One operation of a pipeline as its author wrote it: a call such as `map` or `TFRecordDataset`.

    Attributes:
        name: Unique in the pipeline: the operation, numbered where it occurs again (`map`, `map_2`).
        op: The operation: a tf.data method or class, or a part of a torch DataLoader (`sampler`,
            `getitem`, `transform`, `collate`, `workers`).
        position: Index in pipeline order; a stage stands behind all its inputs.
        inputs: Names of the stages that it reads.
        source: The user's line, `file:line`; None where the user did not write it.
        attributes: What is known of it without running it, e.g. `batch_size`, `drop_remainder`,
            `num_parallel_calls`, `deterministic`, `buffer_size`, `functions`.
    """

    name: str
    op: str
    position: int
    inputs: tuple[str, ...] = ()
    source: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The operations of TensorFlow that the call made, inputs first; empty in other frameworks."""
        kinds = self.attributes.get("kinds")
        return tuple(map(str, kinds)) if isinstance(kinds, tuple) else ()


@dataclass(frozen=True)
class Tensor:
    """One tensor of what a pipeline delivers: its name, NumPy's name of its type, sizes (None: unknown).

    The name is the expression that takes it out of an element, `element['x'][0]`; in a program of a front end
    what that calls the component, `features/x`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Pipeline:
    """The stages of an input in pipeline order; the last one delivers.

    Attributes:
        framework: `tensorflow` or `torch`.
        stages: In pipeline order; a chain, or a graph where a stage has several inputs.
        element: The tensors of what the last stage delivers.
        samples_per_element: Records in one element of the last stage: the batch size, or 1.
    """

    framework: str
    stages: tuple[Stage, ...]
    element: tuple[Tensor, ...] = ()
    samples_per_element: int = 1

    @cached_property
    def by_name(self) -> Mapping[str, Stage]:
        """Stages by their names."""
        return {stage.name: stage for stage in self.stages}

    @property
    def last(self) -> Stage:
        """The stage that delivers."""
        return self.stages[-1]

    def inputs_of(self, stage: Stage) -> tuple[Stage, ...]:
        """The stages that a stage reads."""
        return tuple(self.by_name[name] for name in stage.inputs)

    def before(self, stage: Stage) -> Iterator[Stage]:
        """All stages that a stage depends on, each once, the nearest first."""
        seen: set[str] = set()
        waiting = list(stage.inputs)
        while waiting:
            name = waiting.pop(0)
            if name not in seen:
                seen.add(name)
                found = self.by_name[name]
                yield found
                waiting.extend(found.inputs)

    def after(self, stage: Stage) -> Iterator[Stage]:
        """All stages that depend on a stage, in pipeline order."""
        reached = {stage.name}
        for later in self.stages[stage.position + 1 :]:
            if reached.intersection(later.inputs):
                reached.add(later.name)
                yield later


@dataclass(frozen=True)
class StageTime:
    """What a stage costs by itself, without the stages that it reads, on one CPU that nothing else uses.

    Attributes:
        stage: Name of the stage.
        cpu_us: CPU time, microseconds a sample that the pipeline delivers.
        wait_us: Time neither computing nor waiting for a CPU (files, network, sleep), microseconds a sample.
        once: Whether it is paid in the first epoch only, because a `cache` stands behind it.
    """

    stage: str
    cpu_us: float
    wait_us: float
    once: bool = False

    @property
    def self_time_us(self) -> float:
        """CPU time and waiting together, microseconds a sample."""
        return self.cpu_us + self.wait_us

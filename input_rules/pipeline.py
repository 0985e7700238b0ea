"""An input pipeline as data: its stages and their cost. Knows no framework and does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Framework = Literal["tensorflow", "torch"]
Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | None
# `tf.data.AUTOTUNE`, as a value of `num_parallel_calls` and similar arguments.
AUTOTUNE = -1


@dataclass(frozen=True)
class Stage:
    """One operation of a pipeline as its author wrote it: a call such as `map` or `TFRecordDataset`.

    Attributes:
        name: Unique in the pipeline: the operation, numbered if it occurs again (`map`, `map_2`).
        op: The operation: a tf.data method or class, or a part of a torch DataLoader (`sampler`, `getitem`,
            `transform`, `collate`, `workers`).
        position: Index in pipeline order; a stage comes after all its inputs.
        inputs: Names of the stages that it reads.
        source: The user's line, `file:line`; None if the user did not write the call.
        attributes: Properties that are known without running it, such as `batch_size`, `drop_remainder`,
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
        """The TensorFlow operations that the call made, inputs first; empty in other frameworks."""
        kinds = self.attributes.get("kinds")
        return tuple(map(str, kinds)) if isinstance(kinds, tuple) else ()


@dataclass(frozen=True)
class Tensor:
    """A tensor of the elements of a pipeline: its name, NumPy's name of its type, its sizes (None: unknown).

    The name is the expression that selects it from an element, `element['x'][0]`; in a program of a front end
    it is the front end's name of the component, `features/x`.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Pipeline:
    """The stages of an input in pipeline order; the last one delivers the elements.

    Attributes:
        framework: `tensorflow` or `torch`.
        stages: In pipeline order; a chain, or a graph if a stage has several inputs.
        element: The tensors of an element of the last stage.
        samples_per_element: Records in an element of the last stage: the batch size, or 1.
    """

    framework: str
    stages: tuple[Stage, ...]
    element: tuple[Tensor, ...] = ()
    samples_per_element: int = 1

    @cached_property
    def by_name(self) -> Mapping[str, Stage]:
        """The stages by name."""
        return {stage.name: stage for stage in self.stages}

    @property
    def last(self) -> Stage:
        """The stage that delivers the elements."""
        return self.stages[-1]

    def inputs_of(self, stage: Stage) -> tuple[Stage, ...]:
        """Return the stages that a stage reads."""
        return tuple(self.by_name[name] for name in stage.inputs)

    def before(self, stage: Stage) -> Iterator[Stage]:
        """Yield all stages that a stage depends on, each once, the nearest first."""
        seen: set[str] = set()
        queue = list(stage.inputs)
        while queue:
            name = queue.pop(0)
            if name not in seen:
                seen.add(name)
                found = self.by_name[name]
                yield found
                queue.extend(found.inputs)

    def after(self, stage: Stage) -> Iterator[Stage]:
        """Yield all stages that depend on a stage, in pipeline order."""
        reached = {stage.name}
        for later in self.stages[stage.position + 1 :]:
            if reached.intersection(later.inputs):
                reached.add(later.name)
                yield later


@dataclass(frozen=True)
class StageTime:
    """The cost of a stage by itself, without the stages that it reads, on a CPU that nothing else uses.

    Attributes:
        stage: Name of the stage.
        cpu_us: CPU time, microseconds per sample that the pipeline delivers.
        wait_us: Time spent neither computing nor waiting for a CPU (files, network, sleep), microseconds per
            sample.
        once: The cost occurs in the first epoch only, because a `cache` follows.
    """

    stage: str
    cpu_us: float
    wait_us: float
    once: bool = False

    @property
    def self_time_us(self) -> float:
        """CPU time plus waiting, microseconds per sample."""
        return self.cpu_us + self.wait_us

"""What a front end gives to a run: a traced step, a state, batches, a place for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import TensorSpec
from cs_runtime.ranges import RangeCheck

if TYPE_CHECKING:
    from cs_system.client import StepOutputs

Mode = Literal["train", "eval", "infer"]
State = dict[str, np.ndarray]
Batch = tuple[np.ndarray, ...]

GLOBAL_STEP = "state.global_step"
LOSS = "output_loss"


@dataclass(frozen=True)
class StepProgram:
    """One traced step of the user's program.

    Attributes:
        module: CIRH as the importer made it, before any pass.
        mode: What the step does; a `train` step updates state and has the output `output_loss`.
        batch_size: Samples in one batch.
        ranges: What to check of the outputs of every step; they are no outputs of the user's program.
    """

    module: ModuleOp
    mode: Mode
    batch_size: int
    ranges: tuple[RangeCheck, ...] = ()


class FrontEnd(Protocol):
    """The framework's side of a run.

    The chief calls all of it, a worker only `inputs`, `input_facts` and `batches`: it traces nothing.
    """

    def program(self) -> StepProgram:
        """Traces the step."""
        ...

    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors of one batch, in the order of the step's batch inputs."""
        ...

    def input_facts(self) -> Mapping[str, str]:
        """What identifies program and input, as name -> text; must be equal in all tasks of a job.

        Nothing that a task's place, its machine, or the user's code at run time can change belongs here.
        """
        ...

    def batches(self, skip: int) -> Iterator[Batch]:
        """A freshly built input without its first `skip` batches, arrays in the order of `inputs`."""
        ...

    def initial_state(self) -> State:
        """Arrays by resource name, from the newest checkpoint where there is one."""
        ...

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Writes a checkpoint of `state` as it is after `step` steps; returns whether to stop there."""
        ...


class Observer(Protocol):
    """Is shown what the steps put out, on the chief."""

    def steps(self, outputs: StepOutputs) -> None:
        """Outputs of consecutive steps, stacked: row i is of global step `first_step + i + 1`."""
        ...

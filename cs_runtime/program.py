"""What a front end gives to a run: a traced step, a state, batches, a place for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cs_runtime.ranges import RangeCheck
from cs_runtime.source import InputSource
from cs_toolkit.step import Mode

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cs_system.client import StepOutputs

State = dict[str, np.ndarray]

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


class FrontEnd(InputSource, Protocol):
    """The framework's side of a run.

    The chief calls all of it, a worker only what an `InputSource` has: it traces nothing.
    """

    def program(self) -> StepProgram:
        """Traces the step."""
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

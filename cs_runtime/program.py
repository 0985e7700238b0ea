"""What a front end gives to a run: a traced step, a state, batches, a place for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cs_runtime.input_source import InputSource
from cs_runtime.step_checks import StepCheck
from cs_toolkit.step import Mode, StepInterface

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cs_system.client import StepOutputs

State = Mapping[str, np.ndarray]
"""Arrays by resource name; those of a large model may be got when they are asked for."""

LOSS = "output_loss"


@dataclass(frozen=True)
class StepProgram:
    """One traced step of the user's program, as `cs_runtime.step_program.step_program` makes it.

    Attributes:
        module: CIRH before any pass.
        interface: What goes into and out of it.
        mode: What the step does; a `train` step updates state and has the output `output_loss`.
        batch_size: Samples in one batch.
        checks: What must hold in every step; their outputs are none of the user's program.
        model: What the user's program calls it, for reports.
        every: Outputs that come of global steps alone that are multiples of a number, by name.
    """

    module: ModuleOp
    interface: StepInterface
    mode: Mode
    batch_size: int
    checks: tuple[StepCheck, ...] = ()
    model: str = ""
    every: Mapping[str, int] = field(default_factory=dict)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs of the user's program."""
        own = {name for check in self.checks for name in check.outputs}
        return [spec.name for spec in self.interface.outputs if spec.name not in own]


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


class MeasuredFrontEnd(FrontEnd, Protocol):
    """The framework's side of an evaluation.

    The step keeps the running totals of metrics in its state. What the system cannot compute of them, the
    front end computes on the chief's host from the outputs of every step.
    """

    def add_to_metrics(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Counts a step with these outputs, where metrics are computed on this host."""
        ...

    def metric_values(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Values of the metrics for the totals in a state; NumPy arrays and scalars by name."""
        ...


class Observer(Protocol):
    """Is shown what the steps put out, on the chief."""

    def steps(self, outputs: StepOutputs) -> bool | None:
        """Outputs of consecutive steps, stacked: row i is of global step `first_step + i + 1`.

        Returns:
            True to stop as soon as possible.
        """
        ...

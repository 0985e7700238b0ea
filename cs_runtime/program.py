"""The interface between front ends and runs: a traced step, its state, batches and checkpoints."""

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

# Arrays by resource name; a large model may load each one when it is accessed.
State = Mapping[str, np.ndarray]

LOSS = "output_loss"


@dataclass(frozen=True)
class StepProgram:
    """A traced step of the user's program, made by `cs_runtime.step_program.step_program`.

    Attributes:
        module: CIRH before any pass.
        interface: Inputs, outputs and state of the step.
        mode: The mode of the step; a `train` step updates state and has the output `output_loss`.
        batch_size: Samples in one batch.
        checks: Conditions that must hold in every step; their outputs are not part of the user's program.
        model: The user's name of the model, for reports.
        every: Interval, in global steps, of outputs that are not returned in every step, by name.
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
        """Output names of the user's program."""
        own = {name for check in self.checks for name in check.outputs}
        return [spec.name for spec in self.interface.outputs if spec.name not in own]


class FrontEnd(InputSource, Protocol):
    """The framework's side of a run."""

    # A worker uses only the `InputSource` part, because it does not trace the step.

    def program(self) -> StepProgram:
        """Trace the step."""
        ...

    def initial_state(self) -> State:
        """Return the initial state, which is that of the newest checkpoint if there is one."""
        ...

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        """Write a checkpoint of the state after global step `step`, and return True to stop training."""
        ...


class MeasuredFrontEnd(FrontEnd, Protocol):
    """The framework's side of an evaluation.

    The step accumulates metrics in its state. Metrics that the system cannot compute are computed on the
    chief's host, from the outputs of every step.
    """

    def add_to_metrics(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Add the outputs of a step to the metrics that are computed on this host."""
        ...

    def metric_values(self, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the values of the metrics, by name, from the totals in the state."""
        ...


class Observer(Protocol):
    """Receives the outputs of the steps, on the chief."""

    def steps(self, outputs: StepOutputs) -> bool | None:
        """Handle the outputs of consecutive steps; row i belongs to global step `first_step + i + 1`.

        Returns:
            True to stop as soon as possible.
        """
        ...

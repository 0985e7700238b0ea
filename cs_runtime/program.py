"""The interface between front ends and runs: a traced step, its checks and state, batches and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cs_runtime.errors import CheckFailedError, OutOfRangeError, RunError
from cs_runtime.input_source import InputSource
from cs_toolkit.step import Mode, StepInterface

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cs_system.client import StepOutputs

Outputs = Mapping[str, np.ndarray]


class StepCheck(Protocol):
    """A condition that holds in every step of a correct run."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the step outputs that it reads; the toolkit adds these to the step."""
        ...

    def find_failure(self, outputs: Outputs) -> tuple[int, Callable[[int], RunError]] | None:
        """Return the first failing row and a function from its step number to the error, or None."""
        ...


@dataclass(frozen=True)
class RangeCheck:
    """Requires that all values of an integer tensor are in `low <= value < high`.

    Attributes:
        tensor: The user's name of the tensor.
        low: The smallest valid value; negative if negative values mark padding.
        high: One more than the largest valid value.
        use: The operation that reads the tensor, with the user's line.
        minimum: The step output with the smallest value.
        maximum: The step output with the largest value.
    """

    tensor: str
    low: int
    high: int
    use: str
    minimum: str
    maximum: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the minimum and the maximum."""
        return self.minimum, self.maximum

    def find_failure(self, outputs: Outputs) -> tuple[int, Callable[[int], RunError]] | None:
        """Find the first step with a value out of range."""
        smallest, largest = outputs[self.minimum], outputs[self.maximum]
        rows = np.flatnonzero((smallest < self.low) | (largest >= self.high))
        if not rows.size:
            return None
        row = int(rows[0])
        value = int(smallest[row] if smallest[row] < self.low else largest[row])
        return row, lambda step: OutOfRangeError(step, value, self.tensor, (self.low, self.high), self.use)


@dataclass(frozen=True)
class ProgramCheck:
    """A condition that the user's program checks in its step, for example with `assert`.

    Attributes:
        output: The step output that is zero if the condition does not hold.
        error: The text of the program's own error, with the user's line.
    """

    output: str
    error: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """The name of the output."""
        return (self.output,)

    def find_failure(self, outputs: Outputs) -> tuple[int, Callable[[int], RunError]] | None:
        """Find the first step in which the condition does not hold."""
        rows = np.flatnonzero(outputs[self.output] == 0)
        return (int(rows[0]), lambda step: CheckFailedError(step, self.error)) if rows.size else None


def check_steps(checks: Sequence[StepCheck], span: StepOutputs) -> StepOutputs:
    """Check consecutive steps, and return them without the outputs that only the checks read.

    Raises:
        OutOfRangeError: A value is outside of its range.
        CheckFailedError: A condition of the program does not hold. The error is that of the earliest step.
    """
    failures = [found for check in checks if (found := check.find_failure(span.outputs)) is not None]
    if failures:
        row, error = min(failures, key=lambda failure: failure[0])
        raise error(span.first_step + row + 1)
    own = {name for check in checks for name in check.outputs}
    return replace(span, outputs={name: values for name, values in span.outputs.items() if name not in own})


# Arrays by resource name; a large model may load each one when it is accessed.
State = Mapping[str, np.ndarray]


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
        metrics: Names of scalar outputs that progress lines show next to the loss.
    """

    module: ModuleOp
    interface: StepInterface
    mode: Mode
    batch_size: int
    checks: tuple[StepCheck, ...] = ()
    model: str = ""
    every: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()

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

    def check_checkpoint(self) -> None:
        """Check that the checkpoint to start from is of the traced model, before the slow work begins."""
        ...

    def initial_state(self) -> State:
        """Return the initial state, which is that of the newest checkpoint if there is one."""
        ...

    @property
    def saves_between_steps(self) -> bool:
        """True if no step may run until `save` has returned, because it calls code of the user."""
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

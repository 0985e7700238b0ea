"""Checks of the outputs of every step on the chief: ranges of labels and ids, assertions of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cs_runtime.errors import CheckFailedError, OutOfRangeError, RunError

if TYPE_CHECKING:
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

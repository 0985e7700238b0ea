"""Checks of what every step puts out, by the chief: ranges of labels and ids, conditions of the program."""

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
    """What must hold in every step."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the step that it needs; they are none of the user's."""
        ...

    def fault(self, outputs: Outputs) -> tuple[int, Callable[[int], RunError]] | None:
        """The first row in which it does not hold, and the error of a step with that number."""
        ...


@dataclass(frozen=True)
class RangeCheck:
    """Numbers of a step that must lie in a range.

    Attributes:
        tensor: What the user calls them.
        low: The smallest number that has a meaning; a negative one marks what does not count.
        high: One more than the largest.
        use: What they are used for, with the user's line.
        minimum: The output of the step with the smallest of them.
        maximum: The output with the largest.
    """

    tensor: str
    low: int
    high: int
    use: str
    minimum: str
    maximum: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `StepCheck`."""
        return self.minimum, self.maximum

    def fault(self, outputs: Outputs) -> tuple[int, Callable[[int], RunError]] | None:
        """See `StepCheck`."""
        smallest, largest = outputs[self.minimum], outputs[self.maximum]
        rows = np.flatnonzero((smallest < self.low) | (largest >= self.high))
        if not rows.size:
            return None
        row = int(rows[0])
        value = int(smallest[row] if smallest[row] < self.low else largest[row])
        return row, lambda step: OutOfRangeError(step, value, self.tensor, (self.low, self.high), self.use)


@dataclass(frozen=True)
class ProgramCheck:
    """A condition that the user's program checks in its step, as with `assert`.

    Attributes:
        output: The output of the step with its truth.
        error: What the program raises where it does not hold, with the user's line.
    """

    output: str
    error: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `StepCheck`."""
        return (self.output,)

    def fault(self, outputs: Outputs) -> tuple[int, Callable[[int], RunError]] | None:
        """See `StepCheck`."""
        rows = np.flatnonzero(outputs[self.output] == 0)
        return (int(rows[0]), lambda step: CheckFailedError(step, self.error)) if rows.size else None


def checked(checks: Sequence[StepCheck], span: StepOutputs) -> StepOutputs:
    """Consecutive steps without the outputs of the checks.

    Raises:
        OutOfRangeError: a number lies outside of its range.
        CheckFailedError: a condition of the program does not hold. It is the error of the earliest step.
    """
    faults = [fault for check in checks if (fault := check.fault(span.outputs)) is not None]
    if faults:
        row, error = min(faults, key=lambda fault: fault[0])
        raise error(span.first_step + row + 1)
    own = {name for check in checks for name in check.outputs}
    return replace(span, outputs={name: values for name, values in span.outputs.items() if name not in own})

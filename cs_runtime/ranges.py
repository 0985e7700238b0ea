"""Checks of the numbers of a batch that must lie in a range, such as labels: on the chief, for every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cs_runtime.errors import OutOfRangeError

if TYPE_CHECKING:
    from cs_system.client import StepOutputs


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


def checked(checks: Sequence[RangeCheck], span: StepOutputs) -> StepOutputs:
    """Consecutive steps without the outputs of the checks.

    Raises:
        OutOfRangeError: a number lies outside of its range; that of the earliest step.
    """
    faults = [fault for check in checks if (fault := _fault(check, span.outputs)) is not None]
    if faults:
        row, value, check = min(faults, key=lambda fault: fault[0])
        step = span.first_step + row + 1
        raise OutOfRangeError(step, value, check.tensor, (check.low, check.high), check.use)
    own = {name for check in checks for name in (check.minimum, check.maximum)}
    return replace(span, outputs={name: values for name, values in span.outputs.items() if name not in own})


def _fault(check: RangeCheck, outputs: Mapping[str, np.ndarray]) -> tuple[int, int, RangeCheck] | None:
    """The first row with a number outside of the range, and the number."""
    smallest, largest = outputs[check.minimum], outputs[check.maximum]
    rows = np.flatnonzero((smallest < check.low) | (largest >= check.high))
    if not rows.size:
        return None
    row = int(rows[0])
    return row, int(smallest[row] if smallest[row] < check.low else largest[row]), check

"""Which steps of a loop something happens at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cstorch.errors import InputError

_NEVER = 2**62


@dataclass(frozen=True)
class Range:
    """Steps `start`, `start + step`, ... below `end`; up to and with `end` where it is included.

    Raises:
        InputError: a number cannot be.
    """

    start: int = 0
    end: int | None = None
    step: int = 1
    include_last: bool = False

    def __post_init__(self) -> None:
        if self.step < 1 or self.start < 0 or (self.end is not None and self.end <= self.start):
            raise InputError(
                f"got a range of steps from {self.start} to {self.end} by {self.step}, expected a start of 0 "
                "or more, a later end, and a step of 1 or more"
            )

    def __str__(self) -> str:
        every = f"every {self.step} steps"
        if self.end is None and self.start in (0, self.step):
            return every
        end = "on" if self.end is None else f"to {self.end}"
        return f"{every} from {self.start} {end}"

    def match(self, step: int) -> bool:
        """Whether a step is one of these."""
        if self.include_last and step == self.end:
            return True
        inside = self.start <= step and (self.end is None or step < self.end)
        return inside and (step - self.start) % self.step == 0

    def next_after(self, step: int) -> int | None:
        """The first of these behind a step."""
        first = max(self.start, step + 1)
        found = first + -(first - self.start) % self.step
        if self.end is None or found < self.end:
            return found
        return self.end if self.include_last and step < self.end else None


class Schedule:
    """Steps at which something happens.

    Args:
        intervals: numbers ("every n steps"), `Range`s or dicts of their arguments; a step of any counts.
    """

    def __init__(self, intervals: int | Range | Mapping[str, Any] | Iterable[Any]) -> None:
        listed = [intervals] if isinstance(intervals, int | Range | Mapping) else list(intervals)
        self.ranges = [_range_of(interval) for interval in listed]

    def match(self, step: int) -> bool:
        """Whether it happens at a step."""
        return any(each.match(step) for each in self.ranges)

    match_step = match

    def left(self, step: int) -> int:
        """Steps from this one to the next at which it happens; very many where there is none."""
        found = self.next_after(step)
        return _NEVER if found is None else found - step

    def __str__(self) -> str:
        return " and ".join(map(str, self.ranges))

    def next_after(self, step: int) -> int | None:
        """The first step behind this one at which it happens; None where there is none."""
        found = [each.next_after(step) for each in self.ranges]
        return min((step for step in found if step is not None), default=None)


def _range_of(interval: Any) -> Range:
    if isinstance(interval, Range):
        return interval
    if isinstance(interval, Mapping):
        return Range(**interval)
    if isinstance(interval, int) and interval > 0:
        return Range(start=interval, step=interval)
    raise InputError(f"got {interval!r} as steps, expected a number of 1 or more, or a Range")


def schedule_of(steps: int | Schedule | Mapping[str, Any] | Iterable[Any] | None) -> Schedule | None:
    """A schedule from what programs give: every so many steps, ranges; None and 0 mean never."""
    if not steps:
        return None
    return steps if isinstance(steps, Schedule) else Schedule(steps)


Schedule.Range = Range  # type: ignore[attr-defined]

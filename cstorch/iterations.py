"""How many iterations a loop has, and at which of them something happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, SupportsIndex

from cstorch.errors import InputError

_NEVER = 2**62


@dataclass
class Range:
    """Iterations `start`, `start + step`, ... below `end`, and the last one below `end` if it is included.

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

    def __iter__(self) -> Iterator[int]:
        found: int | None = self.start
        while found is not None:
            yield found
            found = self.next_after(found)

    def __len__(self) -> int:
        inside = len(self.range())
        return inside + (self.include_last and self.end is not None and self.end - 1 not in self.range())

    def __str__(self) -> str:
        end = "on" if self.end is None else f"to {self.end - 1}"
        return f"every {self.step} steps from {self.start} {end}"

    def next_immediate_step(self, target: int) -> int | None:
        """Return the first of these from `target` on; None where there is none."""
        return self.next_after(target - 1)

    def range(self) -> range:
        """Return the iterations as a Python range, without an included last one."""
        return range(self.start, _NEVER if self.end is None else self.end, self.step)

    def match(self, index: int) -> bool:
        """Return True if an iteration is one of these."""
        return index in self.range() or (self.include_last and self.end is not None and index == self.end - 1)

    def next_after(self, index: int) -> int | None:
        """Return the first of these after an iteration; None where there is none."""
        first = max(self.start, index + 1)
        found = first + -(first - self.start) % self.step
        if self.end is None or found < self.end:
            return found
        return self.end - 1 if self.include_last and index < self.end - 1 else None


_Range = Range


@dataclass(init=False, repr=False)
class Schedule:
    """Iterations of a loop, counted from 0, at which something happens.

    Args:
        intervals: `Range`s that do not overlap, or dicts of their arguments.

    Raises:
        InputError: something else is given, or ranges overlap.
    """

    Range: ClassVar[type] = Range

    intervals: list[Any]

    def __init__(self, intervals: Any) -> None:
        listed = [intervals] if isinstance(intervals, _Range | Mapping) else list(intervals)
        self.intervals = sorted(map(_range_of, listed), key=lambda interval: interval.start)
        for first, second in zip(self.intervals, self.intervals[1:], strict=False):
            if first.end is None or first.end > second.start:
                raise InputError(f"the ranges {first} and {second} overlap, expected one after the other")

    def __iter__(self) -> Iterator[int]:
        for interval in self.intervals:
            yield from interval

    def __len__(self) -> int:
        return sum(map(len, self.intervals))

    def __repr__(self) -> str:
        return f"Schedule(intervals={self.intervals!r})"

    def __str__(self) -> str:
        return " and ".join(map(str, self.intervals))

    @property
    def start(self) -> int | None:
        """The first iteration; None without ranges."""
        return self.intervals[0].start if self.intervals else None

    @property
    def final_step(self) -> int | None:
        """The last iteration; None without ranges, or where they have no end."""
        if not self.intervals or self.intervals[-1].end is None:
            return None
        last = self.intervals[-1]
        assert last.end is not None
        return last.end - 1 if last.include_last else last.range()[-1]

    def range(self) -> list[range]:
        """Return the ranges as Python ranges, without included last ones."""
        return [interval.range() for interval in self.intervals]

    def match(self, index: int) -> bool:
        """Return True if it happens at an iteration."""
        return any(interval.match(index) for interval in self.intervals)

    def next_after(self, index: int) -> int | None:
        """Return the first iteration after this one at which it happens; None where there is none."""
        found = (interval.next_after(index) for interval in self.intervals)
        return min((step for step in found if step is not None), default=None)

    def next_immediate_step(self, target: int) -> int | None:
        """Return the first iteration from `target` on at which it happens; None without ranges.

        Raises:
            ValueError: `target` is after the last one.
        """
        if not self.intervals:
            return None
        final = self.final_step
        if final is not None and target > final:
            raise ValueError(f"target is {target}, expected at most the last step, {final}")
        return self.next_after(target - 1)


class CheckpointSteps(Protocol):
    """When the state of a loop may be read, by the number of iterations that are done."""

    exact: bool
    """Whether checkpoints are written at these steps only, not after the last one too."""

    def match(self, done: int) -> bool:
        """Return True if it is after this many iterations."""
        ...

    def left(self, done: int) -> int:
        """Return the number of iterations up to the next time; a very large one where there is none."""
        ...


@dataclass(frozen=True)
class Every:
    """After every `steps` iterations."""

    steps: int
    exact = False

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise InputError(f"got {self.steps!r} as steps, expected a number of 1 or more, or a Schedule")

    def __str__(self) -> str:
        return f"every {self.steps} steps"

    def match(self, done: int) -> bool:
        """See `CheckpointSteps`."""
        return done > 0 and done % self.steps == 0

    def left(self, done: int) -> int:
        """See `CheckpointSteps`."""
        return self.steps - done % self.steps


@dataclass(frozen=True)
class AtIterations:
    """After the iterations of a schedule."""

    schedule: Schedule
    exact = True

    def __str__(self) -> str:
        return f"iterations {self.schedule}"

    def match(self, done: int) -> bool:
        """See `CheckpointSteps`."""
        return self.schedule.match(done - 1)

    def left(self, done: int) -> int:
        """See `CheckpointSteps`."""
        found = self.schedule.next_after(done - 1)
        return _NEVER if found is None else found + 1 - done


def _range_of(interval: Any) -> Range:
    if isinstance(interval, Range):
        return interval
    if isinstance(interval, Mapping):
        return Range(**interval)
    raise InputError(f"got {interval!r} in a Schedule, expected a Range")


def checkpoint_steps_of(
    steps: int | Schedule | Mapping[str, Any] | Iterable[Any] | None,
) -> CheckpointSteps | None:
    """Return when checkpoints are written from what programs give; None and 0 mean never.

    Args:
        steps: A number, for every so many steps; a schedule, or what `Schedule` takes.

    Raises:
        InputError: it is something else.
    """
    if steps is None or steps == 0:
        return None
    if isinstance(steps, int):
        return Every(steps)
    return AtIterations(steps if isinstance(steps, Schedule) else Schedule(steps))


@dataclass(frozen=True)
class StepsToRun:
    """What a program says of the number of steps.

    `num_steps`, or `num_epochs` times their steps, and never more than are left to `max_steps`. Where only
    `max_steps` is given it says the number, and where nothing is given it is one epoch.

    Raises:
        InputError: steps and epochs are both given, or a number is not positive.
    """

    initial_step: int = 0
    num_steps: int | None = None
    max_steps: int | None = None
    num_epochs: int | None = None
    steps_per_epoch: int | None = None
    grad_accum_steps: int = 1

    def __post_init__(self) -> None:
        if self.num_steps is not None and (self.num_epochs is not None or self.steps_per_epoch is not None):
            raise InputError("num_steps is given with epochs, expected one of the two ways to say the steps")
        for name in ("num_steps", "max_steps", "num_epochs", "steps_per_epoch", "grad_accum_steps"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, SupportsIndex) and int(value) > 0):
                raise InputError(f"{name} is {value!r}, expected a whole number of 1 or more")
        if not (isinstance(self.initial_step, SupportsIndex) and self.initial_step >= 0):
            raise InputError(f"initial_step is {self.initial_step!r}, expected a whole number of 0 or more")

    @property
    def in_epochs(self) -> bool:
        """Whether epochs say the number."""
        told = self.num_steps is not None or self.max_steps is not None
        return not told or self.num_epochs is not None or self.steps_per_epoch is not None

    def of(self, loader: Any) -> int:
        """Steps to run with a torch DataLoader; 0 where `max_steps` is reached already."""
        left = None if self.max_steps is None else max(0, self.max_steps - self.initial_step)
        wanted = self.per_epoch(loader) * (self.num_epochs or 1) if self.in_epochs else self.num_steps
        return min(steps for steps in (wanted, left) if steps is not None)

    def of_evaluation(self, loader: Any) -> int:
        """Return the steps of an evaluation: `max_steps` is the budget of training runs, which it follows."""
        return replace(self, initial_step=0).of(loader)

    def per_epoch(self, loader: Any) -> int:
        """Steps of an epoch.

        Raises:
            InputError: they are not given, and the loader does not know its length.
        """
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        try:
            batches = len(loader)
        except TypeError as error:
            raise InputError(
                f"the {type(loader).__name__} of the input function does not know its length; give "
                "num_steps, or steps_per_epoch"
            ) from error
        return max(1, batches // self.grad_accum_steps)


def compute_num_steps(
    dataloader: Any,
    initial_step: int = 0,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    grad_accum_steps: int = 1,
) -> int:
    """Steps to run: see `StepsToRun`, whose arguments these are.

    Args:
        dataloader: one of torch, or of `cstorch.utils.data`; its length is an epoch.
        initial_step: steps before this run, which `max_steps` counts.
        num_steps: steps to run.
        max_steps: the most steps, with those before this run.
        num_epochs: steps to run, in epochs; counts for nothing beside `num_steps`.
        steps_per_epoch: steps of an epoch; the length of the loader when None.
        grad_accum_steps: batches of a step.
    """
    if num_steps is not None:  # evaluations of release 1.9 give one epoch as well
        num_epochs = steps_per_epoch = None
    given = StepsToRun(initial_step, num_steps, max_steps, num_epochs, steps_per_epoch, grad_accum_steps)
    return given.of(dataloader)

"""Numbers of steps of a loop, and the iterations at which checkpoints and other events are due."""

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
        InputError: A number is invalid.
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
        """Return the first of these iterations from `target` on; None if there is none."""
        return self.next_after(target - 1)

    def range(self) -> range:
        """Return the iterations as a Python range, without an included last one."""
        return range(self.start, _NEVER if self.end is None else self.end, self.step)

    def match(self, index: int) -> bool:
        """Return True if an iteration is one of these."""
        return index in self.range() or (self.include_last and self.end is not None and index == self.end - 1)

    def next_after(self, index: int) -> int | None:
        """Return the first of these iterations after `index`; None if there is none."""
        first = max(self.start, index + 1)
        found = first + -(first - self.start) % self.step
        if self.end is None or found < self.end:
            return found
        return self.end - 1 if self.include_last and index < self.end - 1 else None


_Range = Range


@dataclass(init=False, repr=False)
class Schedule:
    """Iterations of a loop, counted from 0, at which an event is due.

    Args:
        intervals: `Range` objects that do not overlap, or dicts of their arguments.

    Raises:
        InputError: Another type is given, or ranges overlap.
    """

    Range: ClassVar[type] = Range

    intervals: list[Any]

    def __init__(self, intervals: Any) -> None:
        listed = [intervals] if isinstance(intervals, _Range | Mapping) else list(intervals)
        self.intervals = sorted(map(_range_of, listed), key=lambda interval: interval.start)
        for first, second in zip(self.intervals, self.intervals[1:], strict=False):
            if first.end is None or first.end > second.start:
                raise InputError(f"the ranges {first} and {second} overlap, expected disjoint ones")

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
        """The last iteration; None without ranges, or if they have no end."""
        if not self.intervals or self.intervals[-1].end is None:
            return None
        last = self.intervals[-1]
        assert last.end is not None
        return last.end - 1 if last.include_last else last.range()[-1]

    def range(self) -> list[range]:
        """Return the ranges as Python ranges, without included last ones."""
        return [interval.range() for interval in self.intervals]

    def match(self, index: int) -> bool:
        """Return True if the event is due at an iteration."""
        return any(interval.match(index) for interval in self.intervals)

    def next_after(self, index: int) -> int | None:
        """Return the first iteration after `index` at which the event is due; None if there is none."""
        found = (interval.next_after(index) for interval in self.intervals)
        return min((step for step in found if step is not None), default=None)

    def next_immediate_step(self, target: int) -> int | None:
        """Return the first iteration from `target` on at which the event is due; None without ranges.

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
    """The steps after which the state of a loop may be read.

    Attributes:
        exact: Checkpoints are written at these steps only, and not after the last step in addition.
    """

    exact: bool

    def match(self, done: int) -> bool:
        """Return True if the state may be read after `done` iterations."""
        ...

    def left(self, done: int) -> int:
        """Return the number of iterations up to the next such step; a very large one if there is none."""
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
        """Return True after a multiple of the interval."""
        return done > 0 and done % self.steps == 0

    def left(self, done: int) -> int:
        """Return the number of iterations up to the next multiple of the interval."""
        return self.steps - done % self.steps


@dataclass(frozen=True)
class AtIterations:
    """After the iterations of a schedule."""

    schedule: Schedule
    exact = True

    def __str__(self) -> str:
        return f"iterations {self.schedule}"

    def match(self, done: int) -> bool:
        """Return True after an iteration of the schedule."""
        return self.schedule.match(done - 1)

    def left(self, done: int) -> int:
        """Return the number of iterations up to the end of the next one in the schedule."""
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
    """Convert the checkpoint steps that a program gives; None and 0 mean never.

    Args:
        steps: An interval of steps, a schedule, or the argument of `Schedule`.

    Raises:
        InputError: The value has another type.
    """
    if steps is None or steps == 0:
        return None
    if isinstance(steps, int):
        return Every(steps)
    return AtIterations(steps if isinstance(steps, Schedule) else Schedule(steps))


@dataclass(frozen=True)
class StepsToRun:
    """The number of steps that a program asks for.

    It is `num_steps`, or `num_epochs` times the steps of an epoch, limited by the steps that are left to
    `max_steps`. If only `max_steps` is given, it is the number; if nothing is given, it is one epoch.

    Raises:
        InputError: Both steps and epochs are given, or a number is not positive.
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
        """True if the number is given in epochs."""
        has_limit = self.num_steps is not None or self.max_steps is not None
        return not has_limit or self.num_epochs is not None or self.steps_per_epoch is not None

    def of(self, loader: Any) -> int:
        """Return the steps to run with a torch DataLoader; 0 if `max_steps` is already reached."""
        left = None if self.max_steps is None else max(0, self.max_steps - self.initial_step)
        wanted = self.per_epoch(loader) * (self.num_epochs or 1) if self.in_epochs else self.num_steps
        return min(steps for steps in (wanted, left) if steps is not None)

    def of_evaluation(self, loader: Any) -> int:
        """Return the steps of an evaluation, for which `max_steps` is the number of steps."""
        return replace(self, initial_step=0).of(loader)

    def per_epoch(self, loader: Any) -> int:
        """Return the steps of an epoch.

        Raises:
            InputError: They are not given, and the loader has no length.
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
    """Return the number of steps to run.

    Args:
        dataloader: A loader of PyTorch or of `cstorch.utils.data`, whose length is an epoch.
        initial_step: Steps before this run, which `max_steps` includes.
        num_steps: Steps to run.
        max_steps: Maximum number of steps, including those before this run.
        num_epochs: Steps to run, in epochs; ignored if `num_steps` is given.
        steps_per_epoch: Steps of an epoch; None for the length of the loader.
        grad_accum_steps: Batches of a step.
    """
    if num_steps is not None:  # evaluations of release 1.9 give one epoch as well
        num_epochs = steps_per_epoch = None
    given = StepsToRun(initial_step, num_steps, max_steps, num_epochs, steps_per_epoch, grad_accum_steps)
    return given.of(dataloader)

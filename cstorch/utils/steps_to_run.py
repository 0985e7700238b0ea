"""How many steps a run has: in steps, in epochs, and no more than some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from cstorch.errors import InputError


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

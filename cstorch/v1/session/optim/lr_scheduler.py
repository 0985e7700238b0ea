"""Schedules as releases 1.x name them, mostly without `LR`; those of later releases have their names too.

In programs of these releases the learning rate is a function of the step: schedules count the steps of their
optimizer, whether or not the program calls their `step`. A schedule that is created after another one for the
same optimizer begins where that one ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from cstorch.errors import ScheduleError
from cstorch.optim import lr_scheduler as later
from cstorch.optim.lr_scheduler import (
    ChainedLR,
    ConstantLR,
    CosineAnnealingLR,
    CosineDecayLR,
    ExponentialLR,
    InverseExponentialTimeDecayLR,
    InverseSquareRootDecayLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PiecewiseConstantLR,
    PolynomialLR,
    SequentialLR,
    StepLR,
)
from cstorch.optim.scheduler import Scheduler
from cstorch.tracing.state import steps_done

__all__ = [
    "ChainedLR",
    "Constant",
    "ConstantLR",
    "CosineAnnealing",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CosineDecay",
    "CosineDecayLR",
    "CyclicLR",
    "Exponential",
    "ExponentialLR",
    "InverseExponentialTimeDecay",
    "InverseExponentialTimeDecayLR",
    "InverseSquareRootDecay",
    "InverseSquareRootDecayLR",
    "LRScheduler",
    "Lambda",
    "LambdaLR",
    "LinearLR",
    "MultiStep",
    "MultiStepLR",
    "Multiplicative",
    "MultiplicativeLR",
    "OneCycleLR",
    "PiecewiseConstantLR",
    "Polynomial",
    "PolynomialLR",
    "ScalePerParamLR",
    "SequentialLR",
    "Step",
    "StepLR",
]

# Attribute of an optimizer: the schedules that follow each other, in the order of creation.
_SCHEDULES = "_declared_schedules"
# Attribute of an optimizer: all schedules that were created for it.
_DECLARED = "_all_declared_schedules"
# Attribute of an optimizer: the schedule that its steps advance, which may be a sequence of all.
_SCHEDULE = "_schedule_of_steps"


class _Declared(LRScheduler):
    """Counts the steps of its optimizer, from the end of the schedule before it.

    With `disable_lr_steps_reset`, which follows the arguments of a schedule, it counts all steps.
    """

    disable_lr_steps_reset: bool

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *arguments: Any,
        disable_lr_steps_reset: bool = False,
        **named: Any,
    ) -> None:
        position = [*inspect.signature(super().__init__).parameters].index("param_group_tags") - 1
        if len(arguments) > position and isinstance(arguments[position], bool):
            disable_lr_steps_reset = arguments[position]
            arguments = arguments[:position] + arguments[position + 1 :]
        self.disable_lr_steps_reset = disable_lr_steps_reset
        super().__init__(optimizer, *arguments, **named)
        before: list[Any] = vars(optimizer).get(_SCHEDULES, [])
        if any(schedule.total_iters is None for schedule in before):
            before = []  # without an end at which this one could begin
        vars(optimizer)[_SCHEDULES] = [*before, self]
        vars(optimizer)[_SCHEDULE] = _sequence(optimizer)
        vars(optimizer).setdefault(_DECLARED, []).append(self)
        follow_steps(optimizer)

    def step(self) -> None:
        """Do nothing: the optimizer's step counts."""


class _Sequence(SequentialLR):
    """The declared schedules in sequence."""

    def _go_to(self, epoch: torch.Tensor) -> None:
        super()._go_to(epoch)
        for schedule in self._schedulers:
            if schedule.disable_lr_steps_reset:
                schedule._go_to(epoch)


def _sequence(optimizer: torch.optim.Optimizer) -> Scheduler:
    *before, last = schedules = vars(optimizer)[_SCHEDULES]
    if not before:
        return last
    return _Sequence(optimizer, schedules, list(accumulate(int(x.total_iters) for x in before)))


def chain_schedules(optimizer: torch.optim.Optimizer) -> None:
    """Multiply the schedules of an optimizer, which otherwise follow each other."""
    declared = vars(optimizer).get(_DECLARED)
    if declared:
        vars(optimizer)[_SCHEDULE] = ChainedLR(declared)
        follow_steps(optimizer)


def take_schedule(optimizer: torch.optim.Optimizer) -> Scheduler | None:
    """Detach and return the schedule of an optimizer for the duration of one step."""
    found: Scheduler | None = vars(optimizer).pop(_SCHEDULE, None)
    return found


def count_step(optimizer: torch.optim.Optimizer, schedule: Scheduler | None) -> None:
    """Attach the schedule that `take_schedule` has returned, and advance it by a step."""
    if schedule is not None:
        vars(optimizer)[_SCHEDULE] = schedule
        Scheduler.step(schedule)


def follow_steps(optimizer: torch.optim.Optimizer, rates: Sequence[Any] | None = None) -> None:
    """Set the schedules of an optimizer to the number of steps of its state.

    Args:
        optimizer: An optimizer, whose schedules may count its steps.
        rates: Saved learning rate of each group; computed if None.
    """
    schedule: Scheduler | None = vars(optimizer).get(_SCHEDULE)
    if schedule is not None:
        schedule.go_to(steps_done(), rates)


class Constant(_Declared, ConstantLR):
    """`ConstantLR` of the steps of an optimizer."""


class CosineAnnealing(_Declared, CosineAnnealingLR):
    """`CosineAnnealingLR` of the steps of an optimizer."""


class CosineDecay(_Declared, CosineDecayLR):
    """`CosineDecayLR` of the steps of an optimizer."""


class CosineAnnealingWarmRestarts(_Declared, later.CosineAnnealingWarmRestarts):
    """`CosineAnnealingWarmRestarts` of the steps of an optimizer."""


class CyclicLR(_Declared, later.CyclicLR):
    """`CyclicLR` of the steps of an optimizer."""


class Exponential(_Declared, ExponentialLR):
    """`ExponentialLR` of the steps of an optimizer."""


class InverseExponentialTimeDecay(_Declared, InverseExponentialTimeDecayLR):
    """`InverseExponentialTimeDecayLR` of the steps of an optimizer."""


class InverseSquareRootDecay(_Declared, InverseSquareRootDecayLR):
    """`InverseSquareRootDecayLR` of the steps of an optimizer."""


class Lambda(_Declared, LambdaLR):
    """`LambdaLR` of the steps of an optimizer."""


class MultiStep(_Declared, MultiStepLR):
    """`MultiStepLR` of the steps of an optimizer."""


class Multiplicative(_Declared, MultiplicativeLR):
    """`MultiplicativeLR` of the steps of an optimizer."""


class OneCycleLR(_Declared, later.OneCycleLR):
    """`OneCycleLR` of the steps of an optimizer."""


class Polynomial(_Declared, PolynomialLR):
    """`PolynomialLR` of the steps of an optimizer."""


class ScalePerParamLR(later.ScalePerParamLR):
    """The schedules of an optimizer, times `adjust_learning_rate` of each parameter group.

    Args:
        optimizer: Has the schedules.
        scheduler: A schedule of this package; any other object stands for the schedules that were made for
            the optimizer before.
        decay_steps: Without effect: the schedules know their steps.
        disable_lr_steps_reset: Without effect: the schedules know it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        decay_steps: int | None = None,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        if not isinstance(scheduler, Scheduler):
            scheduler = vars(optimizer).get(_SCHEDULE)
        if scheduler is None:
            raise ScheduleError(
                "ScalePerParamLR: the optimizer has no schedule, expected one that was made for it before"
            )
        super().__init__(optimizer, scheduler)
        vars(optimizer)[_SCHEDULE] = self
        follow_steps(optimizer)

    def step(self) -> None:
        """Do nothing: the optimizer's step counts."""


class Step(_Declared, StepLR):
    """`StepLR` of the steps of an optimizer."""

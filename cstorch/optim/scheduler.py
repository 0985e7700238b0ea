"""Schedules of any entry of parameter groups, which subclasses name in `param_group_key`."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from cs_toolkit.subclasses import retrieve_all_subclasses
from cstorch.chosen_backend import current_backend as current_backend_impl
from cstorch.errors import ScheduleError, ScheduleTypeError
from cstorch.optim.base_scheduler import Scheduler, Tags
from cstorch.optim.schedules import (
    ConstantScheduler,
    CosineAnnealingScheduler,
    CosineAnnealingWarmRestartsScheduler,
    CosineDecayScheduler,
    CyclicScheduler,
    ExponentialScheduler,
    InverseExponentialTimeDecayScheduler,
    InverseSquareRootDecayScheduler,
    LambdaScheduler,
    LinearScheduler,
    MultiplicativeScheduler,
    MultiStepScheduler,
    OneCycleScheduler,
    PolynomialScheduler,
    StepScheduler,
)
from cstorch.program import use_cs

__all__ = [
    "ChainedScheduler",
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineDecayScheduler",
    "CyclicScheduler",
    "ExponentialScheduler",
    "InverseExponentialTimeDecayScheduler",
    "InverseSquareRootDecayScheduler",
    "LambdaScheduler",
    "LinearScheduler",
    "MultiStepScheduler",
    "MultiplicativeScheduler",
    "OneCycleScheduler",
    "PiecewiseConstantScheduler",
    "PolynomialScheduler",
    "ScalePerParamScheduler",
    "Scheduler",
    "SequentialScheduler",
    "StepScheduler",
    "current_backend_impl",
    "retrieve_all_subclasses",
    "use_cs",
]

log = logging.getLogger("cstorch")


class CompositeScheduler(Scheduler):
    """A schedule that is made of schedules of the same groups of one optimizer."""

    _schedulers: list[Any]

    def _inner(self) -> Iterator[tuple[str, Scheduler]]:
        return ((str(i), inner) for i, inner in enumerate(self._schedulers))

    def _initial(self) -> float:
        first: Scheduler = self._schedulers[0]
        return first._initial()

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        last_epoch: int,
        param_group_tags: Tags,
    ) -> None:
        if any(inner.optimizer is not optimizer for inner in schedulers):
            raise ScheduleError(
                f"{type(self).__name__}: the schedules are of several optimizers, expected those of one; "
                "make a schedule for each optimizer"
            )
        if any(isinstance(inner, ScalePerParamScheduler) for inner in schedulers):
            raise ScheduleError(
                f"{type(self).__name__} got a {ScalePerParamScheduler.__name__}, whose values differ by "
                "group; expected it as the outermost schedule"
            )
        for inner in schedulers:
            if isinstance(inner, SequentialScheduler) and not isinstance(inner, PiecewiseConstantScheduler):
                log.warning(
                    "%s has a %s, whose schedules keep their first values there, as on the CS software; "
                    "give one list of schedules to change that",
                    type(self).__name__,
                    type(inner).__name__,
                )
        self._schedulers = list(schedulers)
        super().__init__(optimizer, None, last_epoch, param_group_tags)
        _check_tags(self, *self._schedulers)


class SequentialScheduler(CompositeScheduler):
    """Schedules in sequence: the next begins, at its own epoch 0, at each milestone.

    An inner sequence changes at its own milestones, but its schedules keep their first values, as in the
    vendor's package (2.10.0, measured).

    Raises:
        ScheduleTypeError: milestones is no list.
        ScheduleError: the number of milestones is not that of schedules minus one, or they do not ascend.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        self._milestones = _check_milestones(type(self).__name__, milestones, len(schedulers))
        super().__init__(optimizer, schedulers, last_epoch, param_group_tags)

    def _go_to(self, epoch: torch.Tensor) -> None:
        super()._go_to(epoch)
        for begin, inner in zip([0, *self._milestones], self._schedulers, strict=True):
            inner._set_epoch((epoch - begin).clamp(min=0))

    def _get_closed_form_value(self) -> torch.Tensor:
        value: torch.Tensor = self._schedulers[0]._closed_form()
        for begin, inner in zip(self._milestones, self._schedulers[1:], strict=True):
            value = torch.where(self.last_epoch >= begin, inner._closed_form(), value)
        return value


class PiecewiseConstantScheduler(SequentialScheduler):
    """The values of `vals` in sequence; the next begins at each milestone.

    Args:
        optimizer: the optimizer whose groups get the values.
        constant_cls: class of the pieces, which are schedules of the same entry.
        vals: values of the pieces.
        milestones: epochs at which each piece but the first begins.
        param_group_tags: only groups whose `tags` have one of these get values; None for all groups.
        last_epoch: steps taken so far, minus one.

    Raises:
        ScheduleTypeError: milestones is no list.
        ScheduleError: the number of milestones is not that of values minus one, or they do not ascend.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        constant_cls: type[ConstantScheduler],
        vals: Sequence[float],
        milestones: Sequence[int],
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        ends = _check_milestones(type(self).__name__, milestones, len(vals))
        lengths = [*(after - before for before, after in pairwise([0, *ends])), None]
        pieces = [
            constant_cls(optimizer, val, length, param_group_tags=param_group_tags)
            for val, length in zip(vals, lengths, strict=True)
        ]
        super().__init__(optimizer, pieces, milestones, last_epoch, param_group_tags)


class ChainedScheduler(CompositeScheduler):
    """The first schedule, multiplied by the ratio of each other one to its initial value.

    Raises:
        ScheduleError: there are no schedules, or one after the first begins at 0.
    """

    def __init__(
        self, schedulers: Sequence[Scheduler], param_group_tags: Tags = None, last_epoch: int = -1
    ) -> None:
        if not schedulers:
            raise ScheduleError(f"{type(self).__name__}: got no schedules, expected at least one")
        for inner in schedulers[1:]:
            if inner._initial() == 0:
                raise ScheduleError(
                    f"{type(self).__name__}: {type(inner).__name__} begins at 0, and a chain divides by the "
                    "initial value; put it first"
                )
        super().__init__(schedulers[0].optimizer, schedulers, last_epoch, param_group_tags)

    def _set_epoch(self, epoch: torch.Tensor) -> None:
        super()._set_epoch(epoch)
        for inner in self._schedulers:
            inner._set_epoch(epoch)

    def _get_closed_form_value(self) -> torch.Tensor:
        value: torch.Tensor = self._schedulers[0]._closed_form()
        for inner in self._schedulers[1:]:
            value = value * (inner._closed_form() / inner._initial())
        return value


class ScalePerParamScheduler(Scheduler):
    """A schedule, multiplied by `adjust_learning_rate` of each parameter group (1 if it has none).

    Raises:
        ScheduleError: the schedule is for groups with other tags.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self._scheduler = scheduler
        self.adjustment_scalars = [group.get("adjust_learning_rate", 1.0) for group in optimizer.param_groups]
        super().__init__(optimizer, None, last_epoch, param_group_tags)
        _check_tags(self, scheduler)

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes; the inner ones lack `_get_called_within_step`, as in vendor files."""
        found = super().state_dict()
        del found["_scheduler"]["_get_called_within_step"]
        return found

    def _inner(self) -> Iterator[tuple[str, Scheduler]]:
        return iter([("scheduler", self._scheduler)])

    def _go_to(self, epoch: torch.Tensor) -> None:
        super()._go_to(epoch)
        self._scheduler._go_to(epoch)

    def _group_values(self) -> list[torch.Tensor]:
        value = self._scheduler._closed_form()
        groups = zip(self.optimizer.param_groups, self.adjustment_scalars, strict=True)
        return [value * scale for group, scale in groups if self._is_for(group)]


def _check_milestones(name: str, milestones: Any, count: int) -> list[int]:
    """Check the milestones between `count` schedules."""
    if not isinstance(milestones, list | tuple):
        raise ScheduleTypeError(
            f"{name}: milestones is {milestones!r}, expected a list with the step at which each but the "
            "first schedule begins"
        )
    if len(milestones) != count - 1:
        raise ScheduleError(
            f"{name}: got {len(milestones)} milestones for {count} schedules, expected {count - 1}: the step "
            "at which each but the first begins"
        )
    if any(after <= before for before, after in pairwise(milestones)):
        raise ScheduleError(f"{name}: milestones are {list(milestones)}, expected ascending steps")
    return list(milestones)


def _check_tags(outer: Scheduler, *schedulers: Scheduler) -> None:
    for inner in schedulers:
        if inner.param_group_tags != outer.param_group_tags:
            raise ScheduleError(
                f"{type(outer).__name__}: param_group_tags is {outer.param_group_tags}, but "
                f"{inner.param_group_tags} in its {type(inner).__name__}; give both the same"
            )

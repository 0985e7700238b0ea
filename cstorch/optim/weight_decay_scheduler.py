"""Schedules of the weight decay: the formulas of `lr_scheduler`, on another entry of the parameter groups."""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import torch

from cstorch.optim.base_scheduler import Tags
from cstorch.optim.scheduler import (
    ChainedScheduler,
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
    PiecewiseConstantScheduler,
    PolynomialScheduler,
    ScalePerParamScheduler,
    Scheduler,
    SequentialScheduler,
    StepScheduler,
)


class WeightDecayScheduler(Scheduler):
    """A schedule of `weight_decay`; subclasses of programs override `_get_closed_form_value`."""

    param_group_key = "weight_decay"

    def get_last_wd(self) -> list[torch.Tensor | None]:
        """Return the weight decays that this schedule wrote last, by parameter group."""
        return self.get_last_value()


class ConstantWD(ConstantScheduler, WeightDecayScheduler):
    """`ConstantScheduler` of the weight decay."""


class PolynomialWD(PolynomialScheduler, WeightDecayScheduler):
    """`PolynomialScheduler` of the weight decay."""


class LinearWD(LinearScheduler, WeightDecayScheduler):
    """`LinearScheduler` of the weight decay."""


class ExponentialWD(ExponentialScheduler, WeightDecayScheduler):
    """`ExponentialScheduler` of the weight decay."""


class InverseExponentialTimeDecayWD(InverseExponentialTimeDecayScheduler, WeightDecayScheduler):
    """`InverseExponentialTimeDecayScheduler` of the weight decay."""


class InverseSquareRootDecayWD(InverseSquareRootDecayScheduler, WeightDecayScheduler):
    """`InverseSquareRootDecayScheduler` of the weight decay."""


class CosineDecayWD(CosineDecayScheduler, WeightDecayScheduler):
    """`CosineDecayScheduler` of the weight decay."""


class MultiStepWD(MultiStepScheduler, WeightDecayScheduler):
    """`MultiStepScheduler` of the weight decay."""


class StepWD(StepScheduler, WeightDecayScheduler):
    """`StepScheduler` of the weight decay."""


class CosineAnnealingWD(CosineAnnealingScheduler, WeightDecayScheduler):
    """`CosineAnnealingScheduler` of the weight decay."""


class CosineAnnealingWarmRestartsWD(CosineAnnealingWarmRestartsScheduler, WeightDecayScheduler):
    """`CosineAnnealingWarmRestartsScheduler` of the weight decay."""


class LambdaWD(LambdaScheduler, WeightDecayScheduler):
    """`LambdaScheduler` of the weight decay."""


class MultiplicativeWD(MultiplicativeScheduler, WeightDecayScheduler):
    """`MultiplicativeScheduler` of the weight decay."""


class CyclicWD(CyclicScheduler, WeightDecayScheduler):
    """`CyclicScheduler` of the weight decay."""


class OneCycleWD(OneCycleScheduler, WeightDecayScheduler):
    """`OneCycleScheduler` of the weight decay."""


class SequentialWD(SequentialScheduler, WeightDecayScheduler):
    """`SequentialScheduler` of the weight decay."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: list[WeightDecayScheduler],
        milestones: list[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, schedulers, milestones, last_epoch, param_group_tags)


class PiecewiseConstantWD(PiecewiseConstantScheduler, WeightDecayScheduler):
    """`PiecewiseConstantScheduler` of the weight decay."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        vals: list[float],
        milestones: list[int],
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, ConstantWD, vals, milestones, param_group_tags, last_epoch)


class ChainedWD(ChainedScheduler, WeightDecayScheduler):
    """`ChainedScheduler` of the weight decay."""

    def __init__(
        self, schedulers: list[WeightDecayScheduler], param_group_tags: Tags = None, last_epoch: int = -1
    ) -> None:
        super().__init__(schedulers, param_group_tags, last_epoch)


class ScalePerParamWD(ScalePerParamScheduler, WeightDecayScheduler):
    """`ScalePerParamScheduler` of the weight decay."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: WeightDecayScheduler,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, scheduler, param_group_tags, last_epoch)

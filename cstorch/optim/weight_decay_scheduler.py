"""Schedules of the weight decay: the formulas of `lr_scheduler`, on another entry of the parameter groups."""

from __future__ import annotations

import torch

from cstorch.optim import composed_schedules, schedules
from cstorch.optim.scheduler import Scheduler


class WeightDecayScheduler(Scheduler):
    """A schedule of `weight_decay`; a program's own one overrides `_get_closed_form_value`."""

    key = "weight_decay"

    def get_last_wd(self) -> list[torch.Tensor | None]:
        """The weight decays that this schedule wrote last, by parameter group."""
        return self.get_last_value()


class ConstantWD(schedules.Constant, WeightDecayScheduler):
    """`schedules.Constant` of the weight decay."""


class PolynomialWD(schedules.Polynomial, WeightDecayScheduler):
    """`schedules.Polynomial` of the weight decay."""


class LinearWD(schedules.Linear, WeightDecayScheduler):
    """`schedules.Linear` of the weight decay."""


class ExponentialWD(schedules.Exponential, WeightDecayScheduler):
    """`schedules.Exponential` of the weight decay."""


class InverseExponentialTimeDecayWD(schedules.InverseExponentialTimeDecay, WeightDecayScheduler):
    """`schedules.InverseExponentialTimeDecay` of the weight decay."""


class InverseSquareRootDecayWD(schedules.InverseSquareRootDecay, WeightDecayScheduler):
    """`schedules.InverseSquareRootDecay` of the weight decay."""


class CosineDecayWD(schedules.CosineDecay, WeightDecayScheduler):
    """`schedules.CosineDecay` of the weight decay."""


class MultiStepWD(schedules.MultiStep, WeightDecayScheduler):
    """`schedules.MultiStep` of the weight decay."""


class StepWD(schedules.Step, WeightDecayScheduler):
    """`schedules.Step` of the weight decay."""


class CosineAnnealingWD(schedules.CosineAnnealing, WeightDecayScheduler):
    """`schedules.CosineAnnealing` of the weight decay."""


class CosineAnnealingWarmRestartsWD(schedules.CosineAnnealingWarmRestarts, WeightDecayScheduler):
    """`schedules.CosineAnnealingWarmRestarts` of the weight decay."""


class LambdaWD(schedules.Lambda, WeightDecayScheduler):
    """`schedules.Lambda` of the weight decay."""


class MultiplicativeWD(schedules.Multiplicative, WeightDecayScheduler):
    """`schedules.Multiplicative` of the weight decay."""


class CyclicWD(schedules.Cyclic, WeightDecayScheduler):
    """`schedules.Cyclic` of the weight decay."""


class OneCycleWD(schedules.OneCycle, WeightDecayScheduler):
    """`schedules.OneCycle` of the weight decay."""


class SequentialWD(composed_schedules.Sequential, WeightDecayScheduler):
    """`composed_schedules.Sequential` of the weight decay."""


class PiecewiseConstantWD(composed_schedules.PiecewiseConstant, WeightDecayScheduler):
    """`composed_schedules.PiecewiseConstant` of the weight decay."""

    constant = ConstantWD


class ChainedWD(composed_schedules.Chained, WeightDecayScheduler):
    """`composed_schedules.Chained` of the weight decay."""


class ScalePerParamWD(composed_schedules.ScalePerParam, WeightDecayScheduler):
    """`composed_schedules.ScalePerParam` of the weight decay."""

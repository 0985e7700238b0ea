"""Learning rate schedules: `LRScheduler` for a program's own ones, and those that come with the toolkit.

The formulas are in `schedules` and `composed_schedules`; here they have the names of arguments, and of
entries of their states, that programs know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cstorch.optim import composed_schedules, schedules
from cstorch.optim.scheduler import HasGroups, Scheduler, Tags


class LRScheduler(Scheduler):
    """A schedule of the learning rate.

    A program's own one overrides `_get_closed_form_lr`; it may only use torch operations on
    `self.last_epoch`, because a step is recorded once.
    """

    key = "lr"
    names = {
        "val": "learning_rate",
        "initial_val": "initial_learning_rate",
        "end_val": "end_learning_rate",
        "base_val": "base_lr",
        "max_val": "max_lr",
        "adjustment_scalars": "lr_adjustment_scalars",
    }

    def _get_closed_form_lr(self) -> torch.Tensor:
        """The learning rate at `last_epoch`, float32 without dimensions."""
        return self._get_closed_form_value()

    def _closed_form(self) -> torch.Tensor:
        return self._get_closed_form_lr()

    def get_last_lr(self) -> list[torch.Tensor | None]:
        """The learning rates that this schedule wrote last, by parameter group."""
        return self.get_last_value()


class ConstantLR(schedules.Constant, LRScheduler):
    """`schedules.Constant` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        learning_rate: float,
        total_iters: int | None = None,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, learning_rate, total_iters, last_epoch, param_group_tags)


class PolynomialLR(schedules.Polynomial, LRScheduler):
    """`schedules.Polynomial` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            end_learning_rate,
            total_iters,
            power,
            cycle,
            last_epoch,
            param_group_tags,
        )


class LinearLR(schedules.Linear, LRScheduler):
    """`schedules.Linear` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        cycle: bool = False,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            end_learning_rate,
            total_iters,
            cycle,
            last_epoch,
            param_group_tags,
        )


class ExponentialLR(schedules.Exponential, LRScheduler):
    """`schedules.Exponential` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, total_iters, decay_rate, staircase, last_epoch, param_group_tags
        )


class InverseExponentialTimeDecayLR(schedules.InverseExponentialTimeDecay, LRScheduler):
    """`schedules.InverseExponentialTimeDecay` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        step_exponent: int,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            step_exponent,
            total_iters,
            decay_rate,
            staircase,
            last_epoch,
            param_group_tags,
        )


class InverseSquareRootDecayLR(schedules.InverseSquareRootDecay, LRScheduler):
    """`schedules.InverseSquareRootDecay` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, scale, warmup_steps, last_epoch, param_group_tags)


class CosineDecayLR(schedules.CosineDecay, LRScheduler):
    """`schedules.CosineDecay` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, end_learning_rate, total_iters, last_epoch, param_group_tags
        )


class MultiStepLR(schedules.MultiStep, LRScheduler):
    """`schedules.MultiStep` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        gamma: float,
        milestones: Sequence[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, gamma, milestones, last_epoch, param_group_tags)


class StepLR(schedules.Step, LRScheduler):
    """`schedules.Step` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        step_size: int,
        gamma: float,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, step_size, gamma, last_epoch, param_group_tags)


class CosineAnnealingLR(schedules.CosineAnnealing, LRScheduler):
    """`schedules.CosineAnnealing` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        T_max: int,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, T_max, eta_min, last_epoch, param_group_tags)


class CosineAnnealingWarmRestarts(schedules.CosineAnnealingWarmRestarts, LRScheduler):
    """`schedules.CosineAnnealingWarmRestarts` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        T_0: int,  # noqa: N803
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, T_0, T_mult, eta_min, last_epoch, param_group_tags)


class LambdaLR(schedules.Lambda, LRScheduler):
    """`schedules.Lambda` of the learning rate; a program overrides `set_lr_lambda`."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, last_epoch, param_group_tags)

    def set_lr_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
        """Functions of the epoch, a float32 tensor without dimensions; for subclasses to override."""
        return super().set_value_lambda()

    def set_value_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
        """The functions of `set_lr_lambda`."""
        return self.set_lr_lambda()


class MultiplicativeLR(schedules.Multiplicative, LRScheduler):
    """`schedules.Multiplicative` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        coefficient: float,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, coefficient, last_epoch, param_group_tags)


class CyclicLR(schedules.Cyclic, LRScheduler):
    """`schedules.Cyclic` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer,
            base_lr,
            max_lr,
            step_size_up,
            step_size_down,
            mode,
            gamma,
            scale_mode,
            last_epoch,
            param_group_tags,
        )


class OneCycleLR(schedules.OneCycle, LRScheduler):
    """`schedules.OneCycle` of the learning rate."""

    def __init__(
        self,
        optimizer: HasGroups,
        initial_learning_rate: float,
        max_lr: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            max_lr,
            total_steps,
            pct_start,
            final_div_factor,
            three_phase,
            anneal_strategy,
            last_epoch,
            param_group_tags,
        )


class SequentialLR(composed_schedules.Sequential, LRScheduler):
    """`composed_schedules.Sequential` of the learning rate."""


class PiecewiseConstantLR(composed_schedules.PiecewiseConstant, LRScheduler):
    """`composed_schedules.PiecewiseConstant` of the learning rate."""

    constant = ConstantLR

    def __init__(
        self,
        optimizer: HasGroups,
        learning_rates: Sequence[float],
        milestones: Sequence[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, learning_rates, milestones, last_epoch, param_group_tags)


class ChainedLR(composed_schedules.Chained, LRScheduler):
    """`composed_schedules.Chained` of the learning rate."""


class ScalePerParamLR(composed_schedules.ScalePerParam, LRScheduler):
    """`composed_schedules.ScalePerParam` of the learning rate."""


ChainedScheduler = ChainedLR
"""The name that torch has for it."""

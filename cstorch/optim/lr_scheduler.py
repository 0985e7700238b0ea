"""Learning rate schedules: the base class `LRScheduler` for programs, and those of the toolkit.

The formulas are in `schedules` and `scheduler`; here they have the names of arguments, and of entries of
their states, that programs use.
"""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from cstorch.optim.base_scheduler import Tags, stored_as
from cstorch.optim.scheduler import (
    ChainedScheduler as BaseChainedScheduler,
)
from cstorch.optim.scheduler import (
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

_NAMED_ALIKE = ("CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR", "ScalePerParamLR")
"""Schedules of releases 1.x with the same names and other arguments."""
_OF_SESSIONS = (
    "Constant",
    "CosineAnnealing",
    "CosineDecay",
    "Exponential",
    "InverseExponentialTimeDecay",
    "InverseSquareRootDecay",
    "Lambda",
    "MultiStep",
    "Multiplicative",
    "Polynomial",
    "Step",
)


class LRScheduler(Scheduler):
    """A schedule of the learning rate.

    Subclasses of programs override `_get_closed_form_lr`, which may only use torch operations on
    `self.last_epoch`, because a step is recorded once.
    """

    param_group_key = "lr"

    def __new__(cls, optimizer: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Make the schedule of releases 1.x for an optimizer of their API, if both have one name."""
        declares = getattr(optimizer, "declares_schedules", False)  # counts the steps of its schedules
        if cls.__module__ == __name__ and cls.__name__ in _NAMED_ALIKE and declares:
            cls = getattr(import_module("cstorch.v1.session.optim.lr_scheduler"), cls.__name__)
        return super().__new__(cls)

    val = stored_as("learning_rate")
    initial_val = stored_as("initial_learning_rate")
    end_val = stored_as("end_learning_rate")
    base_val = stored_as("base_lr")
    max_val = stored_as("max_lr")
    adjustment_scalars = stored_as("lr_adjustment_scalars")

    def _get_closed_form_lr(self) -> torch.Tensor:
        """Return the learning rate at `last_epoch`, a float32 scalar."""
        return self._get_closed_form_value()

    def _closed_form(self) -> torch.Tensor:
        return self._get_closed_form_lr()

    def get_lr(self) -> list[torch.Tensor | None]:
        """Return the learning rate at `last_epoch` for each parameter group."""
        return self.get()

    def get_last_lr(self) -> list[torch.Tensor | None]:
        """Return the learning rates that this schedule wrote last, by parameter group."""
        return self.get_last_value()


class ConstantLR(ConstantScheduler, LRScheduler):
    """`ConstantScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rate: float,
        total_iters: int | None = None,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, learning_rate, total_iters, param_group_tags, last_epoch)


class PolynomialLR(PolynomialScheduler, LRScheduler):
    """`PolynomialScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            end_learning_rate,
            total_iters,
            power,
            cycle,
            param_group_tags,
            last_epoch,
        )


class LinearLR(LinearScheduler, LRScheduler):
    """`LinearScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        cycle: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            end_learning_rate,
            total_iters,
            cycle,
            param_group_tags,
            last_epoch,
        )


class ExponentialLR(ExponentialScheduler, LRScheduler):
    """`ExponentialScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, total_iters, decay_rate, staircase, param_group_tags, last_epoch
        )


class InverseExponentialTimeDecayLR(InverseExponentialTimeDecayScheduler, LRScheduler):
    """`InverseExponentialTimeDecayScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        step_exponent: int,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer,
            initial_learning_rate,
            step_exponent,
            total_iters,
            decay_rate,
            staircase,
            param_group_tags,
            last_epoch,
        )


class InverseSquareRootDecayLR(InverseSquareRootDecayScheduler, LRScheduler):
    """`InverseSquareRootDecayScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, scale, warmup_steps, param_group_tags, last_epoch)


class CosineDecayLR(CosineDecayScheduler, LRScheduler):
    """`CosineDecayScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer, initial_learning_rate, end_learning_rate, total_iters, param_group_tags, last_epoch
        )


class MultiStepLR(MultiStepScheduler, LRScheduler):
    """`MultiStepScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        gamma: float,
        milestones: list[int],
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, gamma, milestones, param_group_tags, last_epoch)


class StepLR(StepScheduler, LRScheduler):
    """`StepScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        step_size: int,
        gamma: float,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, step_size, gamma, param_group_tags, last_epoch)


class CosineAnnealingLR(CosineAnnealingScheduler, LRScheduler):
    """`CosineAnnealingScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        T_max: int,  # noqa: N803
        eta_min: float = 0.0,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, T_max, eta_min, param_group_tags, last_epoch)


class CosineAnnealingWarmRestarts(CosineAnnealingWarmRestartsScheduler, LRScheduler):
    """`CosineAnnealingWarmRestartsScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        T_0: int,  # noqa: N803
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, T_0, T_mult, eta_min, param_group_tags, last_epoch)


class LambdaLR(LambdaScheduler, LRScheduler):
    """`LambdaScheduler` of the learning rate; a program overrides `set_lr_lambda`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, param_group_tags, last_epoch)

    def set_lr_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
        """Return functions of the epoch, a float32 scalar; for subclasses to override."""
        return super().set_value_lambda()

    def set_value_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
        """Return the functions of `set_lr_lambda`."""
        return self.set_lr_lambda()


class MultiplicativeLR(MultiplicativeScheduler, LRScheduler):
    """`MultiplicativeScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        coefficient: float,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, initial_learning_rate, coefficient, param_group_tags, last_epoch)


class CyclicLR(CyclicScheduler, LRScheduler):
    """`CyclicScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        param_group_tags: Tags = None,
        last_epoch: int = -1,
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
            param_group_tags,
            last_epoch,
        )


class OneCycleLR(OneCycleScheduler, LRScheduler):
    """`OneCycleScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_learning_rate: float,
        max_lr: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        param_group_tags: Tags = None,
        last_epoch: int = -1,
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
            param_group_tags,
            last_epoch,
        )


class SequentialLR(SequentialScheduler, LRScheduler):
    """`SequentialScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        super().__init__(optimizer, schedulers, milestones, last_epoch, param_group_tags)


class PiecewiseConstantLR(PiecewiseConstantScheduler, LRScheduler):
    """`PiecewiseConstantScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        learning_rates: list[float],
        milestones: list[int],
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, ConstantLR, learning_rates, milestones, param_group_tags, last_epoch)


class ChainedLR(BaseChainedScheduler, LRScheduler):
    """`ChainedScheduler` of the learning rate."""

    def __init__(
        self, schedulers: list[LRScheduler], param_group_tags: Tags = None, last_epoch: int = -1
    ) -> None:
        super().__init__(schedulers, param_group_tags, last_epoch)


class ChainedScheduler(ChainedLR):
    """`ChainedLR` under its name in torch."""


class ScalePerParamLR(ScalePerParamScheduler, LRScheduler):
    """`ScalePerParamScheduler` of the learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer, scheduler, param_group_tags, last_epoch)


def __getattr__(name: str) -> Any:
    """Return a schedule of the session API, which release 1.9 has in this module too."""
    if name not in _OF_SESSIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("cstorch.v1.session.optim.lr_scheduler"), name)

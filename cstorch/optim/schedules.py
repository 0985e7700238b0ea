"""The formulas of schedules, for learning rates and weight decays.

`e` is the epoch (`last_epoch`), `v0` the initial value, `v1` the final one. Formulas that follow undocumented
behavior of the vendor's package (2.10.0, measured) say so.
"""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import math
from collections.abc import Callable
from typing import Any

import torch

from cstorch.errors import ScheduleError, ScheduleFunctionError, TensorReadError
from cstorch.optim.base_scheduler import Scheduler, Tags
from cstorch.tracing.recorder import refusing_state_reads


class ConstantScheduler(Scheduler):
    """Always the same value; `total_iters` only says how long it is meant for."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        val: float,
        total_iters: int | None = None,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.val = val
        super().__init__(optimizer, total_iters, last_epoch, param_group_tags)

    def _initial(self) -> float:
        return float(self.val)

    def _get_closed_form_value(self) -> torch.Tensor:
        return self._constant(self.val)


class PolynomialScheduler(Scheduler):
    """`v1 + (v0 - v1) * (1 - e / total_iters) ** power`, and `v1` from `total_iters` on."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.end_val = end_val
        self.power = power
        self.cycle = cycle  # has no effect, as in the vendor's package: the value stays at `end_val`
        super().__init__(optimizer, total_iters, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        rest = 1 - self._epoch().clamp(max=self.total_iters) / self.total_iters
        return self.end_val + (self.initial_val - self.end_val) * rest**self.power


class LinearScheduler(PolynomialScheduler):
    """From `v0` to `v1` in a straight line, and `v1` from `total_iters` on."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int,
        cycle: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        super().__init__(
            optimizer, initial_val, end_val, total_iters, 1.0, cycle, param_group_tags, last_epoch
        )


class ExponentialScheduler(Scheduler):
    """`v0 * decay_rate ** (e / total_iters)`; `staircase` rounds the exponent down."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.decay_rate = decay_rate
        self.staircase = staircase
        super().__init__(optimizer, total_iters, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        exponent = self._epoch() / self.total_iters
        return self.initial_val * self.decay_rate ** (exponent.floor() if self.staircase else exponent)


class InverseExponentialTimeDecayScheduler(Scheduler):
    """`v0 / (1 + decay_rate * e ** step_exponent / total_iters)`.

    `staircase` rounds `e ** step_exponent / total_iters` down.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        step_exponent: int,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.step_exponent = step_exponent
        self.decay_rate = decay_rate
        self.staircase = staircase
        super().__init__(optimizer, total_iters, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        time = self._epoch() ** self.step_exponent / self.total_iters
        return self.initial_val / (1 + self.decay_rate * (time.floor() if self.staircase else time))


class InverseSquareRootDecayScheduler(Scheduler):
    """`scale * v0 / sqrt(max(e, warmup_steps))`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.scale = scale
        self.warmup_steps = warmup_steps
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        return self.scale * self.initial_val / self._epoch().clamp(min=self.warmup_steps).sqrt()


class CosineDecayScheduler(Scheduler):
    """Half a cosine from `v0` to `v1`, and `v1` from `total_iters` on."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.end_val = end_val
        super().__init__(optimizer, total_iters, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        part = self._epoch().clamp(max=self.total_iters) / self.total_iters
        return _half_cosine(self.initial_val, self.end_val, part)


class MultiStepScheduler(Scheduler):
    """`v0 * gamma ** n`, where `n` milestones are reached."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        gamma: float,
        milestones: list[int],
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.gamma = gamma
        self.milestones = list(milestones)
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        value = self._constant(self.initial_val)
        for milestone in self.milestones:
            value = value * torch.where(self.last_epoch >= milestone, self.gamma, 1.0)
        return value


class StepScheduler(Scheduler):
    """`v0 * gamma ** (e // step_size)`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        step_size: int,
        gamma: float,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.gamma = gamma
        self.step_size = step_size
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        return self.initial_val * self.gamma ** (self._epoch() / self.step_size).floor()


class CosineAnnealingScheduler(Scheduler):
    """A cosine between `v0` and `eta_min`, from one to the other in `T_max` steps, without an end."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        T_max: int,  # noqa: N803 (the name that programs give)
        eta_min: float = 0.0,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.T_max = float(T_max)
        self.eta_min = eta_min
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        return _half_cosine(self.initial_val, self.eta_min, self._epoch() / self.T_max)


class CosineAnnealingWarmRestartsScheduler(Scheduler):
    """Half a cosine from `v0` to `eta_min` in `T_0` steps; then `v0` and `eta_min`, for `T_0` steps each.

    There are no more cosines after the first, as in the vendor's package, whose numbers programs compare.

    Raises:
        ScheduleError: `T_mult` is not 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        T_0: int,  # noqa: N803 (the name that programs give)
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        if T_mult != 1:
            raise ScheduleError(
                f"{type(self).__name__}: T_mult is {T_mult}, expected 1; for growing periods give a list "
                "of CosineDecay schedules, one for each period"
            )
        self.initial_val = initial_val
        self.T_0 = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _get_closed_form_value(self) -> torch.Tensor:
        part = self._epoch() / self.T_0
        return _half_cosine(self.initial_val, self.eta_min, torch.where(part < 1, part, part.floor() - 1))


class LambdaScheduler(Scheduler):
    """The product of `v0 * f(e)` over the functions of `set_value_lambda`.

    The default functions give `v0 * (e / 30)` times `v0 * 0.95 ** e`, as in the vendor's package.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def set_value_lambda(self) -> list[Callable[[torch.Tensor], Any]]:
        """Return functions of the epoch, a float32 scalar; for subclasses to override."""
        return [lambda epoch: epoch / 30, lambda epoch: 0.95**epoch]

    def _get_closed_form_value(self) -> torch.Tensor:
        value = self._constant(1.0)
        for function in self.set_value_lambda():
            value = value * self.initial_val * self._evaluate(function)
        return value

    def _evaluate(self, function: Callable[[torch.Tensor], Any]) -> Any:
        try:
            with refusing_state_reads():
                return function(self._epoch())
        except TensorReadError as error:
            named = getattr(function, "__qualname__", repr(function))
            raise ScheduleFunctionError(type(self).__name__, named, str(error)) from error


class MultiplicativeScheduler(Scheduler):
    """`v0 * coefficient ** e`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        coefficient: float,
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        self.coefficient = coefficient
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def set_value_lambda(self) -> Callable[[torch.Tensor], Any]:
        """Return the factor as a function of the epoch; for subclasses to override."""
        return lambda epoch: self.coefficient**epoch

    def _get_closed_form_value(self) -> torch.Tensor:
        return self.initial_val * self.set_value_lambda()(self._epoch())


class CyclicScheduler(Scheduler):
    """From `base_val` to `max_val` in `step_size_up` steps and back in `step_size_down`, periodically.

    The amplitude is constant in mode `triangular`, halved after each cycle in `triangular2`, and scaled by
    `gamma ** e` in `exp_range`. `scale_mode`, whether it changes with the cycle or with every step, follows
    from the mode.
    """

    _SCALE_MODES = {"triangular": "cycle", "triangular2": "cycle", "exp_range": "iterations"}

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        base_val: float,
        max_val: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        if mode not in self._SCALE_MODES:
            raise ScheduleError(f"mode is {mode!r}, expected one of {', '.join(self._SCALE_MODES)}")
        self.base_val = base_val
        self.max_val = max_val
        self.step_size_up = step_size_up
        self.step_size_down = step_size_up if step_size_down is None else step_size_down
        self.mode = mode
        self.gamma = gamma
        self.scale_mode = self._SCALE_MODES[mode]
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _initial(self) -> float:
        return float(self.base_val)

    def _get_closed_form_value(self) -> torch.Tensor:
        epoch, period = self._epoch(), self.step_size_up + self.step_size_down
        cycle = (epoch / period).floor()
        inside = epoch - cycle * period
        up, down = inside / self.step_size_up, (period - inside) / self.step_size_down
        height = torch.minimum(up, down) * (self.max_val - self.base_val)
        return self.base_val + height * self.set_scale_fn()(cycle)

    def set_scale_fn(self) -> Callable[[torch.Tensor], torch.Tensor | float]:
        """Return the height of a cycle as a function of its number; for subclasses to override."""
        if self.mode == "triangular2":
            return lambda cycle: 0.5**cycle
        return lambda _: 1.0 if self.mode == "triangular" else self.gamma ** self._epoch()


class OneCycleScheduler(Scheduler):
    """Up from `v0` to `max_val`, and down to `v0 / final_div_factor` at `total_steps - 1`.

    The way up takes `pct_start` of the steps. In three phases it comes back to `v0` in as many steps and goes
    down from there. After the end the last phase continues, as in the vendor's package.

    Attributes:
        anneal_strategy: `cos` for halves of cosines, `linear` for straight lines.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        max_val: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        param_group_tags: Tags = None,
        last_epoch: int = -1,
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ScheduleError(f"anneal_strategy is {anneal_strategy!r}, expected 'cos' or 'linear'")
        self.initial_val = initial_val
        self.max_val = max_val
        self.total_steps = total_steps
        self.pct_start = pct_start
        self.final_div_factor = final_div_factor
        self.three_phase = three_phase
        self.anneal_strategy = anneal_strategy
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def _phases(self) -> list[tuple[float, float, float]]:
        """Last step, value before and value at that step, of each phase."""
        top, low = self.pct_start * self.total_steps - 1, self.initial_val / self.final_div_factor
        up, end = (top, self.initial_val, self.max_val), float(self.total_steps - 1)
        if not self.three_phase:
            return [up, (end, self.max_val, low)]
        back = 2 * self.pct_start * self.total_steps - 2
        return [up, (back, self.max_val, self.initial_val), (end, self.initial_val, low)]

    def _get_closed_form_value(self) -> torch.Tensor:
        epoch, between = self._epoch(), _half_cosine if self.anneal_strategy == "cos" else _straight
        begin, value = 0.0, self._constant(self.initial_val)
        for number, (end, first, last) in enumerate(self._phases()):
            phase = between(first, last, (epoch - begin) / (end - begin))
            value = phase if number == 0 else torch.where(epoch > begin, phase, value)
            begin = end
        return value


def _half_cosine(first: float, last: float, part: torch.Tensor) -> torch.Tensor:
    return last + (first - last) * 0.5 * (1 + torch.cos(math.pi * part))


def _straight(first: float, last: float, part: torch.Tensor) -> torch.Tensor:
    return first + (last - first) * part

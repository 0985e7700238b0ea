"""Numbers that follow the step of a training run: sparsities, drop fractions, and when masks are updated.

A step is recorded once, so all of them are formulas of the step, an int64 tensor without dimensions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cs_toolkit.subclasses import find_program_class

Number: TypeAlias = float | Tensor
"""A Python number, or a tensor without dimensions."""


class HyperParameterSchedule(ABC):
    """A number that is a function of the step.

    Attributes:
        of_updates: gets the number of updates of masks so far in place of the step.
    """

    of_updates = False

    def __call__(self, step: Tensor) -> Number:
        """Return the number at a step, an int64 tensor without dimensions."""
        return self.compute(step)

    @abstractmethod
    def compute(self, step: Tensor) -> Number:
        """Return the number at a step; a program's own schedule defines it by operations of torch."""


class Constant(HyperParameterSchedule):
    """The same number at every step."""

    def __init__(self, value: float) -> None:
        self.value = value

    def compute(self, step: Tensor) -> Number:
        """Return the number."""
        return self.value


class Linear(HyperParameterSchedule):
    """`init + step * slope`."""

    def __init__(self, init: float, slope: float) -> None:
        self.init, self.slope = init, slope

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        return self.init + step.float() * self.slope


class Exp(HyperParameterSchedule):
    """`final + (init - final) * exp(gamma * step)`: from `init` to `final`, with a `gamma` below 0."""

    def __init__(self, init: float, gamma: float, final: float = 1.0) -> None:
        self.init, self.gamma, self.final = init, gamma, final

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        return self.final + (self.init - self.final) * torch.exp(step.float() * self.gamma)


class Power(HyperParameterSchedule):
    """`init * beta ** step`."""

    def __init__(self, init: float, beta: float) -> None:
        self.init, self.beta = init, beta

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        return self.init * torch.pow(self.beta, step.float())


class Cosine(HyperParameterSchedule):
    """A cosine from `init` to `minimum` in `half_period` steps, and back."""

    def __init__(self, init: float, half_period: float, minimum: float = 0.0) -> None:
        self.init, self.half_period, self.minimum = init, half_period, minimum

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        height = (self.init - self.minimum) / 2
        return self.minimum + height * (1 + torch.cos(step.float() * (math.pi / self.half_period)))


class Cycling(HyperParameterSchedule):
    """One of several numbers after the other, the next after each update, the first again after the last."""

    of_updates = True

    def __init__(self, values: Sequence[float]) -> None:
        if not values:
            raise ValueError("got no values to cycle through, expected at least one")
        self.values = list(values)

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        position = torch.remainder(step, len(self.values))
        found = torch.full_like(step, self.values[0], dtype=torch.float32)
        for index, value in enumerate(self.values[1:], 1):
            found = torch.where(position == index, value, found)
        return found


class Lambda(HyperParameterSchedule):
    """A program's function of the step, of torch operations alone."""

    def __init__(self, fn: Callable[[Tensor], Number]) -> None:
        self.fn = fn

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        return self.fn(step)


class UpdateSchedule(ABC):
    """Steps at which masks are updated."""

    def __call__(self, step: Tensor) -> Tensor:
        """Return whether masks are updated at a step, a bool tensor without dimensions."""
        return self.is_update_step(step)

    @abstractmethod
    def is_update_step(self, step: Tensor) -> Tensor:
        """Return whether masks are updated at a step."""


class FreqSchedule(UpdateSchedule):
    """Every `freq` steps from `start` on, before `stop`."""

    def __init__(self, freq: int = 1, start: int = 0, stop: int | None = None) -> None:
        if freq < 1:
            raise ValueError(f"got freq={freq}, expected at least 1 step between two updates of masks")
        self.freq, self.start, self.stop = freq, start, stop

    def is_update_step(self, step: Tensor) -> Tensor:
        """Return whether masks are updated at a step."""
        found = (step >= self.start) & (torch.remainder(step - self.start, self.freq) == 0)
        return found if self.stop is None else found & (step < self.stop)


class ListSchedule(UpdateSchedule):
    """The listed steps."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = sorted(steps)

    def is_update_step(self, step: Tensor) -> Tensor:
        """Return whether masks are updated at a step."""
        return (step == torch.tensor(self.steps, dtype=torch.int64)).any()


class _Asked(UpdateSchedule):
    """Steps for which a program's function says so."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def is_update_step(self, step: Tensor) -> Tensor:
        return self.function(step)


SCHEDULES: dict[str, type[HyperParameterSchedule]] = {
    kind.__name__.lower(): kind for kind in (Constant, Linear, Exp, Power, Cosine, Cycling)
}


def configure_hyperparameter(name: str, given: Any) -> HyperParameterSchedule:
    """Return the schedule that a configuration describes.

    Args:
        name: of the number, for errors.
        given: a number; a list of numbers to cycle through; a function of the step; or a dictionary whose
            `type` is the name of a class, of ours or of the program, in any case, with its arguments.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(given, HyperParameterSchedule):
        return given
    if isinstance(given, int | float | Tensor) and not isinstance(given, bool):
        return Constant(given)
    if isinstance(given, list | tuple):
        return Cycling(given)
    if isinstance(given, Mapping):
        arguments = dict(given)
        name_of_kind = str(arguments.pop("type", "constant"))
        kind = SCHEDULES.get(name_of_kind.lower()) or find_program_class(HyperParameterSchedule, name_of_kind)
        if kind is not None:
            try:
                return kind(**arguments)
            except TypeError as error:
                raise ValueError(f"{name}: {error}; check the arguments of the schedule") from error
    elif callable(given):
        return Lambda(given)
    raise ValueError(
        f"got {name}={given!r}, expected a number, a list of numbers, a function of the step, or a "
        f"dictionary with a type of {', '.join(SCHEDULES)} and its arguments"
    )


def configure_update(given: Any) -> UpdateSchedule:
    """Return the steps at which masks are updated.

    Args:
        given: a dictionary with `freq`, `start` and `stop`, or with `steps`; a list of steps; a function of
            the step; None for every step.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(given, UpdateSchedule):
        return given
    if given is None:
        return FreqSchedule()
    if isinstance(given, Mapping) and given.keys() == {"steps"}:
        return ListSchedule(given["steps"])
    if isinstance(given, Mapping) and given and given.keys() <= {"freq", "start", "stop"}:
        return FreqSchedule(**{name: value for name, value in given.items() if value is not None})
    if isinstance(given, list | tuple):
        return ListSchedule(given)
    if callable(given):
        return _Asked(given)
    raise ValueError(
        f"got update={given!r}, expected a dictionary with freq, start and stop, a list of steps, or a "
        "function of the step"
    )

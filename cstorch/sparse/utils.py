"""Schedules of sparsities and of mask updates, and masks by score, for our algorithms and those of programs.

A step is recorded once, so schedules are formulas of the step, an int64 scalar. Masks are made by rank of a
score, not by threshold, because scores of pruned elements are all 0: exactly the requested number of elements
stays. That number may be a tensor, as in a recorded step.
"""

# Without `from __future__ import annotations`: Model Zoo builds its configuration classes from the types of
# constructor arguments, and cannot resolve strings.

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cs_toolkit.subclasses import find_program_class

Number: TypeAlias = float | Tensor
"""A Python number, or a scalar tensor."""

InitMethod = str | Callable[[Tensor, Number], Tensor]
"""Name of a method for the first mask, or a function of the weight and the sparsity."""
Unshaper = Callable[[Tensor], Tensor]
"""Restores the shape of a tensor that a `ScoreShaper` changed."""
Shaper = Callable[[Tensor], tuple[Tensor, Unshaper]]


class HyperParameterSchedule(ABC):
    """A number that is a function of the step.

    Attributes:
        of_updates: True if it is a function of the number of mask updates so far, instead of the step.
    """

    of_updates = False

    def __call__(self, step: Tensor) -> Number:
        """Return the number at a step, an int64 scalar."""
        return self.compute(step)

    @abstractmethod
    def compute(self, step: Tensor) -> Number:
        """Return the number at a step; schedules of programs define it with operations of torch."""


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
    """Several numbers in a cycle: the next one after each update."""

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
    """A program's function of the step, with torch operations only."""

    def __init__(self, fn: Callable[[Tensor], Number]) -> None:
        self.fn = fn

    def compute(self, step: Tensor) -> Number:
        """Return the number at a step."""
        return self.fn(step)


class UpdateSchedule(ABC):
    """Steps at which masks are updated."""

    def __call__(self, step: Tensor) -> Tensor:
        """Return True if masks are updated at a step, a bool scalar."""
        return self.is_update_step(step)

    @abstractmethod
    def is_update_step(self, step: Tensor) -> Tensor:
        """Return True if masks are updated at a step."""


class FreqSchedule(UpdateSchedule):
    """Every `freq` steps from `start` on, before `stop`."""

    def __init__(self, freq: int = 1, start: int = 0, stop: int | None = None) -> None:
        if freq < 1:
            raise ValueError(f"got freq={freq}, expected at least 1 step between two updates of masks")
        self.freq, self.start, self.stop = freq, start, stop

    def is_update_step(self, step: Tensor) -> Tensor:
        """Return True if masks are updated at a step."""
        found = (step >= self.start) & (torch.remainder(step - self.start, self.freq) == 0)
        return found if self.stop is None else found & (step < self.stop)


class ListSchedule(UpdateSchedule):
    """The listed steps."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = sorted(steps)

    def is_update_step(self, step: Tensor) -> Tensor:
        """Return True if masks are updated at a step."""
        return (step == torch.tensor(self.steps, dtype=torch.int64)).any()


class _FunctionSchedule(UpdateSchedule):
    """Steps for which a program's function returns True."""

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
        name: name of the number, for errors.
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
        return _FunctionSchedule(given)
    raise ValueError(
        f"got update={given!r}, expected a dictionary with freq, start and stop, a list of steps, or a "
        "function of the step"
    )


def kept_count(elements: int, sparsity: Number) -> Tensor:
    """Return the number of elements that a mask keeps, rounded down: an int64 scalar."""
    density = 1 - sparsity
    kept = density if isinstance(density, Tensor) else torch.tensor(density, dtype=torch.float32)
    return torch.floor(kept * elements).to(torch.int64)


def largest(score: Tensor, count: Tensor, groups: int = 1) -> Tensor:
    """Return a mask of the elements with the largest scores; of equal scores, the first ones.

    Args:
        score: scores of any shape.
        count: number of elements to keep.
        groups: number of equal parts of the first dimension, which keep equal numbers of elements.
    """
    rows = score.detach().reshape(groups, -1)
    # Ranks are the inverse permutation of the sorted order; `topk` would need `count` as a Python number.
    order = torch.sort(rows, dim=1, descending=True, stable=True).indices
    places = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[0], -1)
    rank = torch.zeros_like(order).scatter(1, order, places)
    share = count if groups == 1 else torch.div(count, groups, rounding_mode="floor")
    return (rank < share).reshape(score.shape)


def random_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask of random elements."""
    return largest(torch.rand_like(weight), kept_count(weight.numel(), sparsity))


def topk_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask of the largest elements."""
    return largest(weight.detach().abs(), kept_count(weight.numel(), sparsity))


def from_zeros_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask of the elements that are not 0, whatever the sparsity."""
    return weight.detach() != 0


def checkerboard_mask(weight: Tensor, sparsity: Number) -> Tensor:
    """Return a mask whose elements are spread evenly."""
    places = torch.arange(weight.numel(), device=weight.device)
    density = kept_count(weight.numel(), sparsity).float() / max(weight.numel(), 1)
    filled = ((places + 1) * density).floor() > (places * density).floor()
    return filled.reshape(weight.shape)


INIT_METHODS: dict[str, Callable[[Tensor, Number], Tensor]] = {
    "random": random_mask,
    "topk": topk_mask,
    "from_zeros": from_zeros_mask,
    "checkerboard": checkerboard_mask,
}


def init_method_of(given: InitMethod) -> Callable[[Tensor, Number], Tensor]:
    """Convert an init method to a function.

    Raises:
        ValueError: there is none of that name.
    """
    found = INIT_METHODS.get(given) if isinstance(given, str) else given
    if not callable(found):
        raise ValueError(
            f"got init_method={given!r}, expected one of {', '.join(INIT_METHODS)}, or a function of the "
            "weight and its sparsity"
        )
    return found


class ScoreShaper(ABC):
    """Groups scores: elements compete along the last dimension of the result of a call."""

    @abstractmethod
    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return the tensor in groups, and a function that restores its shape."""


class ScoreFlattener(ScoreShaper):
    """All elements compete."""

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return one dimension."""
        return tensor.reshape(-1), lambda shaped: shaped.reshape(tensor.shape)


class OutputGroupScoreShaper(ScoreShaper):
    """Rows in groups: dimension 0 is divided into parts of equal size.

    Args:
        num_groups: number of parts.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return a row for each group."""
        return tensor.reshape(self.num_groups, -1), lambda shaped: shaped.reshape(tensor.shape)


class InputGroupScoreShaper(ScoreShaper):
    """Columns in groups: dimension 1 of a matrix is divided into parts of equal size.

    Args:
        num_groups: number of parts.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Unshaper]:
        """Return a row for each group."""
        outputs, inputs = tensor.shape
        shaped = tensor.T.reshape(self.num_groups, -1)
        return shaped, lambda shaped: shaped.reshape(inputs, outputs).T.contiguous()


def make_mask_topk_sparsity(score: Tensor, sparsity: Number, score_shaper: Shaper | None = None) -> Tensor:
    """Return a mask of the elements with the largest scores.

    Args:
        score: scores of any shape.
        sparsity: share of zeros in each group.
        score_shaper: makes the groups; None for a single one.
    """
    shaped, restore = (score_shaper or ScoreFlattener())(score)
    return restore(_largest_of_rows(shaped, kept_count(shaped.shape[-1], sparsity)))


def make_mask_drop_minimum(
    score: Tensor, mask: Tensor, drop_fraction: Number, score_shaper: Shaper | None = None
) -> tuple[Tensor, Tensor]:
    """Return a mask without the smallest scores, and the number of elements in each of its groups.

    Args:
        score: scores of any shape; elements outside of the mask have the smallest scores.
        mask: bool tensor of its shape.
        drop_fraction: share of the elements of the mask that are dropped.
        score_shaper: makes the groups; None for a single one.
    """
    shaped, restore = (score_shaper or ScoreFlattener())(score)
    groups = shaped.numel() // shaped.shape[-1]
    count = (mask.sum().float() / groups * (1 - drop_fraction)).to(torch.int32)
    return restore(_largest_of_rows(shaped, count)), count


def make_mask_grow_maximum(
    score: Tensor,
    mask: Tensor,
    sparsity: Number,
    mask_nonzero: Tensor | None = None,
    score_shaper: Shaper | None = None,
) -> Tensor:
    """Return a mask to which the elements with the largest scores are added, up to a share of zeros.

    Args:
        score: scores of any shape.
        mask: bool tensor of its shape.
        sparsity: share of zeros in each group of the new mask.
        mask_nonzero: number of elements in each group of the mask; None to count those of the whole mask.
        score_shaper: makes the groups; None for a single one.
    """
    shaped, restore = (score_shaper or ScoreFlattener())(torch.where(mask, -torch.inf, score))
    present = mask.sum() if mask_nonzero is None else mask_nonzero
    missing = kept_count(shaped.shape[-1], sparsity) - present
    return mask.logical_or(restore(_largest_of_rows(shaped, missing.clamp(min=0))))


def _largest_of_rows(score: Tensor, count: Tensor) -> Tensor:
    """Return a mask of the largest scores along the last dimension, in equal number for each row."""
    groups = score.numel() // score.shape[-1]
    return largest(score, count * groups, groups)


make_update_schedule = configure_update


def make_hyperparam_schedule(schedule: Any) -> HyperParameterSchedule:
    """Return the schedule of a number, a list to cycle through, a function of the step, or a dictionary."""
    return configure_hyperparameter("schedule", schedule)


__all__ = [
    "Constant",
    "Cosine",
    "Cycling",
    "Exp",
    "FreqSchedule",
    "HyperParameterSchedule",
    "InitMethod",
    "InputGroupScoreShaper",
    "Lambda",
    "Linear",
    "ListSchedule",
    "OutputGroupScoreShaper",
    "Power",
    "ScoreFlattener",
    "ScoreShaper",
    "UpdateSchedule",
    "configure_hyperparameter",
    "configure_update",
    "init_method_of",
    "largest",
    "make_hyperparam_schedule",
    "make_mask_drop_minimum",
    "make_mask_grow_maximum",
    "make_mask_topk_sparsity",
    "make_update_schedule",
]

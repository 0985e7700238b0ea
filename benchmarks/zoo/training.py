"""Trains a workload by its framework and on the CS system, and compares the two.

Both runs have the same first weights, batches and optimizer: gradient descent with momentum, because rules
that divide by small gradients turn rounding errors into updates of full size. The loss of every step is
compared, and how far each tensor of the state has moved in all of them: a wrong gradient shows there, and
hardly in the weights, which change little in five steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from cgc.report.page import page_environment

LEARNING_RATE, MOMENTUM = 0.001, 0.9

LOSS_LIMIT, UPDATE_LIMIT = 1e-3, 2e-2
"""Larger relative differences are wrong, unless rounding by itself makes a tenth of them."""

ROUNDING_FACTOR = 10.0
ILL_CONDITIONED = 0.02
"""Where rounding by itself makes a larger difference, training runs cannot be compared."""

_NOISE = 1e-3
"""Updates below this share of the largest one are rounding errors, as of biases before a normalization."""
_EPSILON = float(np.finfo(np.float32).eps)

State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Trained:
    """The results of a training run.

    Attributes:
        losses: Of each step.
        state: Tensors by name after the last step.
    """

    losses: list[float]
    state: State


@dataclass(frozen=True)
class Difference:
    """The largest relative differences of two trainings.

    Attributes:
        losses: Of the losses.
        updates: Of what the steps have added to a tensor of the state.
        tensor: The name of that tensor.
    """

    losses: float
    updates: float
    tensor: str

    def or_larger(self, other: Difference) -> Difference:
        """The larger differences of the two, each by itself."""
        updates = max(self, other, key=lambda difference: difference.updates)
        return Difference(max(self.losses, other.losses), updates.updates, updates.tensor)

    @property
    def is_ill_conditioned(self) -> bool:
        """Return whether the drift by rounding is too large to compare training runs."""
        return max(self.losses, self.updates) > ILL_CONDITIONED

    def is_small(self, rounding: Difference | None = None) -> bool:
        """Return whether the training runs agree.

        Args:
            rounding: The difference that a change in the last bits of the weights makes.
        """
        factor = ROUNDING_FACTOR
        losses = LOSS_LIMIT if rounding is None else max(LOSS_LIMIT, factor * rounding.losses)
        updates = UPDATE_LIMIT if rounding is None else max(UPDATE_LIMIT, factor * rounding.updates)
        return self.losses <= losses and self.updates <= updates


@dataclass(frozen=True)
class Reference:
    """The training run of a framework.

    Attributes:
        trainings: In float32; and in float64, which is as good, where the model runs in it.
        rounding: The difference that the last bits of the weights make, or float32 for float64.
    """

    trainings: tuple[Trained, ...]
    rounding: Difference

    def difference(self, first: Mapping[str, Any], found: Trained) -> Difference:
        """The difference of a training from the one that is closer to it; see `difference`."""
        return min((difference(first, one, found) for one in self.trainings), key=lambda it: it.updates)


def difference(first: Mapping[str, Any], expected: Trained, found: Trained) -> Difference:
    """The largest relative differences of a training from another one.

    Args:
        first: The state before both.
        expected: The training to compare with.
        found: The training that is compared.

    Raises:
        ValueError: the trainings have different steps or tensors.
    """
    if len(expected.losses) != len(found.losses):
        raise ValueError(f"{len(found.losses)} losses, expected {len(expected.losses)}")
    if missing := expected.state.keys() - found.state.keys():
        raise ValueError(f"no values of {', '.join(sorted(missing)[:3])}")
    losses = max(_relative(a, b) for a, b in zip(found.losses, expected.losses, strict=True))
    names = [name for name, value in expected.state.items() if np.issubdtype(value.dtype, np.floating)]
    moved = {name: expected.state[name].astype(np.float64) - first[name] for name in names}
    floor = _NOISE * max((_root_mean_square(update) for update in moved.values()), default=0.0)
    updates, tensor = 0.0, ""
    for name in names:
        value = expected.state[name]
        away = _root_mean_square(found.state[name].astype(np.float64) - value)
        scale = max(_root_mean_square(moved[name]), floor)
        # A weight of float32 cannot move by less than its last bit: that much is no difference.
        away = max(0.0, away - 4 * _EPSILON * _root_mean_square(value))
        found_difference = away / scale if scale else math.inf if away else 0.0
        if not math.isfinite(found_difference) or found_difference > updates:
            updates, tensor = found_difference, name
    for name in expected.state.keys() - set(names):
        if not np.array_equal(expected.state[name], found.state[name]):
            updates, tensor = math.inf, name
    return Difference(losses, updates, tensor)


def _relative(found: float, expected: float) -> float:
    if not math.isfinite(found):
        return math.inf
    return abs(found - expected) / max(abs(expected), 1e-3)


def _root_mean_square(values: Any) -> float:
    array = np.asarray(values, np.float64)
    return float(np.sqrt(np.mean(array * array))) if array.size else 0.0


def all_finite(trained: Trained) -> bool:
    """Return whether a training run has ended without overflow."""
    return all(map(math.isfinite, trained.losses)) and all(
        bool(np.isfinite(value).all())
        for value in trained.state.values()
        if np.issubdtype(value.dtype, np.floating)
    )


def preload_compiler() -> None:
    """Import the modules of a compile, for processes that are forked later."""
    for name in (
        "cgc.driver",
        "cgc.execution.choice",
        "cgc.execution.pipelined",
        "cgc.repeats.rewrite",
        "cgc.lowering.interpret",
        "cgc.lowering.jax_table",
        "cgc.passes.pipeline",
        "cs_runtime.compile",
        "cs_runtime.step_program",
    ):
        import_module(name)
    for name in ("compile_report.html.j2", "macros.html.j2", "pipelined_report.html.j2"):
        page_environment().get_template(name)


def of_worker(batches: Sequence[Any], rank: int, workers: int) -> list[Any]:
    """The batches of a worker: step s takes one of worker s modulo the number of workers."""
    return list(batches[rank::workers])

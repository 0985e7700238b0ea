"""What all metrics share: states that a step writes in place, and the list of the metrics there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import count
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import nn

from cs_toolkit.step import METRIC_STATE
from cstorch.compiled import beside_models
from cstorch.tracing.names import register

Value = TypeVar("Value")


class Metric(nn.Module):
    """A value over the batches of an evaluation.

    All that a metric knows between batches is in its states, tensors that `update` writes in place: a step
    that is traced once counts every batch. A subclass registers states in its `reset`, which the constructor
    calls, or in its own constructor. It defines `update` and `compute` with operations of torch alone,
    without reading a value.

    Calling a metric updates it and returns its value so far. `float(metric)` reads the value, outside of a
    step or in a step closure.

    Args:
        name: what `compute_all_metrics` calls it; several metrics of one name have a number after it there.
        compute_on_system: taken for programs that give it. States are where the step is either way.
    """

    registry: ClassVar[WeakValueDictionary[int, Metric]] = WeakValueDictionary()
    """Metrics in use, by their number in the order of their making."""

    _numbers: ClassVar[Iterator[int]] = count()

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__()
        self.name = name
        self._initial: dict[str, torch.Tensor] = {}
        self.register_state("_updates", torch.tensor(0), persistent=False)
        self._updates: torch.Tensor
        self._dtype: torch.dtype | None = None
        Metric.registry[next(Metric._numbers)] = self
        register(f"{METRIC_STATE}{name}.", self)
        self.reset()

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All states, the count of updates among them."""
        return self.named_buffers()

    def __init_subclass__(cls) -> None:
        """Count calls of the `update` that a subclass defines, from 0 after its `reset`."""
        super().__init_subclass__()
        if "update" in vars(cls):
            cls.update = _counted(vars(cls)["update"])  # type: ignore[method-assign]
        if "reset" in vars(cls):
            cls.reset = _counted_from_zero(vars(cls)["reset"])  # type: ignore[method-assign]

    def register_state(self, name: str, tensor: torch.Tensor, persistent: bool = False) -> None:
        """Add a buffer that `reset` sets to what it is now; `state_dict` has only persistent ones.

        A state that exists is written in place, because a recorded step knows its tensor.
        """
        known = self._buffers.get(name)
        if known is not None and (known.shape, known.dtype) == (tensor.shape, tensor.dtype):
            with torch.no_grad():
                known.copy_(tensor)
            return
        self._initial[name] = tensor.detach().clone()
        self.register_buffer(name, beside_models(tensor), persistent=persistent)

    @property
    def num_updates(self) -> int:
        """Batches since the beginning, or since `reset`."""
        return int(self._updates)

    def reset(self) -> None:
        """Forgets all batches."""
        for name, tensor in self._initial.items():
            self.get_buffer(name).copy_(tensor)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Adds a batch to the states."""
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    def compute(self) -> torch.Tensor | float:
        """The value over all batches so far; nan before the first where it is a mean."""
        raise NotImplementedError(f"{type(self).__name__} defines no compute")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor | float:
        """Adds a batch and returns the value over all so far."""
        self.update(*args, **kwargs)
        with torch.no_grad():
            return self.compute()

    def __float__(self) -> float:
        return float(self.compute())

    def _typed(self, value: torch.Tensor) -> torch.Tensor:
        """Return a value in the type that the last update was given."""
        return value.to(self._dtype or value.dtype)


class NamedValues(list[tuple[str, Value]], Generic[Value]):
    """Pairs of name and value; programs of some releases iterate over them, of others over `items()`."""

    def items(self) -> list[tuple[str, Value]]:
        """Return the pairs."""
        return self


def _counted(update: Callable[..., None]) -> Callable[..., None]:
    @wraps(update)
    def counted(self: Metric, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            update(self, *args, **kwargs)
            if type(self).update is counted:  # not where a subclass calls it with super()
                self._updates.add_(1)

    return counted


def _counted_from_zero(reset: Callable[..., None]) -> Callable[..., None]:
    @wraps(reset)
    def counted_from_zero(self: Metric, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            reset(self, *args, **kwargs)
            self._updates.zero_()

    return counted_from_zero


def compute_all_metrics() -> NamedValues[float]:
    """Return name and value of every metric in use, in the order of their names' first use."""
    return NamedValues((name, float(metric)) for name, metric in get_all_metrics())


def get_all_metrics() -> NamedValues[Metric]:
    """Return name and metric of every metric in use, in the order of their names' first use.

    Metrics that share a name are called `NAME.0`, `NAME.1` and so on.
    """
    by_name: dict[str, list[Metric]] = {}
    for metric in Metric.registry.values():
        by_name.setdefault(metric.name, []).append(metric)
    return NamedValues(
        (f"{name}.{i}" if len(sharing) > 1 else name, metric)
        for name, sharing in by_name.items()
        for i, metric in enumerate(sharing)
    )

"""The base class of metrics, and metrics that divide a sum by a count: accuracy, perplexity, mean."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import nn

from cs_toolkit.step import METRIC_STATE
from cstorch.program import Program
from cstorch.tracing.recorder import current_recording
from cstorch.tracing.state import place_with_models, register

Value = TypeVar("Value")


class _Registry:
    """Metrics in use, by their number in the order of their making."""

    def __get__(self, instance: object, owner: type) -> WeakValueDictionary[int, Metric]:
        return Program.current().metrics


class Metric(nn.Module):
    """A value over the batches of an evaluation.

    A metric keeps everything between batches in its states, tensors that `update` writes in place: a step
    that is traced once counts every batch. A subclass registers states in its `reset`, which the constructor
    calls, or in its own constructor. It defines `update` and `compute` only with operations of torch, without
    reading a value.

    Calling a metric updates it and returns its value so far. `float(metric)` reads the value, outside of a
    step or in a step closure.

    Args:
        name: its name in `compute_all_metrics`, followed by a number if several metrics share it.
        compute_on_system: accepted for programs that pass it, without effect: states are where the step runs.
    """

    registry = _Registry()

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__()
        self.name = name
        self._initial: dict[str, torch.Tensor] = {}
        self.register_state("_updates", torch.tensor(0), persistent=False)
        self._updates: torch.Tensor
        self._dtype: torch.dtype | None = None
        program = Program.current()
        program.metrics[next(program.metric_numbers)] = self
        register(f"{METRIC_STATE}{name}.", self)
        self.reset()

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all states, including the count of updates."""
        return self.named_buffers()

    def __init_subclass__(cls) -> None:
        """Count calls of the `update` that a subclass defines, from 0 after its `reset`."""
        super().__init_subclass__()
        if "update" in vars(cls):
            cls.update = _count_updates(vars(cls)["update"])  # type: ignore[method-assign]
        if "reset" in vars(cls):
            cls.reset = _reset_count(vars(cls)["reset"])  # type: ignore[method-assign]

    def register_state(self, name: str, tensor: torch.Tensor, persistent: bool = False) -> None:
        """Add a buffer that `reset` sets to its present value; `state_dict` has only persistent ones.

        A state that exists is written in place, because a recorded step knows its tensor.
        """
        known = self._buffers.get(name)
        if known is not None and (known.shape, known.dtype) == (tensor.shape, tensor.dtype):
            with torch.no_grad():
                known.copy_(tensor)
            return
        self._initial[name] = tensor.detach().clone()
        self.register_buffer(name, place_with_models(tensor), persistent=persistent)

    @property
    def num_updates(self) -> int:
        """Batches since the beginning, or since `reset`."""
        return int(self._updates)

    def reset(self) -> None:
        """Forget all batches."""
        for name, tensor in self._initial.items():
            self.get_buffer(name).copy_(tensor)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch to the states."""
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    def compute(self) -> torch.Tensor | float:
        """Return the value over all batches so far; a mean is nan before the first."""
        raise NotImplementedError(f"{type(self).__name__} defines no compute")

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor | float:
        """Add a batch, and return the value over all so far."""
        self.update(*args, **kwargs)
        with torch.no_grad():
            return self.compute()

    def __float__(self) -> float:
        return float(self.compute())

    def _cast(self, value: torch.Tensor) -> torch.Tensor:
        """Cast a value to the `dtype` of the last update."""
        return value.to(self._dtype or value.dtype)


class NamedValues(list[tuple[str, Value]], Generic[Value]):
    """Pairs of name and value; programs of some releases iterate over them, of others over `items()`."""

    def items(self) -> list[tuple[str, Value]]:
        """Return the pairs."""
        return self


def _count_updates(update: Callable[..., None]) -> Callable[..., None]:
    @wraps(update)
    def update_and_count(self: Metric, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            update(self, *args, **kwargs)
            if type(self).update is update_and_count:  # not if a subclass calls it with super()
                self._updates.add_(1)

    return update_and_count


def _reset_count(reset: Callable[..., None]) -> Callable[..., None]:
    @wraps(reset)
    def reset_and_zero(self: Metric, *args: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            reset(self, *args, **kwargs)
            self._updates.zero_()

    return reset_and_zero


def compute_all_metrics() -> NamedValues[float]:
    """Return name and value of every metric in use, in the order of their names' first use."""
    return NamedValues((name, float(metric)) for name, metric in get_all_metrics())


def get_all_metrics() -> NamedValues[Metric]:
    """Return name and metric of every metric in use, in the order of their names' first use.

    Metrics that share a name are called `NAME.0`, `NAME.1` and so on.
    """
    by_name: dict[str, list[Metric]] = {}
    for metric in Program.current().metrics.values():
        by_name.setdefault(metric.name, []).append(metric)
    return NamedValues(
        (f"{name}.{i}" if len(sharing) > 1 else name, metric)
        for name, sharing in by_name.items()
        for i, metric in enumerate(sharing)
    )


def _count(labels: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor | int:
    """Return the number of weights above 0; of labels without weights."""
    return labels.numel() if weights is None else (weights > 0).sum()


class AccuracyMetric(Metric):
    """Share of the tokens whose prediction is correct; weights of 0 leave tokens out."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("total_correct_predictions", torch.tensor(0.0))
        self.register_state("total_num_tokens", torch.tensor(0.0))
        self.total_correct_predictions: torch.Tensor
        self.total_num_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        predictions: torch.Tensor,
        weights: torch.Tensor | float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Add a batch.

        Args:
            labels: classes, of any shape.
            predictions: classes, one for each label.
            weights: weight of each token. The sum over correct tokens is divided by the number of weights
                above 0.
            dtype: element type of the value.

        Raises:
            ValueError: predictions are more or fewer than labels.
        """
        right = (labels == reshape_like(labels, "predictions", predictions)).float()
        given = None if weights is None else as_tensor(weights)
        self.total_correct_predictions.add_((right if given is None else right * given).sum())
        self.total_num_tokens.add_(_count(labels, given))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Return the share of correct tokens; nan without tokens."""
        return self._cast(self.total_correct_predictions / self.total_num_tokens)


class PerplexityMetric(Metric):
    """Exponential of the loss for each token."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("total_loss", torch.tensor(0.0))
        self.register_state("total_num_tokens", torch.tensor(0.0))
        self.total_loss: torch.Tensor
        self.total_num_tokens: torch.Tensor

    def update(
        self,
        labels: torch.Tensor,
        loss: torch.Tensor | float,
        weights: torch.Tensor | float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Add a batch.

        Args:
            labels: determine the number of tokens; of any shape.
            loss: cross entropy in nats, summed over the tokens.
            weights: weight of each token; only tokens with a weight above 0 count.
            dtype: element type of the value.
        """
        self.total_loss.add_(loss)
        self.total_num_tokens.add_(_count(labels, None if weights is None else as_tensor(weights)))
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Return the perplexity; nan without tokens."""
        return self._cast(torch.exp(self.total_loss / self.total_num_tokens))


class MeanMetric(Metric):
    """Weighted mean of all values."""

    def __init__(self, name: str, compute_on_system: bool = True) -> None:
        super().__init__(name, compute_on_system)
        self.register_state("mean_value", torch.tensor(0.0))
        self.register_state("weight", torch.tensor(0.0))
        self.mean_value: torch.Tensor
        self.weight: torch.Tensor

    def update(
        self,
        value: torch.Tensor | float,
        weight: torch.Tensor | float | None = 1.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Add values.

        Args:
            value: a number, or a tensor of any shape.
            weight: one for all values, or one for each.
            dtype: element type of the mean.
        """
        values = as_tensor(value)
        given = as_tensor(1.0 if weight is None else weight).expand(values.shape)
        self.mean_value.add_((values * given).sum())
        self.weight.add_(given.sum())
        self._dtype = dtype

    def compute(self) -> torch.Tensor:
        """Return the mean; nan without weight."""
        return self._cast(self.mean_value / self.weight)


def check_same_shapes(**tensors: torch.Tensor | None) -> None:
    """Raise an error for tensors of different shapes; None is left out.

    Raises:
        ValueError: two shapes differ.
    """
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(given.values())) > 1:
        raise ValueError(
            f"got {_list_shapes(**given)}; expected one shape for all, an entry for each sample or token"
        )


def reshape_like(labels: torch.Tensor, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Reshape a tensor to the shape of the labels, with a warning if it has another one of their size.

    Raises:
        ValueError: it has another number of elements.
    """
    if tensor.shape == labels.shape:
        return tensor
    shapes = _list_shapes(**{"labels": tuple(labels.shape), name: tuple(tensor.shape)})
    if tensor.numel() != labels.numel():
        raise ValueError(f"got {shapes}; expected an entry of {name} for each label")
    warnings.warn(f"got {shapes}: {name} are reshaped to the shape of the labels", stacklevel=4)
    return tensor.reshape(labels.shape)


def check_range(name: str, tensor: torch.Tensor, low: float, high: float, expected: str) -> None:
    """Raise an error for values outside of [low, high]; a step on the CS system cannot read them.

    Raises:
        ValueError: a value is outside.
    """
    if tensor.device.type != "cpu" or not tensor.numel():
        return
    least, most = tensor.min().item(), tensor.max().item()
    if least < low or most > high:
        raise ValueError(f"got {name} from {least:g} to {most:g}, expected {expected}")


def check_positive(name: str, value: int) -> int:
    """Raise an error for counts below 1.

    Raises:
        ValueError: the count is not at least 1.
    """
    if value < 1:
        raise ValueError(f"got {name}={value}, expected at least 1")
    return value


def ratio(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """Return a quotient, 0 where the denominator is 0."""
    there = denominator != 0
    return torch.where(there, numerator / torch.where(there, denominator, 1.0), 0.0)


def as_number(value: torch.Tensor) -> torch.Tensor | float:
    """Return a Python number, but the tensor itself in a recorded step, where it has no value."""
    return value if current_recording() is not None else float(value)


def as_tensor(value: torch.Tensor | float) -> torch.Tensor:
    """Return a tensor as it is, and a number as a tensor without dimensions."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _list_shapes(**shapes: tuple[int, ...]) -> str:
    return ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())

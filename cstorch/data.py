"""The input of a step: a torch DataLoader that an input function makes, in every worker its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cs_runtime.input_facts import input_facts
from cs_runtime.source import narrowed
from cs_toolkit.step import TensorSpec
from cstorch.errors import InputError
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.record import dtype_name, to_array


class DataLoader:
    """Batches of an input function: `for batch in loader` is the loop of a training or an evaluation.

    Inside of the loop a batch is described, and its values are on the CS system: workers stream them there.

    Args:
        input_fn: Returns a `torch.utils.data.DataLoader`; called with the other arguments, in every worker.
        num_steps: Steps to run.
        max_steps: The most steps to run.
        num_epochs: Steps to run, in epochs; not together with `num_steps`.
        steps_per_epoch: Steps of an epoch; the length of the loader when None.

    Raises:
        InputError: `num_steps` and epochs are both given, or a number is not positive.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        *args: Any,
        num_steps: int | None = None,
        max_steps: int | None = None,
        num_epochs: int | None = None,
        steps_per_epoch: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(input_fn):
            raise InputError(
                f"input_fn is a {type(input_fn).__name__}, expected a function that returns a "
                "torch.utils.data.DataLoader: every worker calls it"
            )
        if num_steps is not None and (num_epochs is not None or steps_per_epoch is not None):
            raise InputError("num_steps is given with epochs, expected one of the two ways to say the steps")
        given = {
            "num_steps": num_steps,
            "max_steps": max_steps,
            "num_epochs": num_epochs,
            "steps_per_epoch": steps_per_epoch,
        }
        for name, value in given.items():
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, expected 1 or more")
        self._input_fn, self._args, self._kwargs = input_fn, args, kwargs
        self._num_steps, self._max_steps = num_steps, max_steps
        self.num_epochs = num_epochs
        self._steps_per_epoch = steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        from cstorch.loop import batches_of

        return batches_of(self)

    def __len__(self) -> int:
        return self.steps

    @property
    def steps(self) -> int:
        """Steps to run: `num_steps`, or epochs times their steps, and no more than `max_steps`."""
        wanted = self._num_steps
        if wanted is None:
            per_epoch = self._steps_per_epoch or len(self._loader)
            wanted = per_epoch * (self.num_epochs or 1)
        return wanted if self._max_steps is None else min(wanted, self._max_steps)

    @property
    def batch_size(self) -> int:
        """First dimension of the first tensor of a batch that has one; 1 where none has."""
        return next((t.shape[0] for t in self._tensors if t.ndim), 1)

    def described(self) -> Any:
        """A batch of tensors of the device without values, in the nest of the loader's batches."""
        return pytree.tree_map_only(torch.Tensor, DeviceTensor, self._first)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """See `cs_runtime.source.InputSource`."""
        specs = [(dtype_name(t.dtype), tuple(t.shape)) for t in self._tensors]
        return tuple(TensorSpec(f"input_{i}", dtype, shape) for i, (dtype, shape) in enumerate(specs))

    def input_facts(self) -> dict[str, str]:
        """See `cs_runtime.source.InputSource`."""
        tensors = (f"{s.name} {s.dtype}{list(s.shape)}" for s in self.inputs())
        return input_facts("step", self._input_fn, tensors)

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        """See `cs_runtime.source.InputSource`; a loader that ends begins again."""
        specs, epoch = self.inputs(), 0
        position = 0
        while True:
            before = position
            for batch in self._made():
                position += 1
                if position > skip:
                    yield tuple(self._arrays(batch, specs))
            if position == before:
                raise InputError(f"epoch {epoch} of the input function has no batch, expected one or more")
            epoch += 1

    def _arrays(self, batch: Any, specs: tuple[TensorSpec, ...]) -> Iterator[np.ndarray]:
        tensors = _leaves(batch)
        if len(tensors) != len(specs):
            raise InputError(f"a batch has {len(tensors)} tensors, expected {len(specs)} as in the first one")
        for tensor, spec in zip(tensors, specs, strict=True):
            if tuple(tensor.shape) != spec.shape or dtype_name(tensor.dtype) != spec.dtype:
                raise InputError(
                    f"a batch has {dtype_name(tensor.dtype)}{list(tensor.shape)} for {spec.name}, expected "
                    f"{spec.dtype}{list(spec.shape)} as in the first one; give the torch DataLoader "
                    "drop_last=True, and pad samples to one size"
                )
            yield narrowed(spec.name, to_array(tensor))

    @cached_property
    def _loader(self) -> Any:
        return self._made()

    @cached_property
    def _first(self) -> Any:
        return next(iter(self._loader), None)

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        found = _leaves(self._first)
        if not found:
            raise InputError("the input function gives no batch with a tensor, expected one or more")
        return found

    def _made(self) -> Any:
        loader = self._input_fn(*self._args, **self._kwargs)
        if not hasattr(loader, "__iter__"):
            raise InputError(
                f"the input function returns a {type(loader).__name__}, expected a "
                "torch.utils.data.DataLoader"
            )
        return loader


def _leaves(batch: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)]

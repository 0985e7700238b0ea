"""What a worker needs of a front end: the input of the user's program, and nothing of a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from cs_runtime.errors import InputFnError
from cs_toolkit.step import NARROWED, TensorSpec

Batch = tuple[np.ndarray, ...]


class InputSource(Protocol):
    """The input of a program."""

    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors of one batch, in the order of the step's batch inputs."""
        ...

    def input_facts(self) -> Mapping[str, str]:
        """What identifies program and input, as name -> text; must be equal in all tasks of a job.

        Nothing that a task's place, its machine, or the user's code at run time can change belongs here.
        """
        ...

    def batches(self, skip: int) -> Iterator[Batch]:
        """A freshly built input without its first `skip` batches, arrays in the order of `inputs`."""
        ...


def narrowed(name: str, value: Any) -> np.ndarray:
    """The array of a component, 64-bit integers as 32-bit ones: so the device computes them.

    Raises:
        InputFnError: a value does not fit.
    """
    array: np.ndarray = np.asarray(value)
    target = NARROWED.get(array.dtype.name)
    if target is None:
        return array
    result: np.ndarray = array.astype(target)
    if not np.array_equal(result, array):
        limits = np.iinfo(target)
        raise InputFnError(
            f"component '{name}' of the input has values from {array.min()} to {array.max()}; the CS system "
            f"computes integers in 32 bits, from {limits.min} to {limits.max}. Map them into that range"
        )
    return result

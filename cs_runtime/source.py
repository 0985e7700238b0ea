"""What a worker needs of a front end: the input of the user's program, and nothing of a compiler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from cs_toolkit.step import TensorSpec

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

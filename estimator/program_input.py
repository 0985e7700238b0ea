"""The input of a program for a run on the CS system: all that a worker needs of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from cs_runtime.input_source import input_facts
from cs_toolkit.step import TensorSpec
from estimator.input import Element, InputSource, describe, read


class ProgramInput:
    """Implements `cs_runtime.input_source.InputSource` for an `input_fn`; no model is built for it.

    Args:
        source: The input of the run.
    """

    def __init__(self, source: InputSource) -> None:
        self._source = source

    @cached_property
    def element(self) -> Element:
        """A batch: its structure and its tensors."""
        return describe(self._source)

    @property
    def input_names(self) -> list[str]:
        """What the user calls the tensors of a batch."""
        return [component.name for component in self.element.components]

    @property
    def batch_size(self) -> int:
        """First dimension of the first component that has one; 1 where none has."""
        return next((c.shape[0] for c in self.element.components if c.shape), 1)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors of one batch in streaming order, with the types that `input_fn` declares."""
        return tuple(
            TensorSpec(f"input_{index}", component.dtype.name, component.shape)
            for index, component in enumerate(self.element.components)
        )

    def input_facts(self) -> dict[str, str]:
        """See `cs_runtime.input_source.input_facts`."""
        tensors = (f"{c.name} {c.dtype.name}{list(c.shape)}" for c in self.element.components)
        return input_facts(self._source.mode, self._source.input_fn, tensors)

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        """A freshly built input without its first `skip` batches."""
        return read(self._source, self._source.config.tf_random_seed, skip)

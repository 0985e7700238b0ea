"""The base of engines whose state is in MemoryX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from cs_system.engine.state import as_device, check_state, from_device, select_state
from cs_system.errors import WrongOrderError
from cs_toolkit.layered_step import Schedule
from cs_toolkit.step import StepInterface, TensorSpec


class Reader(Protocol):
    """Reads the state that MemoryX keeps for a snapshot."""

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """Return a tensor, in the device's dtype."""
        ...

    def end(self) -> None:
        """Discard the tensors that have not been read."""
        ...


class KeptState:
    """The state after a step, kept by MemoryX until it has been read."""

    def __init__(self, reader: Reader, specs: Sequence[TensorSpec], schedule: Schedule) -> None:
        self._reader, self._schedule = reader, schedule
        self._specs = {spec.name: spec for spec in specs}

    def read(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Read all of the state or part of it; each tensor may be read once."""
        found = {}
        for name in self._specs if names is None else names:
            number = self._schedule.state[name]
            array = self._reader.get(number, self._schedule.values[number])
            found[name] = from_device(array, self._specs[name])
        return found

    def end(self) -> None:
        """Discard the tensors that have not been read."""
        self._reader.end()


class LayeredEngine(ABC):
    """Base of the engines of a step in layers: the state is in MemoryX, and a chunk is a single batch.

    Args:
        interface: Interface of the whole step.
        schedule: Schedule of the step.
    """

    chunk_batches = 1

    def __init__(self, interface: StepInterface, schedule: Schedule) -> None:
        self.interface = interface
        self._schedule = schedule
        self._missing = [spec.name for spec in interface.state]

    @abstractmethod
    def program(self) -> float:
        """Prepare the device for the first step; return the seconds that it took."""

    @abstractmethod
    def _put(self, number: int, array: np.ndarray) -> None:
        """Send a state tensor to MemoryX, in the device's dtype."""

    @abstractmethod
    def _keep(self, numbers: Sequence[int]) -> Reader:
        """Have MemoryX keep state as it is after the last step dispatched; return a reader of it."""

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Send part of the state to MemoryX; see `Engine.put_state` for the errors."""
        check_state(self.interface, state)
        self.program()
        if not self._missing:
            self._lose_state()
        for spec in self.interface.state:
            if spec.name in state:
                self._put(self._schedule.state[spec.name], as_device(np.asarray(state[spec.name]), spec))
        self._missing = [name for name in self._missing if name not in state]

    @property
    def missing_state(self) -> Sequence[str]:
        """Names of the state that has not arrived, or that a failed step lost."""
        return self._missing

    def fetch_state(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Copy the state, or part of it, in the dtypes of the interface."""
        return self.snapshot(names).read()

    def snapshot(self, names: Sequence[str] | None = None) -> KeptState:
        """Keep the state after the last step dispatched, or part of it, until it has been read."""
        if self._missing:
            raise WrongOrderError("there is no state on the system: none was put, or a failed step lost it")
        specs = select_state(self.interface, names)
        numbers = self._schedule.state
        return KeptState(self._keep([numbers[spec.name] for spec in specs]), specs, self._schedule)

    def unresponsive(self) -> str | None:
        """Describe a part of the system that has not answered for seconds, or None."""
        return None

    def _lose_state(self) -> None:
        self._missing = [spec.name for spec in self.interface.state]

    def _batch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> list[np.ndarray]:
        """Return the single batch of a chunk, in the device's dtypes.

        Raises:
            WrongOrderError: there is no state, or not all of it.
        """
        if self._missing:
            raise WrongOrderError("there is no state on the system; put_state comes before the first step")
        if offset or count != 1:
            raise ValueError(f"batches {offset} to {offset + count} of a chunk of 1")
        return [as_device(array[0], spec) for array, spec in zip(chunk, self.interface.inputs, strict=True)]

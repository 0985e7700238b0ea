"""What the engines of a step in layers share: state that lies in MemoryX, and one batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from cs_system.engine.device import as_device, check_state, from_device, wanted_state
from cs_system.errors import WrongOrderError
from cs_system.swarmx.pace import Pace
from cs_toolkit.schedule import Schedule
from cs_toolkit.step import StepInterface, TensorSpec


class Reader(Protocol):
    """Who reads what MemoryX keeps, see `StateReader`."""

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """A tensor, in the device's dtype."""
        ...

    def end(self) -> None:
        """The rest is not read."""
        ...


class KeptState:
    """See `cs_system.engine.base.KeptState`."""

    def __init__(self, reader: Reader, specs: Sequence[TensorSpec], schedule: Schedule) -> None:
        self._reader, self._schedule = reader, schedule
        self._specs = {spec.name: spec for spec in specs}

    def read(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """See there."""
        return {name: self._read(name) for name in (self._specs if names is None else names)}

    def end(self) -> None:
        """See there."""
        self._reader.end()

    def _read(self, name: str) -> np.ndarray:
        number = self._schedule.state[name]
        return from_device(self._reader.get(number, self._schedule.values[number]), self._specs[name])


class LayeredEngine(ABC):
    """See `Engine`.

    Args:
        interface: Of the whole step.
        schedule: Of the step.
    """

    chunk_batches = 1

    def __init__(self, interface: StepInterface, schedule: Schedule) -> None:
        self.interface = interface
        self._schedule = schedule
        self._missing = [spec.name for spec in interface.state]

    @abstractmethod
    def program(self) -> float:
        """See `Engine`."""

    @abstractmethod
    def _put(self, number: int, array: np.ndarray) -> None:
        """Sends a tensor of the state to MemoryX, in the device's dtype."""

    @abstractmethod
    def _keep(self, numbers: Sequence[int]) -> Reader:
        """Has MemoryX keep some state as it is after the last step dispatched, and gives who reads it."""

    def put_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See `Engine`."""
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
        """See `Engine`."""
        return self._missing

    def fetch_state(self, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """See `Engine`."""
        return self.snapshot(names).read()

    def snapshot(self, names: Sequence[str] | None = None) -> KeptState:
        """See `Engine`."""
        if self._missing:
            raise WrongOrderError("there is no state on the system: none was put, or a failed step lost it")
        wanted = wanted_state(self.interface, names)
        numbers = self._schedule.state
        return KeptState(self._keep([numbers[spec.name] for spec in wanted]), wanted, self._schedule)

    def late(self) -> str | None:
        """See `Engine`."""
        return None

    def pace(self) -> Pace | None:
        """See `Engine`."""
        return None

    def _lose_state(self) -> None:
        self._missing = [spec.name for spec in self.interface.state]

    def _batch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> list[np.ndarray]:
        """The one batch of a chunk, in the device's dtypes.

        Raises:
            WrongOrderError: there is no state, or not all of it.
        """
        if self._missing:
            raise WrongOrderError("there is no state on the system; put_state comes before the first step")
        if offset or count != 1:
            raise ValueError(f"batches {offset} to {offset + count} of a chunk of 1")
        return [as_device(array[0], spec) for array, spec in zip(chunk, self.interface.inputs, strict=True)]

"""What the engines of a step in layers share: state that lies in MemoryX, and one batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from cs_system.engine.device import as_device, check_state, from_device, wanted_state
from cs_system.errors import WrongOrderError
from cs_toolkit.schedule import Schedule
from cs_toolkit.step import StepInterface


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
    def _get(self, number: int) -> np.ndarray:
        """A tensor of the state from MemoryX, in the device's dtype."""

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
        if self._missing:
            raise WrongOrderError("there is no state on the system: none was put, or a failed step lost it")
        wanted = wanted_state(self.interface, names)
        return {spec.name: from_device(self._get(self._schedule.state[spec.name]), spec) for spec in wanted}

    def late(self) -> str | None:
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

"""The state of a run on its way from the system: all of it while steps go on, or tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_system.connection import Connection
from cs_system.wire import TensorAssembler

if TYPE_CHECKING:
    from cs_system.client import Reservation


class StateStream:
    """The state of one step on its way here; the system keeps it from the moment in which this is made.

    Raises (also in `read`): what `Reservation.fetch_state` does.
    """

    def __init__(self, connection: Connection, call: Any) -> None:
        self._connection, self._call = connection, call
        with connection.errors():
            next(self._call)

    def read(self) -> dict[str, np.ndarray]:
        """Waits for all of it; in the dtypes of the program's interface."""
        assembler = TensorAssembler()
        with self._connection.errors():
            for chunk in self._call:
                assembler.add(chunk.tensors)
        return assembler.finish()


class RemoteState(Mapping[str, np.ndarray]):
    """The state of a system that computes no step meanwhile; each tensor comes when it is asked for."""

    def __init__(self, reservation: Reservation, names: Sequence[str]) -> None:
        self._reservation, self._names = reservation, names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise KeyError(name)
        return self._reservation.fetch_state([name])[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

"""MemoryX as a wafer sees it: one process or several, each with whole layers of the model.

The wafer passes on between them what the gradients of each contribute to a norm; all do the same with the
same values in the same order, so the numbers do not depend on how many there are.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from cs_system.engine.executable import Executables
from cs_system.errors import CsSystemError
from cs_system.memoryx.client import Contributed, MemoryxClient, Results
from cs_system.memoryx.reading import StateReader
from cs_system.memoryx.weights import Arrays, Computing, Listener, Transfer, WeightStream
from cs_system.patience import PATIENCE_S
from cs_toolkit.schedule import Schedule
from cs_toolkit.shards import Shard, owner, shards
from cs_toolkit.step import StepInterface, TensorSpec
from cs_toolkit.traffic import traffic

Address = tuple[str, int]
S = TypeVar("S", bound=WeightStream)


class _Parts(Generic[S]):
    """What comes from all processes, put together again.

    Attributes:
        failed_too: Called when one has gone, for those who wait for it elsewhere.
    """

    def __init__(self, schedule: Schedule, addresses: Sequence[Address]) -> None:
        self._schedule, self._traffic = schedule, traffic(schedule)
        self.parts = shards(schedule, len(addresses))
        self.addresses = tuple(addresses[: len(self.parts)])
        self._streams: list[S] = []
        self.failed_too: Callable[[], None] = _nothing
        self._calls = itertools.cycle(range(len(self._traffic.calls)))

    def weights(self, is_computing: Computing) -> Arrays:
        """See `WeightStream`."""
        call = next(self._calls)
        found: dict[int, np.ndarray] = {}
        for stream, part in zip(self._streams, self.parts, strict=True):
            found.update(zip(part.traffic.to_wafer[call], stream.weights(is_computing), strict=True))
        return [found[number] for number in self._traffic.to_wafer[call]]

    def computed(self) -> None:
        """See `WeightStream`."""
        for stream in self._streams:
            stream.computed()

    def late(self) -> str | None:
        """Which process has not answered for seconds; None: all answer."""
        return next((text for stream in self._streams if (text := stream.late()) is not None), None)

    def transfers(self) -> list[Transfer]:
        """Of the weights that have come from each process."""
        return [stream.transfer for stream in self._streams]

    def close(self) -> None:
        """Hangs up."""
        for stream in self._streams:
            stream.close()

    def _failed(self, error: CsSystemError) -> None:
        """One process has gone: nobody waits for the others."""
        for stream in self._streams:
            stream.end(error)
        self.failed_too()


class ShardedMemoryx(_Parts[MemoryxClient]):
    """The model of a wafer that begins steps; see `MemoryxClient`.

    Args:
        schedule: Of the step.
        addresses: Host and port of each process.
        maps_files: See `MemoryxPlace`.
        patience_s: Silence after which a process counts as lost.

    Attributes:
        parts: What each process has; no more than there are layers to share out.
        addresses: Of the processes that have a part.

    Raises:
        MemoryxError: nobody answers at an address.
    """

    def __init__(
        self,
        schedule: Schedule,
        addresses: Sequence[Address],
        maps_files: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(schedule, addresses)
        self._contributions: dict[int, dict[int, np.ndarray]] = {}
        self._came: dict[int, int] = {}
        self._lock = threading.Lock()
        try:
            for address, part in zip(self.addresses, self.parts, strict=True):
                taker = self._taker(part)
                self._streams.append(
                    MemoryxClient(address, part, self._failed, taker, maps_files, patience_s)
                )
        except CsSystemError:
            self.close()
            raise

    def open(self, executables: Executables, token: str, listeners: int = 0) -> None:
        """Sends each process its part of the model; see `MemoryxClient.open`."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            numbers = dict.fromkeys(call.function for call in part.schedule.memory_calls())
            functions: Mapping[int, tuple[bytes, StepInterface]] = {n: executables[n] for n in numbers}
            stream.open(self._schedule, functions, token, listeners)

    def wait_open(self) -> None:
        """See `MemoryxClient.wait_open`."""
        for stream in self._streams:
            stream.wait_open()

    def put(self, number: int, array: np.ndarray) -> None:
        """Sends a tensor of the state to whoever has it: small ones to all."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            if number in part.schedule.state.values():
                stream.put(number, array)

    def snapshot(self, numbers: Sequence[int]) -> None:
        """See `MemoryxClient.snapshot`."""
        owners = [owner(self.parts, number) for number in numbers]
        for index, stream in enumerate(self._streams):
            stream.snapshot([number for number, at in zip(numbers, owners, strict=True) if at == index])

    def begin(self, inputs: Arrays) -> None:
        """See `MemoryxClient.begin`."""
        values = dict(zip(self._traffic.inputs, inputs, strict=True))
        for stream, part in zip(self._streams, self.parts, strict=True):
            stream.begin([values[number] for number in part.traffic.inputs])

    def results(self, call: int, results: Results) -> None:
        """See `MemoryxClient.results`."""
        for stream, part in zip(self._streams, self.parts, strict=True):
            places = [self._traffic.to_memory[call].index(n) for n in part.traffic.to_memory[call]]
            if places:
                stream.results(call, lambda places=places: [results()[place] for place in places])  # type: ignore[misc]

    def answers(self) -> dict[int, np.ndarray]:
        """See `MemoryxClient.answers`."""
        found: dict[int, np.ndarray] = {}
        for stream in self._streams:
            found |= stream.answers()
        return found

    def _taker(self, part: Shard) -> Contributed:
        def take(index: int, values: Arrays) -> None:
            self._contributed(part, index, values)

        return take

    def _contributed(self, part: Shard, index: int, values: Arrays) -> None:
        """The last part of a round that contributes has all get what the others did."""
        with self._lock:
            found = self._contributions.setdefault(index, {})
            found.update(zip(part.given[index], values, strict=True))
            self._came[index] = self._came.get(index, 0) + 1
            if self._came[index] < len(self.parts):
                return
            del self._contributions[index], self._came[index]
        for stream, other in zip(self._streams, self.parts, strict=True):
            stream.share(index, [found[number] for number in other.taken[index]])


class ShardedListener(_Parts[Listener]):
    """The weights of another wafer of a group; see `Listener`. Arguments as of `ShardedMemoryx`."""

    def __init__(self, schedule: Schedule, addresses: Sequence[Address], token: str) -> None:
        super().__init__(schedule, addresses)
        for address, part in zip(self.addresses, self.parts, strict=True):
            self._streams.append(Listener(address, part, self._failed))
            self._streams[-1].join(token)

    def begin(self, inputs: Arrays) -> None:
        """Does nothing: the first wafer begins the step."""

    def results(self, call: int, results: object) -> None:
        """Does nothing: the first wafer sends the sums of all."""

    def answers(self) -> dict[int, np.ndarray]:
        """Nothing: the first wafer gets them."""
        return {}


def _nothing() -> None:
    """Nobody else waits."""


class ShardedReader:
    """Reads what snapshots hold; see `StateReader`.

    Args:
        schedule: Of the step.
        addresses: Host and port of each process.
        token: Of the model.
    """

    def __init__(self, schedule: Schedule, addresses: Sequence[Address], token: str) -> None:
        self._parts = shards(schedule, len(addresses))
        self._readers = [StateReader(address, token) for address in addresses[: len(self._parts)]]

    def get(self, number: int, spec: TensorSpec) -> np.ndarray:
        """See `StateReader.get`."""
        return self._readers[owner(self._parts, number)].get(number, spec)

    def end(self) -> None:
        """See `StateReader.end`."""
        for reader in self._readers:
            reader.end()

    def end_all(self) -> None:
        """Whoever waits for MemoryX does so no longer."""
        for reader in self._readers:
            reader.shut_down()

    def close(self) -> None:
        """Hangs up."""
        for reader in self._readers:
            reader.close()

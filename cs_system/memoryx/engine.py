"""The engine for weight streaming: a layer at a time, with weights from MemoryX and gradients to it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cs_system.engine.base import Executables
from cs_system.engine.executable import OneDevice
from cs_system.engine.layers import Layers
from cs_system.engine.micro_batches import for_memory, micro_batches
from cs_system.engine.state import device_errors, from_device
from cs_system.errors import CsSystemError, ExecutionError, MemoryxError, ProgramError
from cs_system.memoryx.client import ShardedMemoryx, ShardedReader
from cs_system.memoryx.config import MemoryxConfig, MemoryxProcess, start_memoryx
from cs_system.memoryx.layered import LayeredEngine
from cs_system.memoryx.weights import Transfer
from cs_system.part_spans import part_spans
from cs_toolkit.layered_step import Schedule, Update, traffic
from cs_toolkit.step import CompiledStep, TensorSpec

# How long to wait for the exit code of a MemoryX that has disconnected.
_EXIT_CODE_TIMEOUT_S = 1.0


class StreamedSteps:
    """A step that was dispatched to the wafer.

    Args:
        specs: Specs of the outputs.
        numbers: Numbers of the outputs in the schedule.
        values: By number, the outputs on the wafer.
        answers: Waits for the outputs from MemoryX, and returns them by number.
    """

    count = 1

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        numbers: Sequence[int],
        values: Mapping[int, Any],
        answers: Callable[[], dict[int, np.ndarray]],
    ) -> None:
        self._specs, self._numbers, self._values, self._answers = specs, numbers, values, answers

    def is_ready(self) -> bool:
        """Return True if the wafer has computed its outputs."""
        return all(value.is_ready() for value in self._values.values() if hasattr(value, "is_ready"))

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the step, and return its outputs by name."""
        with device_errors(ExecutionError, "running the steps"):
            values = {**self._values, **self._answers()}
            return {
                spec.name: from_device(np.asarray(values[number])[None], spec)
                for spec, number in zip(self._specs, self._numbers, strict=True)
            }


class StreamedEngine(LayeredEngine):
    """The engine of a step in layers on one device. Not thread-safe; needs no server.

    Args:
        step: The step: executable *i* is function *i* of the schedule.
        schedule: Schedule of the step.
        data: Bytes of its executables, by their names.
        memoryx: Where weights and optimizer state are stored.
    """

    def __init__(
        self,
        step: CompiledStep,
        schedule: Schedule,
        data: Mapping[str, bytes],
        memoryx: MemoryxConfig,
    ) -> None:
        super().__init__(step.interface, schedule)
        self._step, self._data, self._config = step, data, memoryx
        self._traffic = traffic(schedule)
        self._layers: Layers | None = None
        self.started_processes: list[MemoryxProcess] = []
        self._memoryx: ShardedMemoryx | None = None
        self._reader: ShardedReader | None = None

    def program(self) -> float:
        """Connect to MemoryX and compile the wafer's calls; return the seconds that it took."""
        started = time.monotonic()
        if self._layers is None:
            # Connected first, so that both sides compile their functions at the same time.
            addresses, self.started_processes, secret = start_memoryx(self._config, self._schedule)
            client = ShardedMemoryx(
                self._schedule, addresses, secret, self._config.maps_files, self._config.peer_timeout_s
            )
            name = secrets.token_hex(16)
            client.open(select_executables(self._step, self._data, self._schedule.memory_calls()), name)
            self._memoryx = client
            with device_errors(ProgramError, "programming"):
                executables = select_executables(self._step, self._data, self._traffic.calls)
                spans = part_spans("wafer 0")
                self._layers = Layers(
                    self._schedule, self._traffic, executables, OneDevice(), {}, spans=spans
                )
            self._wait_open(client)
            self._reader = reader = ShardedReader(
                self._schedule, client.addresses, secret, name, self._config.peer_timeout_s
            )
            client.on_failure = lambda error: reader.end_all()
        return time.monotonic() - started

    def _wait_open(self, client: ShardedMemoryx) -> None:
        try:
            client.wait_open()
        except MemoryxError:
            # A process that this one has started may have crashed on a function; its exit code says more.
            for process in self.started_processes:
                if process.wait(_EXIT_CODE_TIMEOUT_S) and (code := process.exit_code or 0) < 0:
                    raise MemoryxError.process_ended(code, process.memory, has_state=False) from None
            raise

    def dispatch(self, chunk: Sequence[np.ndarray], offset: int, count: int) -> StreamedSteps:
        """Run a step; returns when the wafer has computed its calls."""
        inputs = self._batch(chunk, offset, count)
        try:
            with device_errors(ExecutionError, "running the steps"):
                client, schedule = self._client(), self._schedule
                assert self._layers is not None
                memory_inputs = for_memory(schedule, self._traffic, inputs)
                values = self._layers.run(micro_batches(schedule, inputs), memory_inputs, client)
                return StreamedSteps(self.interface.outputs, schedule.outputs, values, client.answers)
        except CsSystemError:
            self._lose_state()
            raise

    def transfers(self) -> list[Transfer]:
        """Return the transfer times of weights so far, of each MemoryX process."""
        return self._client().transfers()

    def unresponsive(self) -> str | None:
        """Describe a MemoryX process that has not answered for seconds, or None."""
        client = self._memoryx
        return None if client is None else client.unresponsive()

    def free(self) -> None:
        """Free the device, disconnect from MemoryX, and end the processes that were started for it."""
        self._lose_state()
        self._layers = None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        client, self._memoryx = self._memoryx, None
        own, self.started_processes = self.started_processes, []
        if client is not None:
            client.close()
        for process in own:
            process.end()

    def _put(self, number: int, array: np.ndarray) -> None:
        self._client().put(number, array)

    def _keep(self, numbers: Sequence[int]) -> ShardedReader:
        self._client().snapshot(numbers)
        assert self._reader is not None
        return self._reader

    def _client(self) -> ShardedMemoryx:
        assert self._memoryx is not None
        return self._memoryx


def select_executables(step: CompiledStep, data: Mapping[str, bytes], calls: Iterable[Update]) -> Executables:
    """Return bytes and interface of the functions of calls, by number: executable *i* is function *i*."""
    numbers = dict.fromkeys(call.function for call in calls)
    return {
        number: (data[step.executables[number].name], step.executables[number].interface)
        for number in numbers
    }

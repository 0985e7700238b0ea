"""The wafer's part of a step in layers: its micro-batches, and its calls with the weights they need."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np

from cs_system.engine.base import Executables
from cs_system.engine.executable import Devices, PlacedCalls
from cs_system.part_spans import Spans
from cs_toolkit.layered_step import Schedule, Traffic
from cs_toolkit.spans import SpanRing

# JAX has no annotation for it.
_block_until_ready: Callable[[Any], Any] = jax.block_until_ready

Arrays = list[np.ndarray]
Send = Callable[[], None]
Computing = Callable[[], bool]
Called = Callable[[float, Sequence[Any], bool], None]


class Stream(Protocol):
    """The connection to MemoryX, as far as a step uses it."""

    def begin(self, inputs: Arrays) -> None:
        """Begin a step: MemoryX starts to send its weights."""
        ...

    def weights(self, is_computing: Computing) -> Arrays:
        """Return the weights of the next call; their memory is valid until `release_weights`.

        Args:
            is_computing: Returns True while the device is still computing the previous call.
        """
        ...

    def release_weights(self) -> None:
        """Release the weights of the oldest call, which has read them."""
        ...

    def send_results(self, call: int, results: Callable[[], Arrays]) -> None:
        """Send the results of a call to MemoryX, as soon as the device has computed them."""
        ...


class Layers:
    """The compiled calls of a wafer.

    Args:
        schedule: Schedule of the step.
        traffic: Traffic of the schedule.
        executables: Executables of its functions.
        devices: Devices that compute.
        places: By number, the sharding of batch tensors that are sharded.
        called: Callback for each call: monotonic time before it, results, and whether it sums over devices.
        spans: Where the times of the wafer are recorded.
    """

    def __init__(
        self,
        schedule: Schedule,
        traffic: Traffic,
        executables: Executables,
        devices: Devices,
        places: Mapping[int, Any],
        called: Called | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._called = called
        self._spans: Spans = spans or SpanRing(0)
        self._called_s = self._computed_s = 0.0
        self._schedule, self._traffic = schedule, traffic
        self._last = max((index for index, numbers in enumerate(traffic.to_memory) if numbers), default=-1)
        # One wafer sends these for the whole group, so they must be replicated.
        leaving = {number for numbers in traffic.to_memory for number in numbers}
        whole = frozenset(leaving | set(schedule.outputs))
        self._calls = PlacedCalls(traffic.calls, executables, devices, places, whole)

    def run(self, batches: Sequence[Mapping[int, Any]], for_memory: Arrays, stream: Stream) -> dict[int, Any]:
        """Compute a step.

        Args:
            batches: For each micro-batch its tensors by number; arrays, or values of the device.
            for_memory: The batch tensors that go to MemoryX, of the whole batch.
            stream: Connection to MemoryX.

        Returns:
            The step outputs that are on the wafer, by number.
        """
        known: dict[int, Any] = {}
        send_last = _send_nothing
        stream.begin(for_memory)
        previous: Sequence[Any] = ()
        began_s = 0.0
        count = len(self._traffic.calls) // len(batches)
        for index in range(len(self._traffic.calls)):
            if index % count == 0:
                known.update(batches[index // count])
            results, send = self._call(index, known, previous, stream)
            # The device computes this call while the weights of the next one arrive in the other slot.
            called_s = self._called_s
            if index:
                self._finish(index - 1, previous, began_s)
                stream.release_weights()
            previous, began_s = results, called_s
            if index != self._last:
                send()
            else:
                send_last = send
        self._finish(len(self._traffic.calls) - 1, previous, began_s)
        stream.release_weights()
        # Only now: when MemoryX has these it may change the weights, which have all been read.
        send_last()
        return {number: known[number] for number in self._schedule.outputs if number in known}

    def _finish(self, index: int, results: Sequence[Any], began_s: float) -> None:
        """Wait until the device has computed a call."""
        _block_until_ready(results)
        computed_s = time.monotonic()
        # The device computes one call at a time.
        self._spans.add("compute", "compute", max(began_s, self._computed_s), computed_s, ("call", index))
        self._computed_s = computed_s

    def _call(
        self, index: int, known: dict[int, Any], previous: Sequence[Any], stream: Stream
    ) -> tuple[Sequence[Any], Send]:
        plan = self._traffic
        call, dropped = plan.calls[index], set(plan.dropped[index])
        asked_s = time.monotonic()
        weights = stream.weights(lambda: not all(value.is_ready() for value in previous))
        self._spans.add("weights", "wait for weights", asked_s, time.monotonic(), ("call", index))
        for number, array in zip(plan.to_wafer[index], weights, strict=True):
            # The slot is reused soon, so weights that later calls read again are copied.
            known[number] = array if number in dropped else np.array(array)
        function, began_s = self._calls[index], time.monotonic()
        self._called_s = began_s
        results = function([known[number] for number in call.arguments], call.keys)
        if self._called is not None:
            self._called(began_s, results, function.has_sums)
        known.update(zip(call.results, results, strict=True))
        send = _send_nothing
        if plan.to_memory[index]:
            values = [known[number] for number in plan.to_memory[index]]
            send = partial(stream.send_results, index, lambda: [np.asarray(value) for value in values])
        for number in dropped:
            known.pop(number, None)
        return results, send


def _send_nothing() -> None:
    """Send nothing."""

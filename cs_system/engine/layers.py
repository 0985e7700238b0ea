"""A wafer's part of a step in layers: its micro-batches, and its calls with the weights streamed to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np

from cs_system.engine.executable import Devices, Executables, PlacedCalls
from cs_toolkit.layered_step import Schedule, Traffic

# JAX does not annotate it.
_block_until_ready: Callable[[Any], Any] = jax.block_until_ready

Arrays = list[np.ndarray]
Send = Callable[[], None]
Computing = Callable[[], bool]
Called = Callable[[float, Sequence[Any], bool], None]


class Stream(Protocol):
    """The connection to MemoryX, as a step needs it."""

    def begin(self, inputs: Arrays) -> None:
        """Begins a step: its first weights come."""
        ...

    def weights(self, is_computing: Computing) -> Arrays:
        """What comes before the next call; the arrays are there until `computed`.

        Args:
            is_computing: Whether the device still computes the call before.
        """
        ...

    def computed(self) -> None:
        """The oldest call whose weights are here has read them."""
        ...

    def results(self, call: int, results: Callable[[], Arrays]) -> None:
        """Sends what a call has computed for MemoryX, once the device has done it."""
        ...


class Layers:
    """The wafer's calls, compiled.

    Args:
        schedule: Of the step.
        traffic: Of the schedule.
        executables: Of its functions.
        devices: That compute.
        places: Sharding of the tensors of a batch by number, where they are cut.
        called: Told of each call: monotonic time before it, results, and whether it sums over devices.
    """

    def __init__(
        self,
        schedule: Schedule,
        traffic: Traffic,
        executables: Executables,
        devices: Devices,
        places: Mapping[int, Any],
        called: Called | None = None,
    ) -> None:
        self._called = called
        self._schedule, self._traffic = schedule, traffic
        self._last = max((index for index, numbers in enumerate(traffic.to_memory) if numbers), default=-1)
        leaving = {number for numbers in traffic.to_memory for number in numbers}
        whole = frozenset(leaving | set(schedule.outputs))
        self._calls = PlacedCalls(traffic.calls, executables, devices, places, whole)

    def run(self, batches: Sequence[Mapping[int, Any]], for_memory: Arrays, stream: Stream) -> dict[int, Any]:
        """Computes a step.

        Args:
            batches: Of each micro-batch what comes with it, by number; arrays, or values of the device.
            for_memory: Those tensors of the batch that go to MemoryX, whole.
            stream: To MemoryX.

        Returns:
            The outputs of the step that the wafer has, by number.
        """
        known: dict[int, Any] = {}
        last = _nothing
        stream.begin(for_memory)
        before: Sequence[Any] = ()
        count = len(self._traffic.calls) // len(batches)
        for index in range(len(self._traffic.calls)):
            if index % count == 0:
                known.update(batches[index // count])
            results, send = self._call(index, known, before, stream)
            # The device computes this call while the weights of the next one arrive in the other's memory.
            _block_until_ready(before)
            if index:
                stream.computed()
            before = results
            if index != self._last:
                send()
            else:
                last = send
        _block_until_ready(before)
        stream.computed()
        last()  # with these MemoryX may change the weights, which have all been read now
        return {number: known[number] for number in self._schedule.outputs if number in known}

    def _call(
        self, index: int, known: dict[int, Any], before: Sequence[Any], stream: Stream
    ) -> tuple[Sequence[Any], Send]:
        plan = self._traffic
        call, dropped = plan.calls[index], set(plan.dropped[index])
        weights = stream.weights(lambda: not all(value.is_ready() for value in before))
        for number, array in zip(plan.to_wafer[index], weights, strict=True):
            known[number] = array if number in dropped else np.array(array)
        function, began_s = self._calls[index], time.monotonic()
        results = function([known[number] for number in call.arguments], call.keys)
        if self._called is not None:
            self._called(began_s, results, function.has_sums)
        known.update(zip(call.results, results, strict=True))
        send = _nothing
        if plan.to_memory[index]:
            going = [known[number] for number in plan.to_memory[index]]
            send = partial(stream.results, index, lambda: [np.asarray(value) for value in going])
        for number in dropped:
            known.pop(number, None)
        return results, send


def _nothing() -> None:
    """Sends nothing."""


def micro_batches(
    schedule: Schedule, inputs: Sequence[np.ndarray], whole: Sequence[np.ndarray] | None = None
) -> list[dict[int, Any]]:
    """What comes with each micro-batch, by number.

    Args:
        schedule: Of the step.
        inputs: The tensors of a batch, or one wafer's share of each micro-batch, one after the other.
        whole: Those tensors of the whole batch that the step wants, too; from `inputs` when None.
    """
    micro = schedule.micro
    complete = [inputs[position] for position in micro.whole.values()] if whole is None else whole
    same = dict(zip(micro.whole, complete, strict=True))
    found: list[dict[int, Any]] = []
    for index in range(micro.count):
        batch: dict[int, Any] = dict(same)
        for number, array in zip(schedule.inputs, inputs, strict=True):
            size = len(array) // micro.count if number in micro.parts else 0
            batch[number] = array[index * size : (index + 1) * size] if size else array
        if micro.number is not None:
            batch[micro.number] = np.asarray(index, np.int32)
        found.append(batch)
    return found


def for_memory(schedule: Schedule, traffic: Traffic, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Those tensors of a batch that go to MemoryX, in the order of the traffic."""
    known = {number: inputs[position] for number, position in schedule.micro.whole.items()}
    known.update(zip(schedule.inputs, inputs, strict=True))
    return [known[number] for number in traffic.inputs]


def share(array: np.ndarray, parts: int, count: int, rank: int) -> np.ndarray:
    """The samples of one wafer: its share of each micro-batch, one after the other.

    Args:
        array: Of the whole batch.
        parts: Micro-batches of it.
        count: Of wafers.
        rank: Of the wafer, from 0.
    """
    size = len(array) // (parts * count)
    return array.reshape(parts, count, size, *array.shape[1:])[:, rank].reshape(-1, *array.shape[1:])

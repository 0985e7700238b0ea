"""The end of a wafer's connection ends all that MemoryX does for it, whatever that is."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cs_system.memoryx import server
from cs_system.memoryx.admission import Admission
from cs_system.memoryx.client import MemoryxClient
from cs_system.memoryx.config import MemoryxAddress
from cs_system.memoryx.engine import select_executables
from cs_system.memoryx.protocol import FrameChannel, split_views
from cs_system.memoryx.remote import RemoteMemory
from cs_system.memoryx.server import ModelRegistry, WaferConnection
from cs_system.memoryx.store import Values
from cs_toolkit.layered_step import shards
from cs_toolkit.network.connection import listen
from tests.processes import wait_until

from .streamed_steps import Streamed

SECRET = "a secret"
LIMIT_S = 60.0


class Served:
    """A MemoryX in this process, whose updates another one computes, and its first wafer."""

    def __init__(self, address: MemoryxAddress, stack: Streamed) -> None:
        self.connections: list[WaferConnection] = []
        self.registry = ModelRegistry()
        self.has_ended = threading.Event()
        self._stack, (self._shard,) = stack, shards(stack.schedule, 1)
        self.client = MemoryxClient(
            address, SECRET, self._shard, lambda error: None, lambda index, values: None, maps_files=False
        )

    def open(self) -> None:
        """Load the model; its state is zeros."""
        stack, schedule = self._stack, self._stack.schedule
        functions = select_executables(stack.compiled, stack.data, schedule.memory_calls())
        self.client.open(schedule, functions, "model")
        self.client.wait_open()

    def begin(self) -> None:
        """Begin a step."""
        self.client.begin(self._zeros(self._shard.traffic.inputs))

    def send_results(self) -> None:
        """Send the results of all calls of the step."""
        for call, numbers in enumerate(self._shard.traffic.to_memory):
            if numbers:
                self.client.send_results(call, partial(self._zeros, numbers))

    def _zeros(self, numbers: Any) -> list[np.ndarray]:
        specs = [self._stack.schedule.values[number] for number in numbers]
        return split_views(np.zeros(1 << 20, np.uint8), specs)


@pytest.fixture
def served(stack: Streamed, tmp_path: Path) -> Iterator[Served]:
    with serving(stack, tmp_path) as served:
        yield served


@contextmanager
def serving(stack: Streamed, directory: Path) -> Iterator[Served]:
    with listen("127.0.0.1", 0) as listener:
        found = Served(MemoryxAddress(*listener.getsockname()), stack)

        def make_memory(model: Any, shard: Any, executables: Any) -> RemoteMemory:
            return RemoteMemory(model, shard, executables, directory, 1, None)

        def serve(channel: FrameChannel) -> None:
            found.connections.append(WaferConnection(channel, make_memory, found.registry))
            found.connections[-1].serve()
            found.has_ended.set()

        threading.Thread(target=Admission(listener, SECRET, serve).run, daemon=True).start()
        yield found
        found.client.close()
        listener.shutdown(2)


def test_a_connection_that_has_failed_is_no_longer_watched(served: Served) -> None:
    served.open()
    (watchdog,) = [thread for thread in served.client._threads if thread.name == "memoryx watchdog"]
    served.connections[0]._channel.connection.shut_down()
    watchdog.join(LIMIT_S)
    assert not watchdog.is_alive()


def test_an_update_whose_weights_were_never_sent(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wafer that does not wait for the weights begins the next step, and leaves."""
    may_stream = threading.Event()

    def begin_step(memory: RemoteMemory) -> Values:
        may_stream.wait(LIMIT_S)
        raise ConnectionError

    monkeypatch.setattr(RemoteMemory, "begin_step", begin_step)
    served.open()
    served.begin()
    served.send_results()
    served.begin()
    (connection,) = served.connections
    wait_until(lambda: connection._last_step is not None and connection._last_step.number == 2)
    served.client.close()
    may_stream.set()
    assert served.has_ended.wait(LIMIT_S)


def test_an_update_that_never_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "_UPDATE_END_S", 0.1)
    served.open()
    (connection,) = served.connections
    process = connection._memory._process  # type: ignore[attr-defined]
    os.kill(process.pid, 19)  # SIGSTOP, as a loop without an end
    served.begin()
    served.send_results()
    wait_until(lambda: connection._last_step is not None and not connection._last_step.expected)
    served.client.close()
    assert served.has_ended.wait(LIMIT_S)
    assert process.has_ended
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_model_whose_wafer_leaves_before_it_is_ready_is_forgotten(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(channel: FrameChannel) -> bool:
        assert served.registry.find(b"model") is not None
        raise ConnectionError

    monkeypatch.setattr(server, "_receive_mapped", leave)
    served.open()
    assert served.has_ended.wait(LIMIT_S)
    assert served.registry.find(b"model") is None

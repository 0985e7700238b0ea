"""The process that computes the update of a model for a MemoryX: see `remote` for its frames."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cs_system.engine.base import Executables
from cs_system.engine.device import start_device
from cs_system.engine.machine import limit_threads
from cs_system.engine.state import device_errors
from cs_system.errors import CsSystemError, MemoryxError, ProgramError, unexpected_error
from cs_system.memoryx.protocol import FrameChannel, FrameType, receive_model
from cs_system.memoryx.store import Values, step_values
from cs_system.memoryx.updates import Memory, compile_functions
from cs_toolkit.layered_step import Shard, shards

log = logging.getLogger("cs_system.memoryx")


def start_update_device(threads: int | None, xla_cache: Path | None) -> int:
    """Start the device for updates; return the number of compute threads."""
    count = limit_threads(threads)
    limit_threads(1)  # for each function; the update's threads call several functions at a time
    # Synchronous dispatch: calls are short, and handing each to another thread costs a third of the rate.
    start_device(xla_cache, dispatches_async=False, on_cpu=True)
    return count


def make_local_memory(shard: Shard, executables: Executables, directory: Path, threads: int) -> Memory:
    """Make the state and gradients of a part of a model, whose update this process computes.

    Raises:
        ProgramError: a function cannot be compiled.
        StorageFullError: there is no room.
    """
    with device_errors(ProgramError, "programming MemoryX"):
        compiled = compile_functions(shard.schedule, executables)
    return Memory(shard, *compiled, directory, threads)


def serve(directory: Path, threads: int, xla_cache: Path | None, channel: FrameChannel) -> int:
    """Receive a model, and compute its updates until MemoryX disconnects; return the exit code.

    Args:
        directory: Where state and gradients are stored.
        threads: Number of compute threads.
        xla_cache: Directory of compiled functions; None stores nothing.
        channel: Connection with MemoryX.
    """
    faulthandler.enable()
    server = _UpdateServer(channel)
    with contextlib.suppress(ConnectionError), _failures(channel):
        server.open(directory, start_update_device(threads, xla_cache))
        server.serve()
    return 0


@contextlib.contextmanager
def _failures(channel: FrameChannel) -> Iterator[None]:
    """Send an error of the body to MemoryX."""
    try:
        yield
    except ConnectionError:
        raise
    except CsSystemError as error:
        channel.send_failure(error)
    except Exception as error:
        log.exception("internal error of MemoryX")
        channel.send_failure(unexpected_error("MemoryX", error))


class _UpdateServer:
    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        # The small values of the next step.
        self._known: Values = {}
        # The small state that the current update has still to replace.
        self._to_replace: set[int] = set()

    def open(self, directory: Path, threads: int) -> None:
        """Receive the model, and answer where its files are."""
        channel = self._channel
        model, executables = receive_model(channel, channel.receive_header())
        shard = shards(model.schedule, model.shards)[model.shard]
        self._memory = memory = make_local_memory(shard, executables, directory, threads)
        self._replaced_small = memory.small & memory.schedule.replacements.keys()
        self._numbers = step_values(memory.schedule)
        channel.send(FrameType.OPENED, 0, memory.files.to_json())

    def serve(self) -> None:
        """Compute the update of each step, and the small values for its start, until MemoryX disconnects."""
        channel = self._channel
        while True:
            header = channel.receive_header()
            if header.type is FrameType.GET:
                self._begin_step()
                continue
            self._to_replace = set(self._replaced_small)
            before_change = self._announce_change if header.index else None
            # A copy: an update that replaces no small state leaves these values to the next step.
            known = dict(self._known)
            answers = self._memory.update(known, self._exchange, before_change, self._announce_changed)
            channel.send_arrays(FrameType.ANSWERS, 0, answers)

    def _begin_step(self) -> None:
        """Compute and send the small values of the next step."""
        self._known = self._memory.begin_step()
        self._channel.send_arrays(FrameType.STATE, 0, [self._known[number] for number in self._numbers])

    def _announce_change(self, state: frozenset[int]) -> None:
        if state:
            self._channel.send_numbers(FrameType.SNAPSHOT, sorted(state))
            self._channel.receive_header()  # DONE: the state may change

    def _announce_changed(self, state: frozenset[int]) -> None:
        if not self._to_replace.isdisjoint(state):
            self._to_replace -= state
            if not self._to_replace:
                self._begin_step()
        if state:
            self._channel.send_numbers(FrameType.UPDATED, sorted(state))

    def _exchange(self, index: int, given: list[np.ndarray]) -> list[np.ndarray]:
        channel, shard = self._channel, self._memory.shard
        channel.send_arrays(FrameType.PARTIAL, index, given)
        header = channel.receive_header()
        if header.type is not FrameType.SHARED:
            raise MemoryxError(f"got {header.type.name} from MemoryX, expected SHARED")
        return channel.receive_arrays(
            header, [shard.schedule.values[number] for number in shard.taken[index]]
        )

"""The update of a model in a separate process, for a MemoryX that serves several models.

XLA computes the functions of any user there: its crash ends a model and not MemoryX. State and gradients are
in files that both processes map, so only small values and the progress of an update are sent. The frames are
those of MemoryX:

    OPEN, FUNCTION ...   to the process: the model, as a wafer has sent it
    OPENED               from it: its files
    GET                  to it: compute the small values of a step's start; the answer is STATE
    BEGIN                to it: compute the update of a step; index 1 while a snapshot is being read
    STATE                from it: the small values of the next step, before UPDATED of the last small state
    ANSWERS              from it: the outputs that the update computes
    SNAPSHOT, DONE       from it, to it: while a snapshot is being read, state with these numbers is about to
                         change, and it may
    UPDATED              from it: state with these numbers has changed
    PARTIAL, SHARED      from it, to it: contributions to a round of the update
    FAILED               from it
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cs_system.engine.base import Executables
from cs_system.engine.xla_cache import XlaCache
from cs_system.errors import MemoryxError
from cs_system.memoryx.protocol import (
    MAX_TEXT_BYTES,
    FrameChannel,
    FrameType,
    Header,
    ModelDescription,
    send_model,
)
from cs_system.memoryx.store import (
    Changes,
    Exchange,
    ModelMemory,
    SharedFiles,
    Values,
    step_values,
)
from cs_system.processes import ChildProcess
from cs_toolkit.layered_step import Shard
from cs_toolkit.network.connection import Connection
from cs_toolkit.security.sealing import FrameKey

# How long to wait for the exit code of a process that has disconnected: it may be writing a core dump.
_EXIT_CODE_TIMEOUT_S = 10.0


class RemoteMemory(ModelMemory):
    """State and gradients of a model whose update another process computes.

    Args:
        model: The model, as a wafer has described it.
        shard: The part of it that is stored here.
        executables: Bytes and interface of the functions of its calls, by number.
        directory: Where state and gradients are stored.
        threads: Number of compute threads.
        xla_cache: Compiled functions; None stores nothing.

    Raises:
        CsSystemError: the process refuses the model, or there is no room for its state.
    """

    # The values of the next step come without a request as soon as an update has replaced small state. A
    # request costs two more changes of the process, while the wafer waits for its first weights: steps of
    # 2.5 ms took 1.15 times as long as with an update in MemoryX's own process, and take 1.04 times as long.

    def __init__(
        self,
        model: ModelDescription,
        shard: Shard,
        executables: Executables,
        directory: Path,
        threads: int,
        xla_cache: XlaCache | None,
    ) -> None:
        self._step_values: Values | None = None
        self._xla_cache = xla_cache
        key = secrets.token_hex(32)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = ChildProcess(
                "cs_memoryx",
                run_updates,
                [str(directory), threads, str(xla_cache.directory if xla_cache else ""), key],
                [theirs.fileno()],
            )
        self._channel = make_channel(ours, key, is_server=True)
        try:
            with self._lost(has_state=False):
                send_model(self._channel, model, executables)
                header = self._expect(FrameType.OPENED)
                files = SharedFiles.from_json(self._channel.receive_payload(header, MAX_TEXT_BYTES))
                super().__init__(shard, *files.open(shard), files)
        except BaseException:
            self._end_process()
            raise

    def begin_step(self) -> Values:
        """Return the small values of a step's start, which come with the update of the previous step."""
        if self._step_values is None:
            # No update is running: it is the first step, or state was put after the last one.
            with self._lost():
                self._channel.send(FrameType.GET, 0)
                self._receive_step_values(self._expect(FrameType.STATE))
        assert self._step_values is not None
        return self._step_values

    def receive_state(self, number: int, receive: Callable[[np.ndarray], None]) -> None:
        """Receive a state tensor, between two steps; the process has to read it again."""
        self._step_values = None
        super().receive_state(number, receive)

    def update(
        self,
        known: Values,
        exchange: Exchange,
        before_change: Changes | None,
        after_change: Changes,
    ) -> list[np.ndarray]:
        """Have the process compute the update of a step; see `ModelMemory.update`."""
        values, channel = self.schedule.values, self._channel
        with self._lost():
            # An announcement costs two changes of the process, 0.1 ms at least.
            channel.send(FrameType.BEGIN, int(before_change is not None))
            while (header := self._receive()).type is not FrameType.ANSWERS:
                if header.type is FrameType.PARTIAL and header.index < len(self.shard.given):
                    specs = [values[number] for number in self.shard.given[header.index]]
                    given = channel.receive_arrays(header, specs)
                    try:
                        taken = exchange(header.index, given)
                    except ConnectionError as error:
                        raise _WaferGoneError(error) from error
                    channel.send_arrays(FrameType.SHARED, header.index, taken)
                elif header.type is FrameType.SNAPSHOT and before_change is not None:
                    before_change(self._receive_state(header))
                    channel.send(FrameType.DONE, 0)
                elif header.type is FrameType.STATE:
                    self._receive_step_values(header)
                elif header.type is FrameType.UPDATED:
                    after_change(self._receive_state(header))
                else:
                    raise MemoryxError(f"the process of the update sent {header.type.name}")
            return channel.receive_arrays(header, [values[n] for n in dict.fromkeys(self.traffic.answers)])

    def abort(self) -> None:
        """Kill the process: an update that waits for it ends with an error."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and close the files."""
        self._end_process()
        super().close()
        if self._xla_cache is not None:
            self._xla_cache.trim()

    def _end_process(self) -> None:
        self._process.end()
        self._channel.connection.shut_down()
        self._channel.connection.close()

    def _receive_step_values(self, header: Header) -> None:
        numbers = step_values(self.schedule)
        arrays = self._channel.receive_arrays(header, [self.schedule.values[number] for number in numbers])
        self._step_values = dict(zip(numbers, arrays, strict=True))

    def _receive_state(self, header: Header) -> frozenset[int]:
        found = frozenset(self._channel.receive_numbers(header, len(self.schedule.state)))
        if not found <= set(self.schedule.state.values()):
            raise MemoryxError("the process of the update changes something else than state")
        return found

    def _receive(self) -> Header:
        header = self._channel.receive_header()
        if header.type is FrameType.FAILED:
            raise self._channel.receive_failure(header)
        return header

    def _expect(self, kind: FrameType) -> Header:
        header = self._receive()
        if header.type is not kind:
            raise MemoryxError(f"the process of the update sent {header.type.name}, expected {kind.name}")
        return header

    @contextlib.contextmanager
    def _lost(self, *, has_state: bool = True) -> Iterator[None]:
        """Convert the loss of the process to an error with its cause."""
        try:
            yield
        except _WaferGoneError as error:
            raise error.cause from None
        except OSError:
            self._process.wait(_EXIT_CODE_TIMEOUT_S)
            if self._process.start_error:
                raise MemoryxError.not_started(self._process.start_error) from None
            process = self._process
            raise MemoryxError.process_ended(process.exit_code, process.memory, has_state=has_state) from None


class _WaferGoneError(Exception):
    """The connection of the wafer, not that of the process, has ended."""

    def __init__(self, cause: ConnectionError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def make_channel(sock: socket.socket, key: str, is_server: bool) -> FrameChannel:
    """Make a side of the connection between the two processes."""
    return FrameChannel(Connection(sock), FrameKey(bytes.fromhex(key)), is_server)


def run_updates(directory: str, threads: int, xla_cache: str, key: str, descriptor: int) -> int:
    """Compute updates in the process of a `RemoteMemory`; return its exit code."""
    from cs_system.memoryx.update_server import serve

    channel = make_channel(socket.socket(fileno=descriptor), key, is_server=False)
    return serve(Path(directory), threads, Path(xla_cache) if xla_cache else None, channel)

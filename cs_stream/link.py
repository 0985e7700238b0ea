"""The system's end of a connection: the socket around the state machine.

A single thread, the link's own, receives. Any thread may queue frames and flush them: the frames that the
system sends to a worker are few and small (at most one CREDIT a batch), so a flush never waits. A worker
whose socket does not accept even those has stopped, and its connection is aborted.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from cs_stream.batches import Slot, digest
from cs_stream.frames import HEADER_BYTES
from cs_stream.messages import ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import (
    HelloReceived,
    ReadControl,
    ReadPayload,
    ServerConnection,
    ServerEvent,
    ServerState,
)
from cs_stream.sockets import (
    PeerGoneError,
    PeerSilentError,
    receive_scattered,
    receive_some,
    set_time_limit,
    shut_down,
)

_SCRATCH_BYTES = 1 << 16
_LINGER_S = 2.0


class ServerLink:
    """An accepted connection.

    Attributes:
        peer: Its address, for logs.
        worker: Index, once the run has accepted it.
        generation: The one given by the run.
        idle: Set when the link's thread can no longer write into any slot.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self.worker = -1
        self.generation = 0
        self.idle = threading.Event()
        self._sock = sock
        self._core = ServerConnection()
        self._core_lock = threading.Lock()
        # Serializes sending, shutting down and closing, none of which blocks.
        self._socket_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._checksum = False
        self._scratch = memoryview(bytearray(HEADER_BYTES))

    @property
    def is_over(self) -> bool:
        """True if this end has nothing more to receive."""
        return self._core.state is ServerState.CLOSED

    # -- the link's own thread ---------------------------------------------------------------------------

    def receive_hello(self, limit_s: float) -> Hello:
        """Wait for HELLO.

        Raises:
            ProtocolError: the peer speaks another protocol.
            PeerGoneError: it disconnected.
            PeerSilentError: HELLO was not complete within `limit_s`.
        """
        deadline_s = time.monotonic() + limit_s
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while True:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise PeerSilentError(f"no complete HELLO within {limit_s:g} s")
            set_time_limit(self._sock, socket.SO_RCVTIMEO, remaining_s)
            for event in self._receive(self._no_slot):
                if isinstance(event, HelloReceived):
                    self._scratch = memoryview(bytearray(HEADER_BYTES))
                    return event.hello

    def receive(self, locate: Callable[[int], Slot]) -> list[ServerEvent]:
        """Wait for the next events of the stream; none when this end is over.

        Payloads are received directly into the slots that `locate(seq)` returns.

        Raises:
            ProtocolError: the peer violated the protocol; the ERR frame is sent.
            PeerGoneError: it disconnected.
            PeerSilentError: nothing was received for the liveness time.
        """
        events: list[ServerEvent] = []
        while not events and not self.is_over:
            try:
                events = self._receive(locate)
            finally:
                if self._core.has_data_to_send:
                    self.flush()
        return events

    def _receive(self, locate: Callable[[int], Slot]) -> list[ServerEvent]:
        with self._core_lock:
            want = self._core.wants()
        match want:
            case ReadControl(size_bytes):
                count = receive_some(self._sock, self._scratch[:size_bytes])
                with self._core_lock:
                    # If the run has ended in the meantime, the state machine is closed and ignores the bytes.
                    return [] if self.is_over else self._core.receive_data(self._scratch[:count])
            case ReadPayload(seq):
                slot = locate(seq)
                receive_scattered(self._sock, slot.buffers)
                checksum = digest(slot.fields) if self._checksum else 0
                with self._core_lock:
                    return self._core.payload_received(checksum)
            case None:
                return []

    @staticmethod
    def _no_slot(seq: int) -> Slot:
        raise ValueError(f"got the payload of batch {seq} before WELCOME")

    def finish(self) -> None:
        """Send queued bytes, read the peer's last bytes for a while, and close."""
        # Closing with unread bytes would reset the connection, and the peer could lose the ERR or BYE frame.
        self.idle.set()
        self.flush()
        with self._socket_lock:
            shut_down(self._sock, socket.SHUT_WR)
        if self.is_over:
            with contextlib.suppress(PeerGoneError, PeerSilentError):
                self._drain(time.monotonic() + _LINGER_S)
        self.close()

    def _drain(self, deadline_s: float) -> None:
        waste = memoryview(bytearray(_SCRATCH_BYTES))
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            set_time_limit(self._sock, socket.SO_RCVTIMEO, remaining_s)
            receive_some(self._sock, waste)

    def close(self) -> None:
        """Close the socket; only for the thread that receives."""
        self.idle.set()
        with self._socket_lock:
            self._is_closed = True
            self._sock.close()

    def run_in_thread(self, serve: Callable[["ServerLink"], None]) -> None:
        """Start the link's own thread, which calls `serve(self)`."""
        self._thread = threading.Thread(
            target=serve, args=(self,), name=f"streaming-link {self.peer}", daemon=True
        )
        self._thread.start()

    # -- any thread --------------------------------------------------------------------------------------

    def assign(self, worker: int, generation: int) -> None:
        """Set the worker and generation that the run has given the link."""
        self.worker, self.generation = worker, generation

    def accept(self, welcome: Welcome, payload_bytes: int, window: int) -> None:
        """Queue WELCOME, after which the peer may send batches. Arguments as of `ServerConnection.accept`."""
        set_time_limit(self._sock, socket.SO_RCVTIMEO, welcome.liveness_s)
        self._checksum = welcome.checksum
        with self._core_lock:
            self._core.accept(welcome, self.worker, self.generation, payload_bytes, window)

    def grant(self, limit: int) -> bool:
        """Queue a CREDIT unless it can wait; return True if there are bytes to flush."""
        with self._core_lock:
            self._core.grant(limit)
            return self._core.has_data_to_send

    def end(self, failure: Failure | None) -> None:
        """Queue BYE, or ERR if there is a failure; nothing more is received."""
        with self._core_lock:
            if failure is None:
                self._core.bye()
            else:
                self._core.fail(failure)

    def flush(self) -> None:
        """Send queued bytes without waiting."""
        with self._socket_lock:
            with self._core_lock:
                data = self._core.data_to_send()
            if not data or self._is_closed:
                return
            try:
                sent = self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                sent = 0
            # The peer does not read even these few bytes, so it has stopped.
            if sent < len(data):
                self.abort()

    def half_close(self) -> None:
        """Send queued bytes and shut down our side of the stream; the peer is expected to close."""
        with self._socket_lock:
            self.flush()
            if not self._is_closed:
                shut_down(self._sock, socket.SHUT_WR)

    def abort(self) -> None:
        """Shut the stream down both ways, which also wakes the link's thread."""
        with self._socket_lock:
            if not self._is_closed:
                shut_down(self._sock)

    def join(self, limit_s: float) -> None:
        """Wait until the link's thread has ended; abort the connection after `limit_s` seconds."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self.abort()
            self._thread.join()

    def replace(self, by: str) -> None:
        """Report to the peer that it is replaced, abort the connection, and wait until its thread is idle."""
        self.end(Failure(ErrorCode.REPLACED, f"{by} took over"))
        self.flush()
        self.abort()
        self.idle.wait()

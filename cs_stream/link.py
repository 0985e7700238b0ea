"""The system's end of one connection: the socket around the state machine.

One thread, the link's own, receives. Any thread may queue frames and flush them: the frames that the system
sends to a worker are few and small (at most one CREDIT a batch), so a flush never waits. A worker whose
socket does not even take those has stopped, and its connection is given up.
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
    """One accepted connection.

    Attributes:
        peer: its address, for logs.
        worker: index, once the run has taken it.
        generation: the one given by the run.
        idle: set when the link's thread can write into no slot any more.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self.worker = -1
        self.generation = 0
        self.idle = threading.Event()
        self._sock = sock
        self._core = ServerConnection()
        self._core_lock = threading.Lock()
        # Serialises sending, shutting down and closing, none of which blocks.
        self._socket_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._checksum = False
        self._scratch = memoryview(bytearray(HEADER_BYTES))

    @property
    def is_over(self) -> bool:
        """Whether this end has nothing more to receive."""
        return self._core.state is ServerState.CLOSED

    # -- the link's own thread ---------------------------------------------------------------------------

    def receive_hello(self, limit_s: float) -> Hello:
        """Wait for HELLO.

        Raises:
            ProtocolError: the peer speaks something else.
            PeerGoneError: it went away.
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

        Payloads go straight to where `locate(seq)` says.

        Raises:
            ProtocolError: the peer broke the protocol; the ERR frame is sent.
            PeerGoneError: it went away.
            PeerSilentError: nothing was heard for the liveness time.
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
                    # A run that ends meanwhile has closed the state machine: the bytes do not matter then.
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
        """Send what is queued, read the peer's last words for a while, and close.

        Closing with unread bytes would reset the connection, and the peer could lose the ERR or BYE frame.
        """
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
        """The run has given the link this place."""
        self.worker, self.generation = worker, generation

    def accept(self, welcome: Welcome, payload_bytes: int, window: int) -> None:
        """Queue WELCOME; from here on the peer may send batches. See `ServerConnection.accept`."""
        set_time_limit(self._sock, socket.SO_RCVTIMEO, welcome.liveness_s)
        self._checksum = welcome.checksum
        with self._core_lock:
            self._core.accept(welcome, self.worker, self.generation, payload_bytes, window)

    def grant(self, limit: int) -> bool:
        """Queue a CREDIT unless it can wait; whether there is something to flush."""
        with self._core_lock:
            self._core.grant(limit)
            return self._core.has_data_to_send

    def end(self, failure: Failure | None) -> None:
        """Queue BYE, or ERR when there is a failure; nothing more is received."""
        with self._core_lock:
            if failure is None:
                self._core.bye()
            else:
                self._core.fail(failure)

    def flush(self) -> None:
        """Send what is queued, without waiting."""
        with self._socket_lock:
            with self._core_lock:
                data = self._core.data_to_send()
            if not data or self._is_closed:
                return
            try:
                sent = self._sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError:
                sent = 0
            if sent < len(data):
                self.abort()

    def half_close(self) -> None:
        """Send what is queued and end our side of the stream; the peer is expected to close."""
        with self._socket_lock:
            self.flush()
            if not self._is_closed:
                shut_down(self._sock, socket.SHUT_WR)

    def abort(self) -> None:
        """End the stream both ways, which also wakes the link's thread."""
        with self._socket_lock:
            if not self._is_closed:
                shut_down(self._sock)

    def join(self, limit_s: float) -> None:
        """Wait until the link's thread has ended; after `limit_s` seconds the peer is cut off."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self.abort()
            self._thread.join()

    def replace(self, by: str) -> None:
        """Tell the peer that it is replaced, cut it off, and wait until its thread leaves the slots alone."""
        self.end(Failure(ErrorCode.REPLACED, f"{by} took over"))
        self.flush()
        self.abort()
        self.idle.wait()

"""The system's end of a connection: the socket around the state machine.

A single thread, the link's own, receives. Any thread may queue frames and flush them.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

from cs_stream.batches import Slot, content_digest
from cs_stream.frames import HEADER_BYTES
from cs_stream.messages import ErrorCode, Failure, Hello, Welcome
from cs_stream.protocol import (
    BatchReceived,
    HelloReceived,
    ProofReceived,
    ReadControl,
    ReadPayload,
    ServerConnection,
    ServerEvent,
    ServerState,
)
from cs_stream.shared_memory import SharedMemory
from cs_toolkit.network.connection import Connection, PeerGoneError, PeerSilentError
from cs_toolkit.network.frames import FrameError
from cs_toolkit.network.liveness import SilenceTimer
from cs_toolkit.spans import SpanRing

_log = logging.getLogger(__name__)

_SCRATCH_BYTES = 1 << 16
# While batches are in shared memory: many headers come together.
_HEADERS_BYTES = 32 * HEADER_BYTES
_LINGER_S = 2.0
_MIN_SHARED_SLOTS, _SHARED_BYTES = 2, 16 << 20


class ServerLink:
    """An accepted connection.

    Args:
        connection: The connection, which the link closes.
        peer: Its address, for logs.

    Attributes:
        peer: Its address.
        worker: Index, once the run has accepted it.
        generation: The one given by the run.
        idle: Set when the link's thread can no longer write into any slot.
    """

    def __init__(self, connection: Connection, peer: str) -> None:
        self.peer = peer
        self.worker = -1
        self.generation = 0
        self.idle = threading.Event()
        self._connection = connection
        self._core = ServerConnection()
        self._core_lock = threading.Lock()
        # Serializes sending, shutting down and closing, none of which blocks.
        self._socket_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._silence: SilenceTimer | None = None
        self._is_closed = False
        self._has_digests = False
        self._spans: SpanRing | None = None
        self._track = ""
        self._scratch = memoryview(bytearray(HEADER_BYTES))
        # Bytes of the stream in `_scratch` that are not processed so far.
        self._unread = self._scratch[:0]
        # Set by the first batch in shared memory: from then on only headers come on the stream.
        self._has_shared = False
        # Number of batches that are received before their events are returned.
        self._group, self._payload_bytes = 1, 0
        # Raised by the next `receive`, after the events before it.
        self._error: FrameError | ConnectionError | None = None
        self._memory: SharedMemory | None = None

    @property
    def is_over(self) -> bool:
        """True if this end has nothing more to receive."""
        return self._core.state is ServerState.CLOSED

    # -- the link's own thread ---------------------------------------------------------------------------

    def receive_hello(self, deadline_s: float) -> Hello:
        """Wait for HELLO, until a monotonic time.

        Raises:
            FrameError: the peer speaks another protocol.
            PeerGoneError: it disconnected.
            PeerSilentError: HELLO was not complete in time.
        """
        self._connection.handshake(deadline_s - time.monotonic())
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        while True:
            for event in self._receive(None, deadline_s):
                if isinstance(event, HelloReceived):
                    self._scratch = memoryview(bytearray(HEADER_BYTES))
                    return event.hello

    def challenge(self, secret: str, deadline_s: float) -> None:
        """Exchange proofs of the job's secret with the peer, until a monotonic time.

        Raises:
            FrameError: the peer does not know the secret; the ERR frame is queued.
            PeerGoneError: it disconnected.
            PeerSilentError: its proof was not complete in time.
        """
        with self._core_lock:
            self._core.challenge(secret)
        self.flush()
        while ProofReceived() not in self._receive(None, deadline_s):
            pass

    def receive(self, slot_for: Callable[[int], Slot]) -> list[ServerEvent]:
        """Wait for the next events of the stream; none when this end is over.

        Payloads are received directly into the slots that `slot_for(seq)` returns. Batches that have arrived
        completely are returned together, so that the consumer is woken once for all of them; another event
        can only be the last one.

        Raises:
            FrameError: the peer violated the protocol; the ERR frame is sent.
            PeerGoneError: it disconnected.
            PeerSilentError: nothing was received for the liveness time.
        """
        if self._error is not None:
            raise self._error
        events: list[ServerEvent] = []
        try:
            while not events and not self.is_over:
                events = self._receive(slot_for)
                if not events and self._core.has_data_to_send:
                    self.flush()
            while 0 < len(events) < self._group and not self.is_over and self._has_batch(events[-1]):
                events += self._receive(slot_for)
        except (FrameError, PeerGoneError, PeerSilentError) as error:
            if not events:
                raise
            self._error = error
        finally:
            if self._core.has_data_to_send:
                self.flush()
        return events

    def _has_batch(self, event: ServerEvent) -> bool:
        """Return True if a batch was the last event, and the next frame is received without waiting."""
        if len(self._unread) < HEADER_BYTES or not isinstance(event, BatchReceived):
            return False
        return self._has_shared or self._connection.has_received(self._payload_bytes)

    def _receive(
        self, slot_for: Callable[[int], Slot] | None, deadline_s: float | None = None
    ) -> list[ServerEvent]:
        with self._core_lock:
            want = self._core.wants()
        if isinstance(want, ReadControl):
            data = self._read(want.size_bytes, deadline_s)
            self._record_life()
            with self._core_lock:
                # If the run has ended in the meantime, the state machine is closed and ignores the bytes.
                events = [] if self.is_over else self._core.receive_data(data)
                want = self._core.wants()
            if not isinstance(want, ReadPayload):
                return events
        if want is None:
            return []
        assert slot_for is not None, "a payload before WELCOME"
        slot, began_s = slot_for(want.seq), time.monotonic()
        if want.is_shared:
            assert self._memory is not None
            slot.content = self._memory.read(want.seq, slot.fields, self._has_digests)
            if not self._has_shared:
                self._has_shared, self._scratch = True, memoryview(bytearray(_HEADERS_BYTES))
        else:
            self._unread = self._scratch[: self._connection.receive_ahead(slot.buffers, self._scratch)]
        if self._memory is not None:
            self._memory.count(want.seq)
        if self._spans is not None:
            self._spans.add(self._track, "receive", began_s, time.monotonic(), ("batch", want.seq))
        is_intact = self._core.is_intact(slot.fields)
        if self._has_digests and not want.is_shared:
            slot.content = content_digest(slot.fields)
        with self._core_lock:
            return self._core.payload_received(is_intact)

    def _read(self, size_bytes: int, deadline_s: float | None) -> memoryview:
        """Return the next bytes of the stream, at most `size_bytes`, after waiting for some."""
        if not self._unread:
            size = len(self._scratch) if self._has_shared else size_bytes
            self._unread = self._scratch[: self._connection.receive_some(self._scratch[:size], deadline_s)]
        data, self._unread = self._unread[:size_bytes], self._unread[size_bytes:]
        return data

    def _check_silence(self) -> None:
        """Log the silence of the worker; raises PeerSilentError if it has been silent for too long."""
        assert self._silence is not None
        now_s = time.monotonic()
        if self._connection.silence_s() < self._silence.check_every_s:  # part of a payload has come
            self._record_life()
        elif self._silence.check(now_s) and not self._silence.is_over:
            _log.warning(
                "worker %d at %s has not answered for %.0f s; its connection counts as lost after %g s",
                *(self.worker, self.peer, self._silence.silence_s, self._silence.timeout_s),
                extra={"worker": self.worker},
            )
        if self._silence.is_over:
            raise PeerSilentError(f"it has not answered for {self._silence.silence_s:.0f} s")

    def _record_life(self) -> None:
        silence_s = None if self._silence is None else self._silence.heard(time.monotonic())
        if silence_s is not None:
            _log.info(
                "worker %d at %s answers again after %.0f s",
                *(self.worker, self.peer, silence_s),
                extra={"worker": self.worker},
            )

    def drain_and_close(self) -> None:
        """Send queued bytes, read the peer's last bytes for a while, and close."""
        # Closing with unread bytes would reset the connection, and the peer could lose the ERR or BYE frame.
        self.idle.set()
        self._connection.on_timeout = None
        self.flush()
        with self._socket_lock:
            self._connection.shut_down(socket.SHUT_WR)
        if self.is_over:
            with contextlib.suppress(PeerGoneError, PeerSilentError, FrameError):
                deadline_s, waste = time.monotonic() + _LINGER_S, memoryview(bytearray(_SCRATCH_BYTES))
                while True:
                    self._connection.receive_some(waste, deadline_s)
        self.close()

    def close(self) -> None:
        """Close the socket; only for the thread that receives."""
        self.idle.set()
        with self._socket_lock:
            self._is_closed = True
            self._connection.close()
        if self._memory is not None:
            self._memory.close()

    def run_in_thread(self, serve: Callable[["ServerLink"], None]) -> None:
        """Start the link's own thread, which calls `serve(self)`."""
        self._thread = threading.Thread(
            target=serve, args=(self,), name=f"streaming-link {self.peer}", daemon=True
        )
        self._thread.start()

    # -- any thread --------------------------------------------------------------------------------------

    def assign(
        self, worker: int, generation: int, spans: SpanRing | None = None, has_digests: bool = False
    ) -> None:
        """Set the worker and generation that the run has given the link.

        Args:
            worker: Index of the worker.
            generation: Generation of the connection.
            spans: Where the link records its spans.
            has_digests: Compute the digests of the batches' content (`Slot.content`).
        """
        self.worker, self.generation, self._has_digests = worker, generation, has_digests
        self._spans, self._track = spans, f"receive from worker {worker}"

    def share_memory(self, window: int, slot_bytes: int, next_seq: int) -> SharedMemory | None:
        """Make memory for the batches from `next_seq` on, if the peer is on this machine."""
        if self._connection.is_local:
            # No more than fit the caches of processors: from there copies are twice as fast.
            slots = max(_MIN_SHARED_SLOTS, min(window, _SHARED_BYTES // slot_bytes))
            try:
                self._memory = SharedMemory.create(slots, slot_bytes)
                self._memory.count(next_seq - 1)
            except OSError as error:
                _log.warning("no memory is shared with worker %d: %s", self.worker, error.strerror)
        return self._memory

    def accept(self, welcome: Welcome, payload_bytes: int, window: int) -> None:
        """Queue WELCOME, after which the peer may send batches.

        Args:
            welcome: As of `ServerConnection.accept`.
            payload_bytes: The same.
            window: Approximate number of batches that the worker may be ahead of the release of slots.
        """
        self._payload_bytes, self._group = payload_bytes, max(1, window // 2)
        silence = self._silence = SilenceTimer(welcome.liveness_s, time.monotonic())
        self._connection.on_timeout = self._check_silence
        self._connection.limit_receive(silence.check_every_s)
        with self._core_lock:
            self._core.accept(welcome, self.worker, self.generation, payload_bytes)

    def grant(self, limit: int) -> bool:
        """Queue a CREDIT unless it can wait; return True if there are bytes to flush."""
        with self._core_lock:
            self._core.grant(limit)
            return self._core.has_data_to_send

    def queue_end(self, failure: Failure | None) -> None:
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
            # The frames that the system sends to a worker are few and small (at most one CREDIT a batch), so
            # this never has to wait. A worker that does not take even those has stopped.
            if not self._connection.send_now(data):
                self.abort()

    def half_close(self) -> None:
        """Send queued bytes and shut down our side of the stream; the peer is expected to close."""
        with self._socket_lock:
            self.flush()
            if not self._is_closed:
                self._connection.shut_down(socket.SHUT_WR)

    def abort(self) -> None:
        """Shut the stream down both ways, which also wakes the link's thread."""
        with self._socket_lock:
            if not self._is_closed:
                self._connection.shut_down()

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
        self.queue_end(Failure(ErrorCode.REPLACED, f"{by} took over"))
        self.flush()
        self.abort()
        self.idle.wait()

"""The system's side of the data plane: a listener for the lifetime of the server, a ring for each run.

    with Receiver(port=9001) as receiver:
        ring = receiver.open_run(RunSpec("job-7", token, num_workers=2, layout=layout, input_digest=digest))
        ring.wait_primed(timeout_s=300)     # until each worker has sent its first batch
        try:
            while True:
                span = ring.take(timeout_s=60)
                engine.run(span.chunk_arrays, span.offset, span.count)
                ring.release(span)              # only once nothing reads the span's arrays
        except EndOfInput:
            ring.close()                        # BYE to the workers

The listener and each connection have a daemon thread, ended by `close`. Stray peers (port scans, HTTP
clients, TLS) lose their connection and cost a log line, nothing else.
"""

import collections
import contextlib
import functools
import logging
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

from cs_stream.batches import BatchLayout, Field
from cs_stream.errors import ChecksumError, ListenError, StreamingError
from cs_stream.link import ServerLink
from cs_stream.messages import ErrorCode, Failure, Hello
from cs_stream.protocol import BatchReceived, BatchSkipped, ErrorReceived, InputEnded, ServerEvent
from cs_stream.ring import BatchRing, ReadySpan, RunEnd
from cs_stream.run_state import RunSpec, RunStats, WorkerPhase, WorkerStats
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import PeerGoneError, PeerSilentError, listen, name_of
from cs_toolkit.network.frames import FrameError
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import accept
from cs_toolkit.spans import SpanRing

__all__ = [
    "BatchLayout",
    "BatchRing",
    "Field",
    "ReadySpan",
    "Receiver",
    "RunSpec",
    "RunStats",
    "WorkerPhase",
    "WorkerStats",
]

_log = logging.getLogger(__name__)

# Limit of connections that are still in the handshake, low enough that unauthenticated peers cannot exhaust
# file descriptors. When one more comes, the oldest is dropped: a worker needs milliseconds, so idle peers do
# not keep it out.
_MAX_HANDSHAKES = 256
# Number of ended runs that are remembered, so that a worker that reconnects late gets the outcome of its run.
_REMEMBERED_RUNS = 16
# Pause after a failed accept: without file descriptors, the listener stays ready and every accept fails.
_ACCEPT_PAUSE_S = 0.2


class _DisconnectError(Exception):
    """A reason to end a connection that works: the worker gave up."""


class Receiver:
    """Accepts workers on the data port and attaches them to their runs.

    Args:
        host: Address to listen on; loopback by default.
        port: TCP port; 0 takes a free one, see `address`.
        handshake_timeout_s: How long a connection may take to prove that it belongs to a job.
        credentials: For TLS with the workers; None: without TLS.
        shares_memory: Let workers on this machine give their batches in shared memory.

    Attributes:
        address: Host and port of the listener.

    Raises:
        ListenError: cannot listen on the address.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        handshake_timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        shares_memory: bool = True,
    ) -> None:
        self._shares_memory = shares_memory
        self._credentials = credentials
        self._handshake_timeout_s = handshake_timeout_s
        self._listener = _listen(host, port)
        bound = self._listener.getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        self._lock = threading.Lock()
        self._runs: dict[str, BatchRing] = {}
        self._ended: collections.deque[tuple[str, RunSpec, RunEnd]] = collections.deque(
            maxlen=_REMEMBERED_RUNS
        )
        self._links: set[ServerLink] = set()
        # In the order of their arrival.
        self._handshakes: dict[ServerLink, None] = {}
        # Unauthenticated peers can cause these lines.
        self._dropped_lines, self._rejected_lines = LineLimiter(_log), LineLimiter(_log)
        self._accept_lines = LineLimiter(_log, per_minute=1)
        self._is_closed = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_all, name="streaming-accept", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_run(self, spec: RunSpec, spans: SpanRing | None = None) -> BatchRing:
        """Open the input of a job's run, and accept its workers from now on.

        Args:
            spec: The run.
            spans: Where the times of received batches are recorded.

        Raises:
            StreamingError: the job already has an open run, or the receiver is closed.
            LayoutError: not enough memory for the ring.
        """
        ring = BatchRing(spec, self._retire_run, spans, self._shares_memory)
        with self._lock:
            if self._is_closed:
                raise StreamingError("the data port is closed; no run can be opened")
            if spec.job_id in self._runs:
                raise StreamingError(f"a run of job {spec.job_id!r} is already open; close it first")
            self._runs[spec.job_id] = ring
        return ring

    def close(self, reason: str = "the CS system is shutting down") -> None:
        """Stop listening, stop every open run with `reason`, end all threads; a second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            rings = list(self._runs.values())
        self._wake_writer.close()  # wakes the thread that accepts connections
        self._thread.join()
        for ring in rings:
            ring.close(reason)
        with self._lock:
            links = list(self._links)
        for link in links:
            link.join(0.0)  # aborts the connection, then waits for its thread

    def _retire_run(self, ring: BatchRing, end: RunEnd) -> None:
        with self._lock:
            self._runs.pop(ring.spec.job_id, None)
            self._ended.append((ring.run_id, ring.spec, end))

    # -- the listener's thread ---------------------------------------------------------------------------

    def _accept_all(self) -> None:
        with self._listener, self._wake_reader, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_reader in ready:
                    return
                self._accept()

    def _accept(self) -> None:
        try:
            sock, peer = self._listener.accept()
        except BlockingIOError:
            return  # the peer disconnected before it was accepted
        except OSError as error:
            self._accept_lines.log(logging.ERROR, "cannot accept a connection: %s", error)
            # Pause; `close` cuts it short.
            self._wake_reader.settimeout(_ACCEPT_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                self._wake_reader.recv(1, socket.MSG_PEEK)
            return
        try:
            connection = accept(sock, self._credentials)
        except OSError:
            sock.close()
            return  # the peer has already disconnected
        link = ServerLink(connection, name_of(peer))
        with self._lock:
            self._links.add(link)
            self._handshakes[link] = None
            oldest = next(iter(self._handshakes)) if len(self._handshakes) > _MAX_HANDSHAKES else None
            if oldest is not None:
                del self._handshakes[oldest]
        if oldest is not None:
            self._dropped_lines.log(
                logging.WARNING,
                "dropping connection from %s: more than %d have not identified their job yet",
                oldest.peer,
                _MAX_HANDSHAKES,
            )
            oldest.abort()
        try:
            link.run_in_thread(self._serve)
        except RuntimeError as error:
            _log.error("dropping connection from %s: %s", link.peer, error)
            with self._lock:
                self._links.discard(link)
                self._handshakes.pop(link, None)
            link.close()

    # -- a connection's thread ---------------------------------------------------------------------------

    def _serve(self, link: ServerLink) -> None:
        ring = None
        reason = "the connection ended"
        try:
            hello, found, answer = self._shake_hands(link)
            if found is not None:
                answer = found.attach(link, hello)
            # Without a generation, `attach` has refused the link.
            if found is None or not link.generation:
                link.queue_end(answer)
                text = "the run is over" if answer is None else answer.text
                self._rejected_lines.log(
                    logging.WARNING, "rejecting worker %d at %s: %s", hello.worker, link.peer, text
                )
                return
            ring = found
            slot_for = functools.partial(ring.slot_for, link)
            while events := link.receive(slot_for):
                _apply(ring, link, events)
        except (_DisconnectError, PeerGoneError, PeerSilentError, FrameError) as error:
            reason = str(error)
            if ring is None:
                self._dropped_lines.log(logging.WARNING, "dropping connection from %s: %s", link.peer, error)
            elif isinstance(error, ChecksumError):
                ring.record_corruption(link, str(error))
            elif isinstance(error, PeerSilentError):
                link.queue_end(Failure(ErrorCode.TIMEOUT, str(error)))
        finally:
            link.idle.set()  # first, as a connection that replaces this one waits for it
            if ring is not None and link.generation:
                ring.detach(link, reason)
            link.drain_and_close()
            with self._lock:
                self._links.discard(link)

    def _shake_hands(self, link: ServerLink) -> tuple[Hello, BatchRing | None, Failure | None]:
        """Return HELLO, and the open run of the worker, or None and the reply to send (None means BYE)."""
        deadline_s = time.monotonic() + self._handshake_timeout_s
        try:
            hello = link.receive_hello(deadline_s)
            spec, ring, answer = self._find_run(hello)
            if spec is not None:
                link.challenge(spec.token, deadline_s)
            return hello, ring, answer
        finally:
            with self._lock:
                self._handshakes.pop(link, None)

    def _find_run(self, hello: Hello) -> tuple[RunSpec | None, BatchRing | None, Failure | None]:
        """Return the run that a worker asks for; without an open ring, the reply to send (None means BYE)."""
        with self._lock:
            for run_id, spec, end in self._ended:
                # It is reconnecting to a run that has ended in the meantime, not to the job's next one.
                if (spec.job_id, run_id) == (hello.job_id, hello.run_id):
                    return spec, None, end.failure
            ring = self._runs.get(hello.job_id)
        if ring is None:
            return None, None, Failure(ErrorCode.NO_RUN, f"no run of job {hello.job_id!r} is open")
        return ring.spec, ring, None


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ListenError(f"data port: got {port}, expected 0 to 65535")
    try:
        listener = listen(host, port, _MAX_HANDSHAKES)
    except OSError as error:
        raise ListenError(
            f"data port: cannot listen on {host}:{port} ({error}); choose a free port of this machine, or "
            "port 0 for any"
        ) from None
    listener.setblocking(False)
    return listener


def _apply(ring: BatchRing, link: ServerLink, events: list[ServerEvent]) -> None:
    """Apply the events of one `ServerLink.receive`: batches, after which there may be another event."""
    seqs = [event.seq for event in events if isinstance(event, BatchReceived)]
    if seqs:
        ring.commit(link, seqs)
    match events[-1]:
        case BatchSkipped():
            ring.skip(link)
        case InputEnded(total):
            ring.end_worker(link, total)
        case ErrorReceived(failure):
            if failure.code == ErrorCode.INPUT_FAILED:
                ring.fail_worker(link, failure)
            else:
                raise _DisconnectError(f"the worker gave up: {failure.text}")

"""The system's side of the data plane: a listener for the lifetime of the server, a ring for each run.

    with Receiver(port=9001) as receiver:
        ring = receiver.open_run(RunSpec("job-7", token, num_workers=2, layout=layout, input_digest=digest))
        ring.wait_primed(timeout_s=300)
        try:
            while True:
                span = ring.take(timeout_s=60)
                engine.run(span.chunk_arrays, span.offset, span.count)
                ring.release(span)              # only when nothing reads the span's arrays any more
        except EndOfInput:
            ring.close()                        # BYE to the workers

The listener and each connection have a thread; all are daemons and end with `close`. Foreign peers (port
scans, HTTP clients, TLS) cost a log line and their connection, nothing else.
"""

import collections
import functools
import logging
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

from cs_stream.batches import BatchLayout, Field
from cs_stream.errors import ChecksumError, ListenError, StreamingError
from cs_stream.link import ServerLink
from cs_stream.messages import ErrorCode, Failure, Hello
from cs_stream.protocol import BatchReceived, ErrorReceived, InputEnded, ServerEvent
from cs_stream.ring import BatchRing, ReadySpan, RunEnd
from cs_stream.run_state import RunSpec, RunStats, WorkerPhase, WorkerStats
from cs_toolkit.wire import Connection, FrameError, PeerGoneError, PeerSilentError, listen, name_of

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

# Limit of connections that have not been welcomed yet. Above any real number of workers that connect at the
# same moment, and low enough that unauthenticated peers cannot exhaust file descriptors.
_MAX_HANDSHAKES = 256
# Number of ended runs whose workers may still reconnect after a broken connection.
_REMEMBERED_RUNS = 16
# Pause when the process is out of file descriptors.
_ACCEPT_PAUSE_S = 0.2


class Receiver:
    """The data port.

    Args:
        host: Address to listen on; loopback by default.
        port: TCP port; 0 takes a free one, see `address`.
        handshake_timeout_s: How long a connection may take to send a complete HELLO.

    Attributes:
        address: Host and port of the listener.

    Raises:
        ListenError: the address cannot be listened on.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, handshake_timeout_s: float = 10.0) -> None:
        self._handshake_timeout_s = handshake_timeout_s
        self._listener = _listen(host, port)
        bound = self._listener.getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        self._lock = threading.Lock()
        self._runs: dict[str, BatchRing] = {}
        self._ended: collections.deque[tuple[str, RunEnd]] = collections.deque(maxlen=_REMEMBERED_RUNS)
        self._links: set[ServerLink] = set()
        self._handshakes = 0
        self._is_closed = False
        self._waker, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._accept_all, name="streaming-accept", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_run(self, spec: RunSpec) -> BatchRing:
        """Open the input of a job's run; from now on its workers are accepted.

        Raises:
            StreamingError: the job has an open run, or the receiver is closed.
            LayoutError: not enough memory for the ring.
        """
        ring = BatchRing(spec, self._forget_run)
        with self._lock:
            if self._is_closed:
                raise StreamingError("the data port is closed; no run can be opened")
            if spec.job_id in self._runs:
                raise StreamingError(f"a run of job {spec.job_id!r} is open already; close it first")
            self._runs[spec.job_id] = ring
        return ring

    def close(self, reason: str = "the CS system is shutting down") -> None:
        """Stop listening, stop every open run with `reason`, end all threads; a second call does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            rings = list(self._runs.values())
        # Wakes the thread that accepts connections.
        self._wake.close()
        self._thread.join()
        for ring in rings:
            ring.close(reason)
        with self._lock:
            links = list(self._links)
        for link in links:
            link.join(0.0)

    def _forget_run(self, ring: BatchRing, end: RunEnd) -> None:
        with self._lock:
            self._runs.pop(ring.spec.job_id, None)
            self._ended.append((ring.run_id, end))

    # -- the listener's thread ---------------------------------------------------------------------------

    def _accept_all(self) -> None:
        with self._listener, self._waker, selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._waker, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._waker in ready:
                    return
                self._accept()

    def _accept(self) -> None:
        try:
            sock, peer = self._listener.accept()
        except BlockingIOError:
            return  # the peer disconnected before it was accepted
        except OSError as error:
            _log.error("cannot accept a connection: %s", error)
            # A pause, which `close` ends.
            self._waker.settimeout(_ACCEPT_PAUSE_S)
            try:
                self._waker.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                return
            return
        try:
            connection = Connection(sock)
        except OSError:
            sock.close()
            return  # the peer has disconnected already
        link = ServerLink(connection, name_of(peer))
        with self._lock:
            self._links.add(link)
            self._handshakes += 1
        try:
            link.run_in_thread(self._serve)
        except RuntimeError as error:
            _log.error("connection from %s is dropped: %s", link.peer, error)
            with self._lock:
                self._links.discard(link)
                self._handshakes -= 1
            link.close()

    # -- a connection's thread ---------------------------------------------------------------------------

    def _serve(self, link: ServerLink) -> None:
        ring = None
        reason = "the connection ended"
        try:
            hello = self._receive_hello(link)
            ring, answer = self._find_run(hello)
            if ring is not None:
                answer = ring.attach(link, hello)
            if ring is None or not link.generation:
                link.end(answer)
                text = "the run is over" if answer is None else answer.text
                _log.warning("worker %d at %s is turned away: %s", hello.worker, link.peer, text)
                return
            locate = functools.partial(ring.locate, link)
            while events := link.receive(locate):
                for event in events:
                    _apply(ring, link, event)
        except (PeerGoneError, PeerSilentError, FrameError) as error:
            reason = str(error)
            if ring is None:
                _log.warning("connection from %s is dropped: %s", link.peer, error)
            elif isinstance(error, ChecksumError):
                ring.record_damage(link, str(error))
            elif isinstance(error, PeerSilentError):
                link.end(Failure(ErrorCode.TIMEOUT, str(error)))
        finally:
            link.idle.set()
            if ring is not None and link.generation:
                ring.detach(link, reason)
            link.finish()
            with self._lock:
                self._links.discard(link)

    def _receive_hello(self, link: ServerLink) -> Hello:
        try:
            if self._handshakes > _MAX_HANDSHAKES:
                link.end(Failure(ErrorCode.BUSY, "too many simultaneous connections; try again"))
                raise PeerGoneError(f"more than {_MAX_HANDSHAKES} simultaneous handshakes")
            return link.receive_hello(self._handshake_timeout_s)
        finally:
            with self._lock:
                self._handshakes -= 1

    def _find_run(self, hello: Hello) -> tuple[BatchRing | None, Failure | None]:
        """Return the open run that a worker asks for; or no ring, with the answer to it (None is BYE)."""
        with self._lock:
            ring = self._runs.get(hello.job_id)
            ended = dict(self._ended).get(hello.run_id)
        if ended is not None:
            # It reconnects to a run that has ended in the meantime, not to the job's next one.
            return None, ended.failure
        if ring is None:
            text = f"job: got {hello.job_id!r}, expected one that runs"
            return None, Failure(ErrorCode.NO_RUN, f"{text}; no run of job {hello.job_id!r} is open")
        return ring, None


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ListenError(f"data port: got {port}, expected 0 to 65535")
    try:
        listener = listen(host, port, _MAX_HANDSHAKES)
    except OSError as error:
        raise ListenError(
            f"data port: got {host}:{port}, which cannot be listened on ({error}); choose a free port of "
            "this machine, or port 0 for any"
        ) from None
    listener.setblocking(False)
    return listener


def _apply(ring: BatchRing, link: ServerLink, event: ServerEvent) -> None:
    match event:
        case BatchReceived():
            ring.commit(link)
        case InputEnded(total):
            ring.end_worker(link, total)
        case ErrorReceived(failure):
            if failure.code == ErrorCode.INPUT_FAILED:
                ring.fail_worker(link, failure)
            else:
                raise PeerGoneError(f"the worker gave up: {failure.text}")

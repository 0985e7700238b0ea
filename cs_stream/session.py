"""The worker's end of a connection: the socket around the state machine.

The thread that runs the input sends, and receives when it needs credit. While it is in the input function, or
blocked in a send, a second thread sends pings and watches for the end of the system's stream, which directly
follows BYE or ERR. The thread that sees the end first records it and shuts the connection down, which wakes
the other.
"""

import contextlib
import logging
import select
import threading
import time
from collections.abc import Sequence

from cs_stream.batches import ALIGNMENT_BYTES, wire_buffers
from cs_stream.messages import Failure, Hello, Welcome
from cs_stream.protocol import ErrorReceived, RunEnded, Welcomed, WorkerConnection, WorkerState
from cs_stream.shared_memory import NotSharedError, SharedMemory
from cs_toolkit.log_lines import WaitLines
from cs_toolkit.network.connection import Connection, PeerGoneError, PeerSilentError
from cs_toolkit.network.frames import FrameError
from cs_toolkit.network.liveness import SilenceTimer

_log = logging.getLogger(__name__)

_RECEIVE_BYTES = 1 << 16
# Interval of pings, at most; and their number in a liveness time, at least.
_PING_EVERY_S, _PINGS_PER_LIVENESS = 5.0, 6
# The kernel's time of the last data has milliseconds.
_CLOCK_TICK_S = 0.005
# When a waiting worker logs it first, and how often it considers that.
_FIRST_LINE_S, _WAKE_EVERY_S = 10.0, 10.0
# How long to wait for the system's last frame, after a broken send or a failed input.
_REST_TIMEOUT_S = 2.0
# Pauses of a worker until its next slot of shared memory is free.
_ROOM_PAUSE_S, _LONGEST_ROOM_PAUSE_S = 1e-4, 1e-2

_PADDING = memoryview(bytes(ALIGNMENT_BYTES))


class StoppedHereError(Exception):
    """The session was ended by this process."""


SessionEnd = RunEnded | Failure | PeerGoneError | PeerSilentError | FrameError | StoppedHereError


class SessionOverError(Exception):
    """The session has ended; `Session.end` has the reason."""


class Session:
    """A connection of a worker.

    Args:
        connection: To the data port; the session closes it.
        hello: The worker's HELLO.
        secret: The job's secret.
        payload_bytes: Size of a batch's payload, with padding.

    Attributes:
        end: How the session ended; None while it lasts.
    """

    def __init__(self, connection: Connection, hello: Hello, secret: str, payload_bytes: int) -> None:
        self.end: SessionEnd | None = None
        self._payload_bytes = payload_bytes
        self._memory: SharedMemory | None = None
        self._connection = connection
        self._core = WorkerConnection(hello, secret)
        self._welcome: Welcome | None = None
        self._liveness_s = 0.0
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._last_sent_s = self._arrived_at_s = time.monotonic()
        self._wait_lines = WaitLines(time.monotonic(), _FIRST_LINE_S)
        # Guards the state machine, `end`, and the descriptor of the connection until that is closed.
        self._lock = threading.Lock()
        # Held while bytes are received, and until their events are applied.
        self._receiving = threading.Lock()
        # Held while bytes are sent, so that nothing comes between a header and its payload.
        self._sending = threading.Lock()
        self._watcher = threading.Thread(
            target=self._watch, name=f"streaming-sender w{hello.worker}", daemon=True
        )

    def shake_hands(self, limit_s: float) -> Welcome:
        """Send HELLO, exchange proofs of the secret, and wait for WELCOME.

        Raises:
            SessionOverError: the system did not accept the worker, or did not answer within `limit_s`.
        """
        deadline_s = time.monotonic() + limit_s
        self._limit_time(limit_s, limit_s)
        self._flush()
        while self._welcome is None:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                self._finish(PeerSilentError(f"no answer to HELLO within {limit_s:g} s"))
            self._receive_events(remaining_s)
            self._flush()
        self._liveness_s = self._welcome.liveness_s
        self._limit_time(self._liveness_s, _WAKE_EVERY_S)
        self._watcher.start()
        self._open_memory(self._welcome)
        return self._welcome

    def _open_memory(self, welcome: Welcome) -> None:
        if welcome.memory:
            try:
                self._memory = SharedMemory.open(welcome.memory, welcome.memory_token, self._payload_bytes)
            except NotSharedError as error:
                _log.info("batches are sent through the socket, not through shared memory: %s", error)

    @property
    def is_input_complete(self) -> bool:
        """True if the system has the worker's whole input."""
        return self._core.state is WorkerState.ENDED

    @property
    def next_seq(self) -> int:
        """The batch to send next."""
        return self._core.next_seq

    def wait_credit(self) -> float:
        """Wait until a batch may be sent; return the seconds waited.

        Raises:
            SessionOverError: the session has ended.
        """
        if self._core.credit > 0:
            return 0.0
        start_s = time.monotonic()
        self._wait_lines.restart(start_s)
        while self._core.credit < 1:
            self._receive_events()
            self._log_wait(start_s, "it takes the next batch of this worker")
        return time.monotonic() - start_s

    def batch_header(self, fields: Sequence[memoryview]) -> bytes | None:
        """Return the header of the next batch, with its digest; it needs no credit yet.

        None if the batch goes into shared memory, and has no digest.
        """
        if self._memory is not None:
            return None
        return self._core.batch_header(self._payload_bytes, fields)

    def send_batch(self, fields: Sequence[memoryview], header: bytes | None) -> None:
        """Send the next batch; there must be credit.

        Args:
            fields: The fields' bytes.
            header: From `batch_header`.

        Raises:
            SessionOverError: the session has ended.
        """
        if self._memory is not None:
            self._wait_room(self._memory)
            self._memory.write(self.next_seq, fields)
            header = self._core.shared_batch_header()
            buffers: Sequence[memoryview] = ()
        else:
            assert header is not None
            buffers = wire_buffers(fields, _PADDING)
        # In the thread of the input: a hop through another thread would cost a fifth of the throughput.
        with self._sending:
            with self._lock:
                if self.end is not None:
                    raise SessionOverError
                self._core.count_batch()
                head = self._core.data_to_send() + header
            self._send([head, *buffers])

    def _wait_room(self, memory: SharedMemory) -> None:
        # The system copies a batch as soon as it has its header, in a millisecond: no frame is worth that.
        pause_s = _ROOM_PAUSE_S
        while not memory.has_room(self.next_seq):
            if self.end is not None:
                raise SessionOverError
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_ROOM_PAUSE_S)

    def skip_batch(self) -> None:
        """State that the next batch does not exist; there must be credit.

        Raises:
            SessionOverError: the session has ended.
        """
        with self._lock:
            if self.end is not None:
                raise SessionOverError
            self._core.skip_batch()
        self._flush()

    def finish_input(self) -> None:
        """Declare the input complete, and wait for the end of the session, which is raised.

        Raises:
            SessionOverError: always.
        """
        with self._lock:
            self._core.end_of_input()
        self._flush()
        start_s = time.monotonic()
        self._wait_lines.restart(start_s)
        while True:
            self._receive_events()
            self._log_wait(start_s, "the run ends: this worker's input is all sent")

    def fail_input(self, failure: Failure) -> None:
        """Report to the system that the input failed, and give it a moment to read that."""
        with contextlib.suppress(SessionOverError):
            with self._lock:
                self._core.fail(failure)
            self._flush()
            self._receive_rest(PeerGoneError("the input failed"))

    def stop(self) -> None:
        """End the session from any thread."""
        self._finish(StoppedHereError())

    def close(self) -> None:
        """End the session and its thread, and close the socket; a second call does nothing."""
        self._finish(StoppedHereError())
        if self._watcher.is_alive():
            self._watcher.join()
        with self._lock:  # a `stop` in another thread may be shutting it down
            self._connection.close()
        if self._memory is not None:
            self._memory.close()

    def _limit_time(self, send_s: float, receive_s: float) -> None:
        try:
            self._connection.limit_send(send_s)
            self._connection.limit_receive(receive_s)
        except PeerGoneError as error:
            self._finish(error)
            raise SessionOverError from None

    # -- both threads ------------------------------------------------------------------------------------

    def _finish(self, end: SessionEnd) -> None:
        with self._lock:
            self._end(end)

    def _end(self, end: SessionEnd) -> None:
        """End the session; the caller holds `_lock`."""
        if self.end is None:
            self.end = end
        self._connection.shut_down()

    def _receive_events(self, limit_s: float | None = None) -> None:
        """Receive available bytes and apply their events; returns when the socket's time limit passes.

        Raises:
            SessionOverError: the session has ended, now or before.
        """
        with self._receiving:
            if self.end is None:
                try:
                    if limit_s is not None:
                        self._connection.limit_receive(limit_s)
                    self._receive()
                except PeerSilentError:
                    return
                except (PeerGoneError, FrameError) as error:
                    self._finish(error)
        if self.end is not None:
            raise SessionOverError

    def _receive(self) -> None:
        count = self._connection.receive_some(self._buffer)
        # The other thread must not find the state machine closed while `end` is missing: without credit, its
        # next batch would be a bug of the caller.
        with self._lock:
            try:
                events = self._core.receive_data(self._buffer[:count])
            except FrameError as error:
                self._end(error)
                return
            for event in events:
                match event:
                    case Welcomed(welcome):
                        self._welcome = welcome
                    case RunEnded():
                        self._end(event)
                    case ErrorReceived(failure):
                        self._end(failure)

    def _receive_rest(self, error: PeerGoneError) -> None:
        """Receive until the stream ends, as it may contain the reason; otherwise end with `error`."""
        deadline_s = time.monotonic() + _REST_TIMEOUT_S
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            self._receive_events(remaining_s)
        self._finish(error)

    def _flush(self) -> None:
        with self._sending:
            self._send_queued()

    def _send_queued(self) -> None:
        with self._lock:
            data = self._core.data_to_send()
        if data:
            self._send([data])

    def _send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send; the caller holds `_sending`.

        Raises:
            SessionOverError: the session has ended.
        """
        try:
            self._connection.send(buffers)
        except PeerSilentError as error:
            self._finish(error)
            raise SessionOverError from None
        except PeerGoneError as error:
            self._receive_rest(error)
            raise SessionOverError from None
        self._last_sent_s = time.monotonic()

    def _log_wait(self, start_s: float, until: str) -> None:
        """Log that the worker is waiting, if a line is due."""
        now_s = time.monotonic()
        text = f"waiting for the CS system until {until}, for {now_s - start_s:.0f} s"
        # The receive may return a moment early.
        if self._wait_lines.is_due(text, now_s + 0.1):
            _log.info("%s", text)

    # -- the second thread -------------------------------------------------------------------------------

    def _check_silence(self, silence: SilenceTimer) -> None:
        """Log the silence of the system, which answers pings; end the session when it counts as lost."""
        # By the kernel's clock, since nobody receives while the input function runs.
        now_s = time.monotonic()
        arrived_at_s = now_s - self._connection.silence_s()
        if arrived_at_s > self._arrived_at_s + _CLOCK_TICK_S:
            self._arrived_at_s = arrived_at_s
            silent_s = silence.heard(now_s)
            if silent_s is not None:
                _log.info("the CS system answers this worker again after %.0f s", silent_s)
        elif silence.check(now_s) and not silence.is_over:
            _log.warning(
                "the CS system has not answered this worker for %.0f s; its connection counts as lost after "
                "%g s",
                *(silence.silence_s, silence.timeout_s),
            )
        if silence.is_over:
            self._finish(PeerSilentError(f"the CS system has not answered for {silence.silence_s:.0f} s"))

    def _watch(self) -> None:
        poller = select.poll()
        # Credit does not wake this thread, the end of the stream does.
        poller.register(self._connection, select.POLLRDHUP)
        interval_s = min(_PING_EVERY_S, self._liveness_s / _PINGS_PER_LIVENESS)
        silence = SilenceTimer(self._liveness_s, time.monotonic())
        with contextlib.suppress(SessionOverError):
            while self.end is None:
                if poller.poll(1000 * silence.check_every_s):
                    self._receive_rest(PeerGoneError("the connection was closed"))
                    continue
                self._check_silence(silence)
                quiet_s = time.monotonic() - self._last_sent_s
                # Bytes that are being sent right now serve as a ping.
                if quiet_s >= interval_s and self._sending.acquire(blocking=False):
                    try:
                        with self._lock:
                            self._core.ping()
                        self._send_queued()
                    finally:
                        self._sending.release()

"""The worker's side of the data plane.

    sender = Sender((host, port), WorkerIdentity(job, token, worker=0, num_workers=2, input_digest=d), layout)
    summary = sender.run(lambda skip: islice(my_input(), skip, None))

A batch is a tuple of numpy arrays in layout order. The input is rebuilt for every connection, with the number
of batches to skip.
"""

import contextlib
import logging
import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from cs_stream.batches import Array, BatchLayout, byte_view, conform
from cs_stream.errors import ConnectError, ProtocolError, RefusedError, ReplacedError, UnprovedError
from cs_stream.messages import ErrorCode, Failure, Hello
from cs_stream.protocol import RunEnded
from cs_stream.session import Session, SessionEnd, SessionOverError, StoppedHereError
from cs_toolkit.log_lines import WaitLines
from cs_toolkit.network.connection import name_of
from cs_toolkit.network.frames import ForeignBytesError, FrameError, VersionError
from cs_toolkit.security.proofs import new_nonce
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import TlsError, connect
from cs_toolkit.spans import SPANS

__all__ = ["SendSummary", "Sender", "WorkerIdentity"]

_log = logging.getLogger(__name__)

# Reason of a stream that was stopped by its own process.
STOPPED_HERE = "stopped by this process"
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# A shorter last attempt would fail on a busy machine, and hide the reason of those before it.
_SHORTEST_ATTEMPT_S = 0.5
_TRACK = "batches"
_ACTIVITIES = ("input function", "digest", "wait for credit", "send")
# How many connections in sequence may end with damaged bytes before a batch has arrived.
_MAX_DAMAGED = 5
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class WorkerIdentity:
    """The identity of a worker.

    Attributes:
        job_id: The launcher's job.
        token: The job's secret; not part of `repr`.
        worker: Index, 0 to num_workers - 1.
        num_workers: Number of workers of the run.
        input_digest: Must equal the digest with which the chief opened the input.
    """

    job_id: str
    token: str = field(repr=False)
    worker: int
    num_workers: int
    input_digest: str


@dataclass(frozen=True, slots=True)
class SendSummary:
    """The work of a worker in a run.

    Attributes:
        batches: Number of batches sent, including those of broken connections.
        bytes: Payload bytes of those.
        seconds: From the call of `run` to the end.
        reconnects: Number of connections after the first.
        end: `bye` after a normal end of the run, `stopped` if it was stopped.
        stopped_reason: Why it was stopped.
        input_s: Time in the input function: the worker limits the run.
        credit_wait_s: Time without credit, with a batch ready: the run limits the worker.
    """

    batches: int
    bytes: int
    seconds: float
    reconnects: int
    end: Literal["bye", "stopped"]
    stopped_reason: str | None = None
    input_s: float = 0.0
    credit_wait_s: float = 0.0


@dataclass(slots=True)
class _Tally:
    started_s: float
    batches: int = 0
    size_bytes: int = 0
    reconnects: int = 0
    input_s: float = 0.0
    credit_wait_s: float = 0.0

    def summary(self, end: Literal["bye", "stopped"], reason: str | None = None) -> SendSummary:
        return SendSummary(
            batches=self.batches,
            bytes=self.size_bytes,
            seconds=time.monotonic() - self.started_s,
            reconnects=self.reconnects,
            end=end,
            stopped_reason=reason,
            input_s=self.input_s,
            credit_wait_s=self.credit_wait_s,
        )


class Sender:
    """Streams a worker's input into a run.

    Args:
        address: Host and port of the data plane.
        identity: Identity of this worker.
        layout: Layout of the batches, as the program was compiled.
        connect_timeout_s: How long to try until the system accepts the worker; includes the time before the
            chief has opened the run.
        reconnect_timeout_s: The same after a broken connection.
        handshake_timeout_s: How long an attempt may take.
        checksum: Offer digests that cover the content of the batches; the system decides.
        credentials: For TLS; None: without TLS.
    """

    def __init__(
        self,
        address: tuple[str, int],
        identity: WorkerIdentity,
        layout: BatchLayout,
        *,
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 60.0,
        handshake_timeout_s: float = 10.0,
        checksum: bool = True,
        credentials: Credentials | None = None,
    ) -> None:
        self._address = address
        self._identity = identity
        self._layout = layout
        self._connect_timeout_s = connect_timeout_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._checksum = checksum
        self._credentials = credentials
        self._instance = self._run_id = ""
        self._damaged = 0
        self._last_seq = 0
        # A system of this version has answered at the address.
        self._is_known = False
        # The last connection began where the one before had begun.
        self._is_stuck = False
        self._pause_s = _FIRST_PAUSE_S
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._stopped = threading.Event()

    def run(self, make_batches: Callable[[int], Iterable[Sequence[Array] | None]]) -> SendSummary:
        """Stream until the run ends; blocks.

        Args:
            make_batches: Called with n for each connection; returns the worker's own input from its n-th
                batch on, rebuilt. Its end is the end of the worker's input; None instead of a batch states
                that its shard has ended before.

        Returns:
            The work done, and how the run ended. A run that is stopped is not the worker's error.

        Raises:
            ConnectError: the system did not accept the worker in time.
            RefusedError: the worker does not belong to the run; the text lists the differences.
            ReplacedError: another process has taken the worker's place.
            BatchShapeError: a batch does not have the layout.
            ProtocolError: the port speaks another protocol, or one of the two sides has a bug.
            Exception: any error of the input, unchanged, after it has been reported to the system.
        """
        tally = _Tally(time.monotonic())
        self._instance, self._run_id, self._pause_s = uuid.uuid4().hex, "", _FIRST_PAUSE_S
        self._damaged = self._last_seq = 0
        self._is_known = False
        timeout_s = self._connect_timeout_s
        while True:
            session = self._connect(timeout_s)
            if session is None:
                return tally.summary("stopped", STOPPED_HERE)
            try:
                with contextlib.suppress(SessionOverError):
                    self._serve(session, make_batches, tally)
            finally:
                session.close()
            summary = self._settle(session.end, tally)
            if summary is not None:
                return summary
            self._log_retry(session.end)
            timeout_s = self._reconnect_timeout_s
            tally.reconnects += 1
            if self._is_stuck:
                self._pause()

    def stop(self) -> None:
        """Make `run`, in another thread, end soon; it returns when the input function next yields."""
        self._stopped.set()
        with self._lock:
            if self._session is not None:
                self._session.stop()

    # -- connecting --------------------------------------------------------------------------------------

    def _connect(self, timeout_s: float) -> Session | None:
        """Return a session for `_serve` to examine; None when stopped by this process."""
        start_s = time.monotonic()
        lines = WaitLines(start_s)
        deadline_s = start_s + timeout_s
        while not self._stopped.is_set():
            session, problem = self._try_connect(deadline_s - time.monotonic())
            if session is not None:
                return session
            now_s = time.monotonic()
            line = f"waiting for data port {name_of(self._address)} ({problem}), for {now_s - start_s:.0f} s"
            if lines.is_due(line, now_s):
                _log.info("%s", line)
            if time.monotonic() + self._pause_s >= deadline_s:
                raise ConnectError(
                    f"data port {name_of(self._address)}: no run took worker {self._identity.worker} of job "
                    f"{self._identity.job_id!r} within {timeout_s:g} s (last attempt: {problem}); check "
                    "that the chief runs and that this machine reaches the CS system"
                )
            self._pause()
        return None

    def _pause(self) -> None:
        """Wait before the next connection, longer each time until a batch has arrived."""
        self._stopped.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _try_connect(self, limit_s: float) -> tuple[Session | None, str]:
        limit_s = min(max(limit_s, _SHORTEST_ATTEMPT_S), self._handshake_timeout_s)
        try:
            connection = connect(self._address, limit_s, self._credentials)
        except OSError as error:
            return None, str(error)
        except TlsError as error:
            raise self._no_tls(error) from None
        session = Session(connection, self._hello(), self._identity.token, self._layout.nbytes)
        with self._lock:
            self._session = session
        if self._stopped.is_set():
            session.stop()
        try:
            welcome = session.shake_hands(limit_s)
            self._is_stuck = (welcome.run_id, welcome.next_seq) == (self._run_id, self._last_seq)
            if not self._is_stuck:
                self._damaged, self._pause_s = 0, _FIRST_PAUSE_S
            self._run_id, self._last_seq = welcome.run_id, welcome.next_seq
        except SessionOverError:
            session.close()
            if self._shall_retry(session.end):
                if _is_damage(session.end):
                    self._log_retry(session.end)
                return None, _text(session.end)
        return session, ""

    def _no_tls(self, error: TlsError) -> ConnectError:
        return ConnectError(f"data port {name_of(self._address)}: {error}")

    def _log_retry(self, end: SessionEnd | None) -> None:
        _log.warning("worker %d: %s; connecting again", self._identity.worker, _text(end))

    def _shall_retry(self, end: SessionEnd | None) -> bool:
        """Return True if the worker connects again after this end of a session; count those with damage."""
        if not _is_damage(end):
            return isinstance(end, ConnectionError) or (isinstance(end, Failure) and end.retryable)
        self._is_known = self._is_known or bool(self._run_id) or isinstance(end, Failure)
        # Once, while no system of this version has ever answered at the address: a bit may have changed.
        is_foreign = isinstance(end, ForeignBytesError | VersionError) and not self._is_known
        self._damaged += 1
        return self._damaged <= (1 if is_foreign else _MAX_DAMAGED)

    def _hello(self) -> Hello:
        identity = self._identity
        return Hello(
            job_id=identity.job_id,
            nonce=new_nonce(),
            worker=identity.worker,
            num_workers=identity.num_workers,
            layout=self._layout.to_json(),
            input_digest=identity.input_digest,
            pid=os.getpid(),
            host=socket.gethostname(),
            instance=self._instance,
            run_id=self._run_id,
            # TLS already protects every byte.
            checksum=self._checksum and self._credentials is None,
        )

    def _settle(self, end: SessionEnd | None, tally: _Tally) -> SendSummary | None:
        """Return the summary if the run is over, None to connect again; raise a final error."""
        if isinstance(end, RunEnded):
            return tally.summary("bye")
        if self._stopped.is_set() or isinstance(end, StoppedHereError):
            return tally.summary("stopped", STOPPED_HERE)
        if self._shall_retry(end):
            return None
        if isinstance(end, TlsError):
            raise self._no_tls(end)
        if isinstance(end, ForeignBytesError):
            raise ProtocolError(
                f"{name_of(self._address)} is not the data port of a CS system ({end}); check the address"
            )
        if isinstance(end, UnprovedError):
            raise RefusedError(
                f"the CS system refuses worker {self._identity.worker} of job {self._identity.job_id!r}: "
                f"{end}; start chief and workers with one csrun_wse"
            )
        if isinstance(end, Failure):
            if _is_over(end):
                return tally.summary("stopped", end.text.removeprefix("run stopped: "))
            raise _FINAL_ERRORS.get(end.code, ProtocolError)(
                f"the CS system refuses worker {self._identity.worker} of job {self._identity.job_id!r}: "
                f"{end.text}"
            )
        raise ProtocolError(f"the CS system broke the protocol: {_text(end)}")

    # -- streaming ---------------------------------------------------------------------------------------

    def _serve(
        self, session: Session, make_batches: Callable[[int], Iterable[Sequence[Array] | None]], tally: _Tally
    ) -> None:
        """Send the batches that the system does not have yet, then wait for the end of the run."""
        if session.end is not None:
            return
        if not session.is_input_complete:
            # Rebuilt: an iterator that has run ahead of a broken connection cannot be rewound.
            with SPANS.span(_TRACK, "build the input", ("batch", session.next_seq)):
                iterator = self._call_input(session, lambda: iter(make_batches(session.next_seq)))
            try:
                self._send_all(session, iterator, tally)
            finally:
                # Runs the cleanup of a generator now, instead of when it is collected.
                if isinstance(iterator, Generator):
                    iterator.close()
        with SPANS.span(_TRACK, "wait for the end of the run"):
            session.finish_input()

    def _send_all(self, session: Session, batches: Iterator[Sequence[Array] | None], tally: _Tally) -> None:
        start_s = time.monotonic()
        while True:
            arrays = self._call_input(session, lambda: self._next_arrays(batches, session.next_seq))
            ready_s = time.monotonic()
            tally.input_s += ready_s - start_s
            if arrays is None:
                return
            if not arrays:
                tally.credit_wait_s += session.wait_credit()
                session.skip_batch()
                start_s = time.monotonic()
                continue
            batch = ("batch", session.next_seq)
            fields = [byte_view(array) for array in arrays]
            header = session.batch_header(fields)
            waited_s = session.wait_credit()
            send_s = time.monotonic()
            tally.credit_wait_s += waited_s
            session.send_batch(fields, header)
            end_s = time.monotonic()
            times_s = (start_s, ready_s, send_s - waited_s, send_s, end_s)
            SPANS.add_sequence(_TRACK, _ACTIVITIES, times_s, batch)
            start_s = end_s
            tally.batches += 1
            tally.size_bytes += self._layout.nbytes

    def _next_arrays(self, batches: Iterator[Sequence[Array] | None], seq: int) -> list[Array] | None:
        """Return the fields of the next batch; none of them if it does not exist, and None at the end."""
        try:
            batch = next(batches)
        except StopIteration:
            return None
        return (
            []
            if batch is None
            else conform(self._layout, batch, f"batch {seq} of worker {self._identity.worker}")
        )

    @staticmethod
    def _call_input(session: Session, call: Callable[[], _Result]) -> _Result:
        """Call the user's code; report its errors to the system before they propagate."""
        try:
            return call()
        except BaseException as error:
            if isinstance(error, Exception) and _is_over(session.end):
                # The run has ended, so an error of the input is no longer a failure.
                _log.warning("input raised after the end of the run", exc_info=True)
                raise SessionOverError from error
            text = f"input failed: {type(error).__name__}: {error}"
            session.fail_input(Failure(ErrorCode.INPUT_FAILED, text, traceback.format_exc()))
            raise


_FINAL_ERRORS: dict[str, type[RefusedError | ReplacedError]] = {
    ErrorCode.REFUSED: RefusedError,
    ErrorCode.REPLACED: ReplacedError,
}


def _is_damage(end: SessionEnd | None) -> bool:
    return isinstance(end, FrameError) or (isinstance(end, Failure) and end.is_damage)


def _is_over(end: SessionEnd | None) -> bool:
    return isinstance(end, RunEnded) or (isinstance(end, Failure) and end.code == ErrorCode.STOPPED)


def _text(end: SessionEnd | None) -> str:
    return end.text if isinstance(end, Failure) else str(end)

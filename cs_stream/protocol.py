"""The state machines of the two ends of a connection, without any I/O.

The caller passes received bytes to `receive_data`, which returns events, and sends the bytes of
`data_to_send`. The payload of a BATCH never passes through here: `wants()` informs the caller on the system's
side that the next bytes of the stream are the payload of batch `seq`; it receives them into their slot, and
reports whether they are intact.

    system's end (ServerConnection)            worker's end (WorkerConnection)
    AWAIT_HELLO --HELLO--> IDENTIFYING         AWAIT_CHALLENGE --CHALLENGE--> AWAIT_WELCOME
    IDENTIFYING --challenge()--> AWAIT_PROOF   AWAIT_CHALLENGE --ERR--> CLOSED
    AWAIT_PROOF --PROOF--> DECIDING            AWAIT_WELCOME --WELCOME--> STREAMING (or ENDED)
    DECIDING --accept()--> STREAMING           STREAMING --CREDIT, PING--> STREAMING
    STREAMING --BATCH--> PAYLOAD --> STREAMING STREAMING --end_of_input()--> ENDED
    STREAMING --EOS--> ENDED                   any later --BYE, ERR--> CLOSED
    any --bye(), fail(), ERR--> CLOSED

From CHALLENGE on, each frame has a tag (`frames.FrameTags`). Any transition that is not in the tables below,
and any frame with a wrong tag, raises ProtocolError, queues an ERR frame for the peer, and closes the
connection.

Flow control uses absolute credit: CREDIT contains the seq up to which (exclusive) batches may be sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from cs_stream.errors import ChecksumError, ProtocolError, UnprovedError
from cs_stream.frames import (
    FLAG_CHECKSUM,
    FLAG_PONG,
    FLAG_SHARED,
    HEADER_BYTES,
    BatchHead,
    Frame,
    FrameBuffer,
    FrameTags,
    FrameType,
    Header,
    match_batch,
)
from cs_stream.messages import Challenge, ErrorCode, Failure, Hello, Welcome
from cs_toolkit.network.connection import Buffer
from cs_toolkit.network.frames import ForeignBytesError, FrameError
from cs_toolkit.security.proofs import new_nonce


class ServerState(Enum):
    """State of the system's end of a connection."""

    AWAIT_HELLO = "await-hello"
    """Nothing has been received yet."""
    IDENTIFYING = "identifying"
    """HELLO has arrived; `challenge` or `fail` comes next, and nothing may be received before."""
    AWAIT_PROOF = "await-proof"
    """CHALLENGE is queued or sent."""
    DECIDING = "deciding"
    """The worker knows the secret; `accept` or `fail` comes next, and nothing may be received before."""
    STREAMING = "streaming"
    """Between two frames of a welcomed worker."""
    PAYLOAD = "payload"
    """After a BATCH header; the payload comes next."""
    ENDED = "ended"
    """The worker has sent its whole input and is waiting for BYE."""
    CLOSED = "closed"
    """Closed; queued bytes may still be sent."""


class WorkerState(Enum):
    """State of the worker's end of a connection."""

    AWAIT_CHALLENGE = "await-challenge"
    """HELLO is queued or sent."""
    AWAIT_WELCOME = "await-welcome"
    """The system knows the secret, and PROOF is queued or sent."""
    STREAMING = "streaming"
    """Batches may be sent within the credit."""
    ENDED = "ended"
    """The whole input is sent; waiting for BYE."""
    CLOSED = "closed"
    """Closed."""


_SERVER_MOVES = {
    (ServerState.AWAIT_HELLO, FrameType.HELLO): ServerState.IDENTIFYING,
    (ServerState.AWAIT_PROOF, FrameType.PROOF): ServerState.DECIDING,
    (ServerState.STREAMING, FrameType.BATCH): ServerState.PAYLOAD,
    (ServerState.STREAMING, FrameType.SKIP): ServerState.STREAMING,
    (ServerState.STREAMING, FrameType.EOS): ServerState.ENDED,
    (ServerState.STREAMING, FrameType.PING): ServerState.STREAMING,
    (ServerState.STREAMING, FrameType.ERR): ServerState.CLOSED,
    (ServerState.ENDED, FrameType.PING): ServerState.ENDED,
    (ServerState.ENDED, FrameType.ERR): ServerState.CLOSED,
}

_WORKER_MOVES = {
    (WorkerState.AWAIT_CHALLENGE, FrameType.CHALLENGE): WorkerState.AWAIT_WELCOME,
    (WorkerState.AWAIT_CHALLENGE, FrameType.ERR): WorkerState.CLOSED,
    (WorkerState.AWAIT_WELCOME, FrameType.WELCOME): WorkerState.STREAMING,
    (WorkerState.AWAIT_WELCOME, FrameType.BYE): WorkerState.CLOSED,
    (WorkerState.AWAIT_WELCOME, FrameType.ERR): WorkerState.CLOSED,
    (WorkerState.STREAMING, FrameType.CREDIT): WorkerState.STREAMING,
    (WorkerState.STREAMING, FrameType.PING): WorkerState.STREAMING,
    (WorkerState.STREAMING, FrameType.BYE): WorkerState.CLOSED,
    (WorkerState.STREAMING, FrameType.ERR): WorkerState.CLOSED,
    (WorkerState.ENDED, FrameType.CREDIT): WorkerState.ENDED,
    (WorkerState.ENDED, FrameType.PING): WorkerState.ENDED,
    (WorkerState.ENDED, FrameType.BYE): WorkerState.CLOSED,
    (WorkerState.ENDED, FrameType.ERR): WorkerState.CLOSED,
}


@dataclass(frozen=True, slots=True)
class ReadControl:
    """Read up to `size_bytes` from the stream and pass them to `receive_data`."""

    size_bytes: int


class ReadPayload(NamedTuple):
    """Receive exactly `size_bytes`, the payload of batch `seq`, into its slot; call `payload_received`.

    Attributes:
        is_shared: The batch is in shared memory; nothing of it comes on the stream.
    """

    seq: int
    size_bytes: int
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class HelloReceived:
    """A peer asks to join as a worker, without proof so far: `challenge` or `fail` it."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class ProofReceived:
    """The worker knows the secret and has sent its HELLO for this connection: `accept` or `fail` it."""


class BatchReceived(NamedTuple):
    """The payload of batch `seq` is complete and intact."""

    seq: int


@dataclass(frozen=True, slots=True)
class BatchSkipped:
    """There is no batch `seq`: its shard has ended, and others of the worker have not."""

    seq: int


@dataclass(frozen=True, slots=True)
class InputEnded:
    """The worker has sent its whole input, `total` batches counted from the start of the run's input."""

    total: int


@dataclass(frozen=True, slots=True)
class ErrorReceived:
    """The peer ends the connection with an ERR frame."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The system accepts this worker."""

    welcome: Welcome


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """Batches with seq below `limit` may be sent."""

    limit: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run has ended normally (BYE)."""


ServerEvent = HelloReceived | ProofReceived | BatchReceived | BatchSkipped | InputEnded | ErrorReceived
WorkerEvent = Welcomed | CreditGranted | RunEnded | ErrorReceived


# In these the system's end reads nothing.
_SILENT_STATES = (ServerState.IDENTIFYING, ServerState.DECIDING, ServerState.CLOSED)
_READ_HEADER = ReadControl(HEADER_BYTES)


class ServerConnection:
    """The system's end of a connection.

    Attributes:
        state: The state.
        next_seq: The batch that must come next.
        limit: Batches with a seq below it may come, as announced to the worker.
    """

    def __init__(self) -> None:
        self.state = ServerState.AWAIT_HELLO
        self.next_seq = 0
        self.limit = 0
        self._worker = 0
        self._generation = 0
        self._checksum = True
        self._hello = b""
        self._worker_nonce = ""
        self._tags: FrameTags | None = None
        self._payload_bytes = 0
        self._shares_memory = False
        # Set by the first batch in shared memory: all later ones must be in it, too.
        self._has_shared = False
        self._grantable = 0
        # The batch whose payload comes next.
        self._pending: BatchHead | None = None
        self._buffer = FrameBuffer()
        self._output = bytearray()

    def wants(self) -> ReadControl | ReadPayload | None:
        """Return what to read next from the stream; None while identifying, deciding and when closed."""
        if self.state in _SILENT_STATES:
            return None
        if self._pending is not None:
            is_shared = bool(self._pending.flags & FLAG_SHARED)
            return ReadPayload(self._pending.seq, 0 if is_shared else self._payload_bytes, is_shared)
        return _READ_HEADER if self._buffer.is_empty else ReadControl(self._buffer.wanted)

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[ServerEvent]:
        """Process the bytes that `ReadControl` requested, or fewer.

        Raises:
            FrameError: they are not allowed here; the connection is closed, and `data_to_send` returns an
                ERR frame unless the peer does not speak the protocol at all.
            ValueError: the next bytes of the stream are not control bytes (a bug of the caller).
        """
        if self._pending is not None or self.state in _SILENT_STATES:
            raise ValueError(f"got control bytes in state {self.state.value}")
        if self._take_next_batch(data):
            return []
        try:
            frame = self._buffer.feed(data)
            return [] if frame is None else self._receive_frame(frame)
        except ForeignBytesError:
            self.state = ServerState.CLOSED
            raise
        except FrameError as error:
            self.fail(Failure(ErrorCode.PROTOCOL, str(error)))
            raise

    def _take_next_batch(self, data: Buffer) -> bool:
        """Take the header of the batch that must come next; return False for all other bytes."""
        if (
            self.state is not ServerState.STREAMING
            or self.next_seq >= self.limit
            or not self._buffer.is_empty
        ):
            return False
        if len(data) != HEADER_BYTES:
            return False
        if self._has_shared:
            nbytes, flags = 0, FLAG_SHARED
        else:
            nbytes, flags = self._payload_bytes, FLAG_CHECKSUM if self._checksum else 0
        self._pending = match_batch(data, self._worker, self._generation, self.next_seq, nbytes, flags)
        if self._pending is None:
            return False
        self.state = ServerState.PAYLOAD
        return True

    def is_intact(self, fields: Sequence[Buffer]) -> bool:
        """Return True if the fields of the batch whose payload has come next are those that were sent.

        It takes time, and needs none of the state that other calls change.
        """
        assert self._tags is not None
        assert self._pending is not None, "no payload is expected"
        return self._tags.is_batch_intact(self._pending, fields)

    def payload_received(self, is_intact: bool) -> list[ServerEvent]:
        """Report that the payload is in its slot.

        Raises:
            ChecksumError: it is not intact; the connection is closed.
            ValueError: no payload is expected (a bug of the caller).
        """
        batch = self._pending
        if batch is None:
            raise ValueError(f"got a payload in state {self.state.value}")
        self._pending = None
        if self.state is ServerState.CLOSED:
            return []
        if not is_intact:
            # Without the digests: the right one for changed bytes would help to forge others.
            text = f"checksum of batch {batch.seq}: its bytes are not those that the worker sent"
            self.fail(Failure(ErrorCode.CHECKSUM, text))
            raise ChecksumError(text)
        self.state = ServerState.STREAMING
        self.next_seq += 1
        self._send_credit_if_low()
        return [BatchReceived(batch.seq)]

    def challenge(self, secret: str, nonce: str | None = None) -> None:
        """Prove to the peer whose HELLO has arrived that this side knows the job's secret, and ask the same.

        Args:
            secret: The secret of the job that it names.
            nonce: Random text of this connection; None makes one.
        """
        if self.state is not ServerState.IDENTIFYING:
            raise ValueError(f"got challenge in state {self.state.value}")
        challenge = Challenge(nonce or new_nonce())
        self._tags = FrameTags(secret, self._worker_nonce, challenge.nonce, self._hello, is_system=True)
        self.state = ServerState.AWAIT_PROOF
        self._send(FrameType.CHALLENGE, payload=challenge.encode())

    def accept(
        self,
        welcome: Welcome,
        worker: int,
        generation: int,
        payload_bytes: int,
    ) -> None:
        """Accept the worker whose PROOF has arrived.

        Args:
            welcome: The answer to its HELLO.
            worker: Its index, for the headers.
            generation: Generation of the connection, for the headers.
            payload_bytes: Size of every batch's payload.
        """
        if self.state is not ServerState.DECIDING:
            raise ValueError(f"got accept in state {self.state.value}")
        self.state = ServerState.ENDED if welcome.ended else ServerState.STREAMING
        self.next_seq, self.limit = welcome.next_seq, welcome.limit
        self._grantable = welcome.limit
        self._worker, self._generation = worker, generation
        self._checksum, self._payload_bytes = welcome.checksum, payload_bytes
        self._shares_memory = bool(welcome.memory)
        self._send(FrameType.WELCOME, seq=welcome.next_seq, payload=welcome.encode())

    def grant(self, limit: int) -> None:
        """Let the worker send every batch below `limit`; no effect if it already may, or has ended."""
        if self.state in (ServerState.STREAMING, ServerState.PAYLOAD) and limit > self._grantable:
            self._grantable = limit
            self._send_credit_if_low()

    # A later CREDIT replaces an earlier one, so the newest is enough: new credit is held back while it is
    # less than the worker has left. So a worker never waits for credit that exists, and gets about two
    # CREDIT for each window of batches.
    def _send_credit_if_low(self) -> None:
        new, left = self._grantable - self.limit, self.limit - self.next_seq
        if new > 0 and new >= left:
            self.limit = self._grantable
            self._send(FrameType.CREDIT, seq=self.limit)

    def bye(self) -> None:
        """Close the connection because the run is over."""
        if self.state is not ServerState.CLOSED:
            self._send(FrameType.BYE)
            self.state = ServerState.CLOSED

    def fail(self, failure: Failure) -> None:
        """Close the connection with an ERR frame; no effect when it is closed."""
        if self.state is not ServerState.CLOSED:
            self._send(FrameType.ERR, payload=failure.encode())
            self.state = ServerState.CLOSED

    @property
    def has_data_to_send(self) -> bool:
        """True if bytes are queued."""
        return bool(self._output)

    def data_to_send(self) -> bytes:
        """Return the bytes queued since the last call."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def _send(self, frame_type: FrameType, *, seq: int = 0, flags: int = 0, payload: bytes = b"") -> None:
        header = Header(frame_type, self._worker, self._generation, seq, len(payload), flags)
        self._output += _encode(self._tags, header, payload)

    def _receive_frame(self, frame: Frame) -> list[ServerEvent]:
        header = frame.header
        move = _SERVER_MOVES.get((self.state, header.type))
        if move is None:
            raise ProtocolError(f"got a {header.type.name} frame in state {self.state.value}")
        origin = header.worker, header.generation
        if self.state is not ServerState.AWAIT_HELLO and origin != (self._worker, self._generation):
            raise ProtocolError(
                f"{header.type.name} origin: got worker {header.worker} generation {header.generation}, "
                f"expected worker {self._worker} generation {self._generation}"
            )
        # The tag of a BATCH is checked with its payload.
        if self._tags is not None and header.type is not FrameType.BATCH:
            self._tags.check(header, frame.payload)
        events: list[ServerEvent] = []
        match header.type:
            case FrameType.HELLO:
                hello = Hello.decode(frame.payload)
                self._hello, self._worker_nonce, self._worker = frame.payload, hello.nonce, header.worker
                events = [HelloReceived(hello)]
            case FrameType.PROOF:
                events = [ProofReceived()]
            case FrameType.BATCH:
                self._check_batch(header)
                self._pending = BatchHead(header.seq, header.flags, header.tagged_bytes(), header.tag)
            case FrameType.SKIP:
                self._check_credit(header)
                self.next_seq += 1
                self._send_credit_if_low()
                events = [BatchSkipped(header.seq)]
            case FrameType.EOS:
                events = [InputEnded(self._in_order(header, "total of EOS"))]
            case FrameType.ERR:
                events = [ErrorReceived(Failure.decode(frame.payload))]
            case _ if header.flags & FLAG_PONG:
                raise ProtocolError("PING: got an answer from the worker, expected only questions")
            case _:
                self._send(FrameType.PING, flags=FLAG_PONG)
        self.state = move
        return events

    def _in_order(self, header: Header, what: str) -> int:
        if header.seq != self.next_seq:
            raise ProtocolError(f"{what}: got {header.seq}, expected {self.next_seq}")
        return header.seq

    def _check_credit(self, header: Header) -> None:
        self._in_order(header, f"seq of {header.type.name}")
        if header.seq >= self.limit:
            raise ProtocolError(f"credit: got batch {header.seq}, expected none from {self.limit} on yet")

    def _check_batch(self, header: Header) -> None:
        self._check_credit(header)
        if header.flags & FLAG_SHARED:
            self._check_shared(header)
            self._has_shared = True
            return
        if self._has_shared:
            raise ProtocolError(f"batch {header.seq}: got it on the stream, expected it in shared memory")
        if header.nbytes != self._payload_bytes:
            raise ProtocolError(
                f"nbytes of batch {header.seq}: got {header.nbytes}, expected {self._payload_bytes}"
            )
        if bool(header.flags & FLAG_CHECKSUM) != self._checksum:
            raise ProtocolError(
                f"checksum flag of batch {header.seq}: got {header.flags}, expected it as agreed in WELCOME"
            )

    def _check_shared(self, header: Header) -> None:
        if not self._shares_memory:
            raise ProtocolError(f"batch {header.seq}: got it in shared memory, which WELCOME has not named")
        if header.nbytes or header.flags & FLAG_CHECKSUM:
            raise ProtocolError(
                f"batch {header.seq} in shared memory: got {header.nbytes} bytes and flags {header.flags}, "
                f"expected 0 bytes and {FLAG_SHARED}"
            )


class WorkerConnection:
    """The worker's end of a connection; HELLO is queued from the start.

    Args:
        hello: Its HELLO, with a nonce that no other connection has.
        secret: The job's secret.

    Attributes:
        state: The state.
        next_seq: The batch to send next.
        limit: Batches with a seq below it may be sent.
        checksum: Whether the tags of batches cover their fields; known once WELCOME has arrived.
    """

    def __init__(self, hello: Hello, secret: str) -> None:
        self.state = WorkerState.AWAIT_CHALLENGE
        self.next_seq = 0
        self.limit = 0
        self.checksum = hello.checksum
        self._worker = hello.worker
        self._generation = 0
        self._secret = secret
        self._nonce, self._hello = hello.nonce, hello.encode()
        self._tags: FrameTags | None = None
        self._buffer = FrameBuffer()
        self._output = bytearray()
        self._send(FrameType.HELLO, payload=self._hello)

    @property
    def credit(self) -> int:
        """Number of batches that may be sent now."""
        return self.limit - self.next_seq if self.state is WorkerState.STREAMING else 0

    def receive_data(self, data: bytes | memoryview) -> list[WorkerEvent]:
        """Process bytes of the stream, in pieces of any size; bytes after BYE or ERR are ignored.

        Raises:
            FrameError: they are not allowed here; the connection is closed.
        """
        events: list[WorkerEvent] = []
        view = memoryview(data)
        try:
            while view and self.state is not WorkerState.CLOSED:
                piece, view = view[: self._buffer.wanted], view[self._buffer.wanted :]
                frame = self._buffer.feed(piece)
                if frame is not None:
                    events += self._receive_frame(frame)
        except FrameError as error:
            if not isinstance(error, ForeignBytesError):
                self.fail(Failure(ErrorCode.PROTOCOL, str(error)))
            self.state = WorkerState.CLOSED
            raise
        return events

    def batch_header(self, nbytes: int, fields: Sequence[Buffer]) -> bytes:
        """Return the header of the next batch, to be sent immediately before its payload.

        It takes time, and needs no credit yet.

        Args:
            nbytes: Payload size, padding included.
            fields: The fields' bytes.
        """
        assert self._tags is not None, "a batch before WELCOME"
        flags = FLAG_CHECKSUM if self.checksum else 0
        header = Header(FrameType.BATCH, self._worker, self._generation, self.next_seq, nbytes, flags)
        return self._tags.encode_batch(header, fields)

    def shared_batch_header(self) -> bytes:
        """Return the header of the next batch, which is in shared memory."""
        # Without a digest of the fields: memory is no network.
        assert self._tags is not None, "a batch before WELCOME"
        header = Header(FrameType.BATCH, self._worker, self._generation, self.next_seq, flags=FLAG_SHARED)
        return self._tags.encode_batch(header, ())

    def count_batch(self) -> None:
        """Count the next batch as sent.

        Raises:
            ValueError: there is no credit (a bug of the caller).
        """
        if self.credit < 1:
            raise ValueError(f"got batch {self.next_seq}, expected credit; limit {self.limit}")
        self.next_seq += 1

    def skip_batch(self) -> None:
        """State that the next batch does not exist.

        Raises:
            ValueError: there is no credit (a bug of the caller).
        """
        seq = self.next_seq
        self.count_batch()
        self._send(FrameType.SKIP, seq=seq)

    def end_of_input(self) -> None:
        """State that `next_seq` batches are the whole input; no effect unless streaming."""
        if self.state is WorkerState.STREAMING:
            self._send(FrameType.EOS, seq=self.next_seq)
            self.state = WorkerState.ENDED

    def ping(self) -> None:
        """Ask for a sign of life; no effect before WELCOME and when closed."""
        if self.state in (WorkerState.STREAMING, WorkerState.ENDED):
            self._send(FrameType.PING)

    def fail(self, failure: Failure) -> None:
        """Close the connection with an ERR frame; no effect when it is closed."""
        if self.state is not WorkerState.CLOSED:
            self._send(FrameType.ERR, payload=failure.encode())
            self.state = WorkerState.CLOSED

    def data_to_send(self) -> bytes:
        """Return the bytes queued since the last call; BATCH headers are not among them."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def _send(self, frame_type: FrameType, *, seq: int = 0, payload: bytes = b"") -> None:
        header = Header(frame_type, self._worker, self._generation, seq, len(payload))
        self._output += _encode(self._tags, header, payload)

    def _receive_frame(self, frame: Frame) -> list[WorkerEvent]:
        header = frame.header
        move = _WORKER_MOVES.get((self.state, header.type))
        if move is None:
            raise ProtocolError(f"got a {header.type.name} frame in state {self.state.value}")
        if header.type is FrameType.CHALLENGE:
            self._answer(frame)
        elif self._tags is not None:
            self._tags.check(header, frame.payload)
        is_assigned = self.state in (WorkerState.STREAMING, WorkerState.ENDED)
        if is_assigned and header.generation != self._generation:
            raise ProtocolError(
                f"generation of {header.type.name}: got {header.generation}, expected {self._generation}"
            )
        events: list[WorkerEvent] = []
        match header.type:
            case FrameType.CHALLENGE:
                self._send(FrameType.PROOF)
            case FrameType.WELCOME:
                welcome = Welcome.decode(frame.payload, header.seq)
                if header.worker != self._worker:
                    raise ProtocolError(f"worker of WELCOME: got {header.worker}, expected {self._worker}")
                if welcome.checksum and not self.checksum:
                    raise ProtocolError("checksum of WELCOME: got true, expected false as offered in HELLO")
                if not welcome.ended and welcome.limit < welcome.next_seq:
                    raise ProtocolError(
                        f"limit of WELCOME: got {welcome.limit}, expected at least {welcome.next_seq}"
                    )
                self._generation = header.generation
                self.next_seq, self.limit, self.checksum = welcome.next_seq, welcome.limit, welcome.checksum
                move = WorkerState.ENDED if welcome.ended else WorkerState.STREAMING
                events = [Welcomed(welcome)]
            case FrameType.CREDIT:
                if header.seq < self.limit:
                    raise ProtocolError(f"limit of CREDIT: got {header.seq}, expected at least {self.limit}")
                self.limit = header.seq
                events = [CreditGranted(header.seq)]
            case FrameType.BYE:
                events = [RunEnded()]
            case FrameType.ERR:
                failure = Failure.decode(frame.payload)
                if self._tags is None and not failure.needs_no_proof:
                    raise UnprovedError(
                        f"got an ERR frame ({failure.code}: {failure.text}) from a peer that has not proved "
                        "that it knows the job's token"
                    )
                events = [ErrorReceived(failure)]
            case _ if not header.flags & FLAG_PONG:
                raise ProtocolError("PING: got a question from the system, expected only answers")
        self.state = move
        return events

    def _answer(self, challenge: Frame) -> None:
        nonce = Challenge.decode(challenge.payload).nonce
        tags = FrameTags(self._secret, self._nonce, nonce, self._hello, is_system=False)
        try:
            tags.check(challenge.header, challenge.payload)
        except ProtocolError:
            raise UnprovedError("token: the peer has not proved that it knows this job's own") from None
        self._tags = tags


def _encode(tags: FrameTags | None, header: Header, payload: bytes) -> bytes:
    return header.encode() + payload if tags is None else tags.encode(header, payload)

"""The JSON payloads of HELLO, CHALLENGE, WELCOME and ERR, parsed strictly and with size limits."""

from dataclasses import dataclass
from enum import StrEnum

from cs_stream.frames import MAX_TEXT_BYTES, VERSION
from cs_toolkit.network.frames import Fields, FrameError, decode_object, encode_json

# An ERR payload is JSON of at most 64 KiB; escaping can turn a character into 6 bytes (\uXXXX).
_MAX_TEXT_CHARS = 2_000
_MAX_DETAIL_CHARS = 8_000
_MAX_NAME_CHARS = 1_000


class ErrorCode(StrEnum):
    """Why an ERR frame ends a connection."""

    REFUSED = "refused"
    """This worker does not belong to the run."""
    NO_RUN = "no-run"
    """No run of the job is open yet."""
    REPLACED = "replaced"
    """Another process connected as the same worker."""
    TIMEOUT = "timeout"
    """Nothing was received for the liveness time."""
    PROTOCOL = "protocol"
    """A frame that is not allowed."""
    CHECKSUM = "checksum"
    """A payload arrived corrupted."""
    INPUT_FAILED = "input-failed"
    """The worker's input function raised."""
    STOPPED = "stopped"
    """The run was stopped, for the reason in the text."""


# After these a worker connects again.
_RETRYABLE = frozenset({ErrorCode.NO_RUN, ErrorCode.TIMEOUT})
# The network may be the cause: connecting again helps, unless it happens every time.
_DAMAGE = frozenset({ErrorCode.CHECKSUM, ErrorCode.PROTOCOL})
# A worker accepts these from a peer that has not proved that it knows the job's secret.
_UNPROVED = frozenset({ErrorCode.NO_RUN, ErrorCode.PROTOCOL})


@dataclass(frozen=True, slots=True)
class Hello:
    """The statement of a worker when it connects.

    Attributes:
        job_id: The launcher's job.
        nonce: Random text of this connection.
        worker: Index, 0 to num_workers - 1.
        num_workers: Number of workers of the run.
        layout: JSON form of the `BatchLayout`.
        input_digest: Digest of everything that determines the input's content (program, parameters).
        pid: Process of the worker.
        host: Its machine.
        instance: Random text of a `Sender`, which distinguishes a reconnect from a replacement.
        run_id: The run that this instance was welcomed to before, or empty.
        checksum: Whether the worker can put digests into BATCH headers.
        shares_memory: Whether the worker opens memory of the system, if both are on one machine.
        protocol_min: Lowest protocol version of the worker.
        protocol_max: Highest one.
    """

    job_id: str
    nonce: str
    worker: int
    num_workers: int
    layout: object
    input_digest: str
    pid: int
    host: str
    instance: str
    run_id: str = ""
    checksum: bool = True
    shares_memory: bool = True
    protocol_min: int = VERSION
    protocol_max: int = VERSION

    def encode(self) -> bytes:
        """Encode the JSON payload."""
        return encode_json(
            {
                "protocol": [self.protocol_min, self.protocol_max],
                "job_id": self.job_id,
                "nonce": self.nonce,
                "worker": self.worker,
                "num_workers": self.num_workers,
                "layout": self.layout,
                "input_digest": self.input_digest,
                "pid": self.pid,
                "host": self.host,
                "instance": self.instance,
                "run_id": self.run_id,
                "checksum": self.checksum,
                "shares_memory": self.shares_memory,
            }
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Hello":
        """Decode the JSON payload; keys that a later version adds are ignored.

        Raises:
            FrameError: not JSON of this form.
        """
        fields = _fields("HELLO", payload)
        low, high = fields.pair("protocol")
        return cls(
            job_id=fields.text("job_id"),
            nonce=fields.text("nonce"),
            worker=fields.integer("worker"),
            num_workers=fields.integer("num_workers"),
            layout=fields.anything("layout"),
            input_digest=fields.text("input_digest"),
            pid=fields.integer("pid"),
            host=fields.text("host"),
            instance=fields.text("instance"),
            run_id=fields.text("run_id"),
            checksum=fields.boolean("checksum"),
            shares_memory=fields.boolean("shares_memory"),
            protocol_min=low,
            protocol_max=high,
        )


@dataclass(frozen=True, slots=True)
class Challenge:
    """The system's answer to HELLO.

    Attributes:
        nonce: Random text of this connection.
    """

    nonce: str

    def encode(self) -> bytes:
        """Encode the JSON payload."""
        return encode_json({"nonce": self.nonce})

    @classmethod
    def decode(cls, payload: bytes) -> "Challenge":
        """Decode the JSON payload.

        Raises:
            FrameError: not JSON of this form.
        """
        return cls(_fields("CHALLENGE", payload).text("nonce"))


@dataclass(frozen=True, slots=True)
class Welcome:
    """The system's answer to a worker that it accepts.

    Attributes:
        next_seq: The first batch to send (in the header's seq).
        limit: Batches with a seq below it may be sent immediately.
        ended: The system has this worker's whole input already; the worker only waits for the end of the run.
        checksum: Whether BATCH headers must have a digest.
        liveness_s: After this time without a frame either side considers the connection lost.
        run_id: Name of the run, to be stated when the same instance reconnects.
        memory: Path of the connection's `SharedMemory`; empty if there is none.
        memory_token: By which the worker recognizes it.
    """

    next_seq: int
    limit: int
    ended: bool
    checksum: bool
    liveness_s: float
    run_id: str
    memory: str = ""
    memory_token: str = ""

    def encode(self) -> bytes:
        """Encode the JSON payload."""
        return encode_json(
            {
                "limit": self.limit,
                "ended": self.ended,
                "checksum": self.checksum,
                "liveness_s": self.liveness_s,
                "run_id": self.run_id,
                "memory": self.memory,
                "memory_token": self.memory_token,
            }
        )

    @classmethod
    def decode(cls, payload: bytes, next_seq: int) -> "Welcome":
        """Decode the JSON payload; `next_seq` comes from the header.

        Raises:
            FrameError: not JSON of this form.
        """
        fields = _fields("WELCOME", payload)
        return cls(
            next_seq=next_seq,
            limit=fields.integer("limit"),
            ended=fields.boolean("ended"),
            checksum=fields.boolean("checksum"),
            liveness_s=fields.seconds("liveness_s"),
            run_id=fields.text("run_id"),
            memory=fields.text("memory"),
            memory_token=fields.text("memory_token"),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """The content of an ERR frame.

    Attributes:
        code: An `ErrorCode` value, or a text that only a later version knows.
        text: A sentence for the user.
        detail: More detail, for example the traceback of an input function; may be empty.
    """

    code: str
    text: str
    detail: str = ""

    @property
    def retryable(self) -> bool:
        """True if a worker that gets this connects again, however often it happens."""
        return self.code in _RETRYABLE

    @property
    def is_damage(self) -> bool:
        """True if the network may be the cause: a worker that gets this connects again some times."""
        return self.code in _DAMAGE

    @property
    def needs_no_proof(self) -> bool:
        """True if a worker accepts it from a peer that has not proved that it knows the job's secret."""
        return self.code in _UNPROVED

    def encode(self) -> bytes:
        """Encode the JSON payload; of long texts the text keeps its start, the detail its end."""
        return encode_json(
            {
                "code": self.code,
                "text": self.text[:_MAX_TEXT_CHARS],
                "detail": self.detail[-_MAX_DETAIL_CHARS:],
            }
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Failure":
        """Decode the JSON payload.

        Raises:
            FrameError: not JSON of this form.
        """
        fields = _fields("ERR", payload, MAX_TEXT_BYTES)
        return cls(fields.text("code"), fields.text("text"), fields.text("detail"))


def _fields(message: str, payload: bytes, max_chars: int = _MAX_NAME_CHARS) -> Fields:
    try:
        return Fields(message, decode_object(payload), max_chars)
    except FrameError as error:
        raise FrameError(f"{message}: {error}") from None

"""The JSON payloads of HELLO, WELCOME and ERR, read strictly and bounded."""

import json
from dataclasses import dataclass, field
from enum import StrEnum

from cs_stream.errors import ProtocolError
from cs_stream.frames import MAX_TEXT_BYTES, VERSION

# An ERR payload is JSON of at most 64 KiB; escapes make up to 6 bytes (a \uXXXX) of a character.
_MAX_TEXT_CHARS = 2_000
_MAX_DETAIL_CHARS = 8_000
_MAX_NAME_CHARS = 1_000


class ErrorCode(StrEnum):
    """Why an ERR frame ends a connection."""

    REFUSED = "refused"
    """This worker does not belong to the run as it stands."""
    NO_RUN = "no-run"
    """No run of the job is open; it may be soon."""
    BUSY = "busy"
    """Too many handshakes at once."""
    REPLACED = "replaced"
    """Another process connected as the same worker."""
    TIMEOUT = "timeout"
    """Nothing was heard for the liveness time."""
    PROTOCOL = "protocol"
    """A frame that is not allowed."""
    CHECKSUM = "checksum"
    """A payload arrived damaged."""
    INPUT_FAILED = "input-failed"
    """The worker's input function raised."""
    STOPPED = "stopped"
    """The run was stopped, for the reason in the text."""

    @property
    def retryable(self) -> bool:
        """Whether the worker connects again."""
        return self in {ErrorCode.NO_RUN, ErrorCode.BUSY, ErrorCode.TIMEOUT, ErrorCode.CHECKSUM}


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker states when it connects.

    Attributes:
        job_id: the launcher's job.
        token: the job's secret; not part of `repr`.
        worker: index, 0 to num_workers - 1.
        num_workers: number of workers of the run.
        layout: JSON form of the `BatchLayout`.
        input_digest: digest of what decides the input's content (program, parameters).
        pid: process of the worker.
        host: its machine.
        instance: random text of one `Sender`, which tells a reconnect from a replacement.
        run_id: the run that this instance was welcomed to before, or empty.
        checksum: whether the worker can put digests into BATCH headers.
        protocol_min: lowest protocol version of the worker.
        protocol_max: highest one.
    """

    job_id: str
    token: str = field(repr=False)
    worker: int
    num_workers: int
    layout: object
    input_digest: str
    pid: int
    host: str
    instance: str
    run_id: str = ""
    checksum: bool = True
    protocol_min: int = VERSION
    protocol_max: int = VERSION

    def encode(self) -> bytes:
        """The JSON payload."""
        return _dump(
            {
                "protocol": [self.protocol_min, self.protocol_max],
                "job_id": self.job_id,
                "token": self.token,
                "worker": self.worker,
                "num_workers": self.num_workers,
                "layout": self.layout,
                "input_digest": self.input_digest,
                "pid": self.pid,
                "host": self.host,
                "instance": self.instance,
                "run_id": self.run_id,
                "checksum": self.checksum,
            }
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Hello":
        """Read the JSON payload; keys that a later version adds are ignored.

        Raises:
            ProtocolError: not JSON of this form.
        """
        reader = _Reader("HELLO", payload)
        low, high = reader.pair("protocol")
        return cls(
            job_id=reader.text("job_id"),
            token=reader.text("token"),
            worker=reader.integer("worker"),
            num_workers=reader.integer("num_workers"),
            layout=reader.anything("layout"),
            input_digest=reader.text("input_digest"),
            pid=reader.integer("pid"),
            host=reader.text("host"),
            instance=reader.text("instance"),
            run_id=reader.text("run_id"),
            checksum=reader.boolean("checksum"),
            protocol_min=low,
            protocol_max=high,
        )


@dataclass(frozen=True, slots=True)
class Welcome:
    """The system's answer to a worker that it takes.

    Attributes:
        next_seq: the first batch to send (in the header's seq).
        limit: batches with seq below it may be sent at once.
        ended: the system has this worker's whole input already; only the end of the run is left to wait for.
        checksum: whether BATCH headers must carry a digest.
        liveness_s: after this time without a frame either side takes the connection for lost.
        run_id: name of the run, to be stated when the same instance connects again.
    """

    next_seq: int
    limit: int
    ended: bool
    checksum: bool
    liveness_s: float
    run_id: str

    def encode(self) -> bytes:
        """The JSON payload."""
        return _dump(
            {
                "limit": self.limit,
                "ended": self.ended,
                "checksum": self.checksum,
                "liveness_s": self.liveness_s,
                "run_id": self.run_id,
            }
        )

    @classmethod
    def decode(cls, payload: bytes, next_seq: int) -> "Welcome":
        """Read the JSON payload; `next_seq` comes from the header.

        Raises:
            ProtocolError: not JSON of this form.
        """
        reader = _Reader("WELCOME", payload)
        return cls(
            next_seq=next_seq,
            limit=reader.integer("limit"),
            ended=reader.boolean("ended"),
            checksum=reader.boolean("checksum"),
            liveness_s=reader.seconds("liveness_s"),
            run_id=reader.text("run_id"),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """The content of an ERR frame.

    Attributes:
        code: an `ErrorCode` value, or a text that only a later version knows.
        text: one sentence for the user.
        detail: more, e.g. the traceback of an input function; may be empty.
    """

    code: str
    text: str
    detail: str = ""

    @property
    def retryable(self) -> bool:
        """Whether a worker that gets this connects again."""
        return self.code in set(ErrorCode) and ErrorCode(self.code).retryable

    def encode(self) -> bytes:
        """The JSON payload, with long texts cut: the text at its end, the detail at its start."""
        return _dump(
            {
                "code": self.code,
                "text": self.text[:_MAX_TEXT_CHARS],
                "detail": self.detail[-_MAX_DETAIL_CHARS:],
            }
        )

    @classmethod
    def decode(cls, payload: bytes) -> "Failure":
        """Read the JSON payload.

        Raises:
            ProtocolError: not JSON of this form.
        """
        reader = _Reader("ERR", payload, max_chars=MAX_TEXT_BYTES)
        return cls(reader.text("code"), reader.text("text"), reader.text("detail"))


def _dump(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Reader:
    """Typed access to one JSON object, with errors that name the message and the key."""

    def __init__(self, message: str, payload: bytes, max_chars: int = _MAX_NAME_CHARS) -> None:
        self._message = message
        self._max_chars = max_chars
        try:
            value = json.loads(payload)
        # RecursionError: a payload of nothing but '[' exhausts the parser's stack.
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"{message}: got no JSON ({type(error).__name__})") from None
        if not isinstance(value, dict):
            raise ProtocolError(f"{message}: got a JSON {type(value).__name__}, expected an object")
        self._value: dict[str, object] = value

    def _fault(self, key: str, expected: str) -> ProtocolError:
        # The value is left out: it may be a secret in the wrong place.
        got = type(self._value[key]).__name__ if key in self._value else "nothing"
        return ProtocolError(f"{self._message}: {key}: got {got}, expected {expected}")

    def anything(self, key: str) -> object:
        if key not in self._value:
            raise self._fault(key, "a value")
        return self._value[key]

    def text(self, key: str) -> str:
        value = self._value.get(key)
        if not isinstance(value, str) or len(value) > self._max_chars:
            raise self._fault(key, f"a text of at most {self._max_chars} characters")
        return value

    def integer(self, key: str) -> int:
        value = self._value.get(key)
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise self._fault(key, "an integer from 0")
        return value

    def boolean(self, key: str) -> bool:
        value = self._value.get(key)
        if not isinstance(value, bool):
            raise self._fault(key, "true or false")
        return value

    def seconds(self, key: str) -> float:
        value = self._value.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise self._fault(key, "a number of seconds above 0")
        return float(value)

    def pair(self, key: str) -> tuple[int, int]:
        value = self._value.get(key)
        if not isinstance(value, list) or len(value) != 2 or any(type(item) is not int for item in value):
            raise self._fault(key, "two integers [lowest, highest]")
        return value[0], value[1]

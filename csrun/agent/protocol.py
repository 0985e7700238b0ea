"""What the launcher and its agents say to each other. Pure: bytes in, messages out, and back.

A frame is the length of its head and of its payload (4 bytes each, big endian), the head in JSON, the
payload. The head's "kind" names the message.

    launcher                              agent
       | <------------- connect ------------ |
       | ------------ Challenge -----------> |   a random number
       | <------------- Hello -------------- |   who it is, proof that it knows the job's token
       | -------------- Start -------------> |   (when all have come) proof, and what to run
       | <-- Output*, Beat*, Ended, Gone --- |
       | --------- Signal*, Credit* -------> |

Both prove that they know the job's token, which travels through Slurm alone and never through this
connection: nobody else on the nodes can pose as a task, or have a task run a command of theirs.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any, ClassVar

from csrun.errors import CsrunError

LENGTHS = struct.Struct(">II")
MAX_HEAD_BYTES = 16 * 1024 * 1024
"""A Start holds command and variables; the kernel allows about 2 MiB, JSON makes up to 6 times that of it."""
MAX_AGENT_HEAD_BYTES = 65_536
"""What the launcher takes, from whoever connects: no more memory for somebody who has proved nothing yet."""
MAX_PAYLOAD_BYTES = 1024 * 1024

BEAT_INTERVAL_S = 2.0
SILENCE_LIMIT_S = 8.0
"""Longer than this without a frame, and a task is lost. With it a lost node is noticed within 10 s."""

WINDOW_BYTES = 262_144
"""Output that a task may have on its way; more has to wait for credit, so that a slow terminal slows tasks
down instead of filling the launcher's memory, and never holds up heartbeats."""


class ProtocolError(CsrunError):
    """The other side has sent what this version of the toolkit cannot read."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Launcher: prove that you know the token, with this random number."""

    kind: ClassVar[str] = "challenge"
    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Agent: I am here.

    Attributes:
        rank: of the task.
        node: Slurm's name of the machine.
        pid: of the agent.
        slurm_job, slurm_step: Slurm's numbers.
        cpus: numbers of the CPUs that Slurm lets the task use.
        cpus_on_node: CPUs that Slurm has given to the job on this node; 0 where it does not say.
        nonce: the agent's random number.
        proof: see `proof`.
    """

    kind: ClassVar[str] = "hello"
    rank: int
    node: str
    pid: int
    slurm_job: str
    slurm_step: str
    cpus: tuple[int, ...]
    cpus_on_node: int
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Start:
    """Launcher: run this.

    Attributes:
        command: the words that are executed.
        cwd: where.
        values: environment variables to set.
        unset: environment variables to remove first.
        cpus: CPUs that the task is pinned to; empty: as Slurm has left it.
        log: absolute path of the task's log.
        append: keep what the log holds, of a run of the job before it was requeued.
        exit_record: absolute path of the file that says how the task has ended.
        grace_s: from asking to end until SIGKILL, when the agent has to decide alone.
        proof: see `proof`.
    """

    kind: ClassVar[str] = "start"
    command: tuple[str, ...]
    cwd: str
    values: Mapping[str, str]
    unset: tuple[str, ...]
    cpus: tuple[int, ...]
    log: str
    append: bool
    exit_record: str
    grace_s: float
    proof: str


@dataclass(frozen=True, slots=True)
class Started:
    """Agent: the task runs, under this number."""

    kind: ClassVar[str] = "started"
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Agent: the task cannot be started; why, and the exit code that this means for the job."""

    kind: ClassVar[str] = "refused"
    text: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Output:
    """Agent: the task has written this."""

    kind: ClassVar[str] = "output"
    data: bytes


@dataclass(frozen=True, slots=True)
class Beat:
    """Agent: still here."""

    kind: ClassVar[str] = "beat"


@dataclass(frozen=True, slots=True)
class Note:
    """Agent: something that the user should know and that changes nothing."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """Agent: Slurm has sent the task this signal (scancel, time limit, preemption)."""

    kind: ClassVar[str] = "asked"
    signum: int


@dataclass(frozen=True, slots=True)
class Forsaken:
    """Agent: Slurm's step daemon, my parent, is gone; I end the task."""

    kind: ClassVar[str] = "forsaken"


@dataclass(frozen=True, slots=True)
class Ended:
    """Agent: the task's process has ended; 128 + n for signal n."""

    kind: ClassVar[str] = "ended"
    exit_code: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Agent: no process of the task is left, and now I go."""

    kind: ClassVar[str] = "gone"


@dataclass(frozen=True, slots=True)
class Signal:
    """Launcher: send this signal. One that ends goes to all processes of the task until none is left."""

    kind: ClassVar[str] = "signal"
    signum: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Launcher: so many bytes of output have been shown, you may send as many more."""

    kind: ClassVar[str] = "credit"
    count: int


Message = (
    Challenge
    | Hello
    | Start
    | Started
    | Refused
    | Output
    | Beat
    | Note
    | Asked
    | Forsaken
    | Ended
    | Gone
    | Signal
    | Credit
)
_KINDS: dict[str, type[Message]] = {
    each.kind: each
    for each in (
        Challenge,
        Hello,
        Start,
        Started,
        Refused,
        Output,
        Beat,
        Note,
        Asked,
        Forsaken,
        Ended,
        Gone,
        Signal,
        Credit,
    )
}


def encode(message: Message) -> bytes:
    """The frame of a message. Text that is no text (lone surrogates of file names) survives."""
    payload = message.data if isinstance(message, Output) else b""
    values: dict[str, Any] = {} if isinstance(message, Output) else asdict(message)
    head = json.dumps({"kind": message.kind, **values}, separators=(",", ":")).encode("ascii")
    return LENGTHS.pack(len(head), len(payload)) + head + payload


class Decoder:
    """Cuts a stream of bytes into messages, whatever pieces it arrives in."""

    def __init__(self, max_head_bytes: int = MAX_HEAD_BYTES) -> None:
        self._max_head_bytes = max_head_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Takes the next piece; yields the messages that are complete now.

        Raises:
            ProtocolError: this is no frame of ours; the stream cannot be used any more.
        """
        self._buffer += data
        while len(self._buffer) >= LENGTHS.size:
            head_length, payload_length = LENGTHS.unpack_from(self._buffer)
            if head_length > self._max_head_bytes or payload_length > MAX_PAYLOAD_BYTES:
                raise ProtocolError(
                    f"got a frame of {head_length} + {payload_length} bytes, expected at most "
                    f"{self._max_head_bytes} + {MAX_PAYLOAD_BYTES}: the other side is no part of this job"
                )
            end = LENGTHS.size + head_length + payload_length
            if len(self._buffer) < end:
                return
            head = bytes(self._buffer[LENGTHS.size : LENGTHS.size + head_length])
            payload = bytes(self._buffer[LENGTHS.size + head_length : end])
            del self._buffer[:end]
            yield _decode(head, payload)


def _decode(head: bytes, payload: bytes) -> Message:
    try:
        values = json.loads(head)
        kind = _KINDS[values.pop("kind")]
        if kind is Output:
            values = {"data": payload}
        elif payload:
            raise ValueError("a payload")
        for field in fields(kind):
            values[field.name] = _typed(values[field.name], str(field.type))
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError(
            f"got a frame that cannot be read ({error!r}: {head[:100]!r}); expected one of this version of "
            f"the toolkit: use the same version on all nodes"
        ) from error


def _typed(value: Any, annotation: str) -> Any:
    """The value as the field's annotation has it; JSON knows no tuples."""
    if annotation == "tuple[int, ...]":
        return tuple(_plain(item, int) for item in _plain(value, list))
    if annotation == "tuple[str, ...]":
        return tuple(_plain(item, str) for item in _plain(value, list))
    if annotation.startswith("Mapping"):
        return {name: _plain(text, str) for name, text in _plain(value, dict).items()}
    if annotation == "float":
        return float(value)
    return _plain(value, {"int": int, "str": str, "bytes": bytes, "bool": bool}[annotation])


def _plain(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # not isinstance: True is no number here
        raise TypeError(f"{value!r} instead of {kind.__name__}")
    return value


def proof(token: str, *said: str) -> str:
    """What only somebody who knows the token can say about these words: HMAC-SHA256, hexadecimal.

    The agent's proof covers "agent", both random numbers and its rank; the launcher's covers "launcher", both
    random numbers and the command with everything that comes with it, so that neither can be used again.
    """
    text = json.dumps(said, separators=(",", ":")).encode("ascii")
    return hmac.new(token.encode("utf-8", "surrogateescape"), text, sha256).hexdigest()


def agent_proof(token: str, launcher_nonce: str, hello: Hello) -> str:
    """The proof of a Hello that answers this Challenge."""
    said = {name: value for name, value in asdict(hello).items() if name != "proof"}
    return proof(token, "agent", launcher_nonce, json.dumps(said, sort_keys=True))


def launcher_proof(token: str, launcher_nonce: str, agent_nonce: str, start: Start) -> str:
    """The proof of a Start to the agent with this nonce."""
    said = {name: value for name, value in asdict(start).items() if name != "proof"}
    return proof(token, "launcher", launcher_nonce, agent_nonce, json.dumps(said, sort_keys=True))


def same_proof(given: str, expected: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode("ascii"))

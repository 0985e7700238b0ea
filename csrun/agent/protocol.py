"""Protocol between the launcher and its agents. Pure: bytes to messages, and messages to bytes.

A frame has a head in JSON and a payload (`cs_toolkit.network.frames.HeadedFrames`). "kind" in the head names
the message.

    launcher                              agent
       | <------------- connect ------------ |
       | ------------ Challenge -----------> |   a random number
       | <------------- Hello -------------- |   identity, proof that it knows the job's token
       | -------------- Start -------------> |   (after all agents have connected) proof, command
       | <- Output*, Heartbeat*, Ended, Gone  |
       | --- Signal*, Credit*, Restart* ---> |

Both sides prove that they know the job's token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from cs_toolkit.network.frames import FrameError, HeadedFrames, decode_object, encode_json
from cs_toolkit.security.proofs import prove
from csrun.errors import CsrunError

# A Start has command and environment: at most about 2 MiB in the kernel, and up to 6 times that as JSON.
MAX_HEAD_BYTES = 16 * 1024 * 1024
MAX_AGENT_HEAD_BYTES = 65_536  # limits the memory that an unauthenticated peer can take in the launcher
MAX_PAYLOAD_BYTES = 1024 * 1024

HEARTBEAT_INTERVAL_S = 2.0

# Output that a task may send ahead of credit. A slow terminal thereby slows tasks down instead of filling the
# launcher's memory, and never delays heartbeats.
WINDOW_BYTES = 262_144


class ProtocolError(CsrunError):
    """The peer has sent a frame that this version of the toolkit cannot read."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Launcher: request a proof of the token with this random number."""

    kind: ClassVar[str] = "challenge"
    nonce: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Agent: introduce the task.

    Attributes:
        rank: of the task.
        node: the scheduler's name of the machine.
        pid: of the agent.
        job_id, step_id: the scheduler's ids of the job and of the step within it; "" for no steps.
        cpus: numbers of the CPUs that the task may use.
        cpus_on_node: number of CPUs of the job on this node; 0 if unknown.
        nonce: random number of the agent.
        proof: of the token, by `agent_proof`.
    """

    kind: ClassVar[str] = "hello"
    rank: int
    node: str
    pid: int
    job_id: str
    step_id: str
    cpus: tuple[int, ...]
    cpus_on_node: int
    nonce: str
    proof: str


@dataclass(frozen=True, slots=True)
class Start:
    """Launcher: run a command.

    Attributes:
        command: program and arguments.
        cwd: absolute working directory.
        values: environment variables to set.
        unset: environment variables to remove first.
        cpus: CPUs that the task is pinned to; empty to leave the pinning to the scheduler.
        log: absolute path of the task's log.
        append: append to the log of the run before the job was requeued.
        exit_record: absolute path of the file about the end of the task.
        grace_s: time from the request to end until SIGKILL, if the launcher is lost.
        peer_timeout_s: silence of the launcher's machine after which the launcher is lost.
        proof: of the token, by `launcher_proof`.
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
    peer_timeout_s: float
    proof: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Launcher: the process of the task has ended; run the command of Start once more.

    Attributes:
        number: 1 for the first restart of the task.
    """

    kind: ClassVar[str] = "restart"
    number: int


@dataclass(frozen=True, slots=True)
class Started:
    """Agent: the task runs with this pid."""

    kind: ClassVar[str] = "started"
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Agent: the task cannot be started, with the reason and the exit code of the job."""

    kind: ClassVar[str] = "refused"
    text: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Output:
    """Agent: output of the task."""

    kind: ClassVar[str] = "output"
    data: bytes


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Agent: still alive."""

    kind: ClassVar[str] = "beat"


@dataclass(frozen=True, slots=True)
class Note:
    """Agent: a notice for the user that does not affect the job."""

    kind: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Agent: the scheduler has sent this signal (a cancellation, time limit, preemption)."""

    kind: ClassVar[str] = "asked"
    signum: int


@dataclass(frozen=True, slots=True)
class Orphaned:
    """Agent: the scheduler's daemon, the parent of the agent, is gone, and the agent ends the task."""

    kind: ClassVar[str] = "forsaken"


@dataclass(frozen=True, slots=True)
class Ended:
    """Agent: the process of the task has ended.

    Attributes:
        exit_code: 128 + n for signal n.
        would_repeat: the task has reported that it would fail again.
    """

    kind: ClassVar[str] = "ended"
    exit_code: int
    would_repeat: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """Agent: no process of the task is left, and the agent exits."""

    kind: ClassVar[str] = "gone"


@dataclass(frozen=True, slots=True)
class Signal:
    """Launcher: send a signal to the task; one that ends it goes to all its processes until none is left."""

    kind: ClassVar[str] = "signal"
    signum: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Launcher: the agent may send `count` more bytes of output."""

    kind: ClassVar[str] = "credit"
    count: int


Message = (
    Challenge
    | Hello
    | Start
    | Restart
    | Started
    | Refused
    | Output
    | Heartbeat
    | Note
    | Interrupted
    | Orphaned
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
        Restart,
        Started,
        Refused,
        Output,
        Heartbeat,
        Note,
        Interrupted,
        Orphaned,
        Ended,
        Gone,
        Signal,
        Credit,
    )
}


def encode(message: Message) -> bytes:
    """Return the frame of a message."""
    payload = message.data if isinstance(message, Output) else b""
    values: dict[str, Any] = {} if isinstance(message, Output) else asdict(message)
    return HeadedFrames.encode(encode_json({"kind": message.kind, **values}), payload)


class Decoder:
    """Splits a stream of bytes into messages."""

    def __init__(self, max_head_bytes: int = MAX_HEAD_BYTES) -> None:
        self._frames = HeadedFrames(max_head_bytes, MAX_PAYLOAD_BYTES)

    def feed(self, data: bytes) -> Iterator[Message]:
        """Decode the next piece of the stream and yield the complete messages.

        Raises:
            ProtocolError: the frame is invalid, and the stream can no longer be used.
        """
        try:
            for head, payload in self._frames.feed(data):
                yield _decode(head, payload)
        except FrameError as error:
            raise ProtocolError(f"{error}: the peer is not part of this job") from None


def _decode(head: bytes, payload: bytes) -> Message:
    try:
        values = decode_object(head)
        kind = _KINDS[values.pop("kind")]
        if kind is Output:
            values = {"data": payload}
        elif payload:
            raise ValueError("a payload")
        for field in fields(kind):
            values[field.name] = _convert(values[field.name], str(field.type))
        return kind(**values)
    except (FrameError, ValueError, TypeError, KeyError) as error:
        raise ProtocolError(
            f"got a frame that cannot be read ({error!r}: {head[:100]!r}); expected one of this version of "
            f"the toolkit: use the same version on all nodes"
        ) from error


def _convert(value: Any, annotation: str) -> Any:
    """Convert a JSON value to the type of a field."""
    if annotation == "tuple[int, ...]":
        return tuple(_checked(item, int) for item in _checked(value, list))
    if annotation == "tuple[str, ...]":
        return tuple(_checked(item, str) for item in _checked(value, list))
    if annotation.startswith("Mapping"):
        return {name: _checked(text, str) for name, text in _checked(value, dict).items()}
    if annotation == "float":
        return float(value)
    return _checked(value, {"int": int, "str": str, "bytes": bytes, "bool": bool}[annotation])


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # not isinstance: True is not a number here
        raise TypeError(f"{value!r} instead of {kind.__name__}")
    return value


# Both sides get the token through the scheduler, and never send it over this connection. Without the proofs
# any user of the nodes could impersonate a task or run a command in one.
def agent_proof(token: str, launcher_nonce: str, hello: Hello) -> str:
    """Return the proof of a Hello for the nonce of a Challenge."""
    # All fields are covered: a proof must not be reusable with another rank or node.
    covered = {name: value for name, value in asdict(hello).items() if name != "proof"}
    return prove(token, "agent", launcher_nonce, json.dumps(covered, sort_keys=True))


def launcher_proof(token: str, launcher_nonce: str, agent_nonce: str, start: Start) -> str:
    """Return the proof of a Start for the nonce of an agent."""
    covered = {name: value for name, value in asdict(start).items() if name != "proof"}
    return prove(token, "launcher", launcher_nonce, agent_nonce, json.dumps(covered, sort_keys=True))

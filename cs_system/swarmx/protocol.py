"""The messages of a group of CS systems: between its leader and members on other hosts, and to its wafers.

Leader and members exchange JSON messages, one a line:

    member  leader
    hello ------->   host, number, version and a nonce
          <------- nonce   with the proof that the leader knows the token
    proof ------->
          <------- welcome, or refused with the reason
          <------- start   port, token and rank: a wafer for the next run
          <------- end     end that wafer
    ended ------->         token: the wafer has ended, for whatever reason
          <------- bye     the leader is shutting down

A proof is the HMAC of the other side's nonce, so the token itself is never sent.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
from dataclasses import asdict, dataclass
from typing import Any

from cs_stream.sockets import PeerGoneError, PeerSilentError, shut_down, tune
from cs_system.errors import GroupError
from cs_system.messages import step_from_wire, step_to_wire
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.step import CompiledStep

HANDSHAKE_S = 5.0
_MAX_LINE_BYTES = 4096
# A host that has been silent for this long, in seconds, counts as lost.
_LOST_S = 6


class Channel:
    """One end of the connection between leader and member.

    Args:
        sock: A connected socket, which the channel closes.
    """

    def __init__(self, sock: socket.socket) -> None:
        tune(sock)
        detect_loss(sock)
        self._sock = sock
        self._file = sock.makefile("rb")
        self._sending = threading.Lock()

    @property
    def own_host(self) -> str:
        """The address of this machine that the other end is connected to."""
        return str(self._sock.getsockname()[0])

    def set_time_limit(self, seconds: float | None) -> None:
        """Set how long `receive` waits from now on; None: without limit."""
        self._sock.settimeout(seconds)

    def send(self, kind: str, **fields: object) -> None:
        """Send a message.

        Raises:
            ConnectionError: the peer is gone.
        """
        try:
            with self._sending:
                self._sock.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None

    def receive(self) -> dict[str, Any]:
        """Receive the next message.

        Raises:
            ConnectionError: the peer is gone, is silent, or speaks another protocol.
        """
        try:
            line = self._file.readline(_MAX_LINE_BYTES)
        except TimeoutError:
            raise PeerSilentError("nothing was heard within the time limit") from None
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None
        if not line.endswith(b"\n"):
            raise PeerGoneError("the connection was closed")
        try:
            message = json.loads(line)
        # RecursionError: a line of '[' characters exhausts the parser's stack.
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or "kind" not in message:
            raise PeerGoneError(f"got {line[:40]!r}, expected a message of a group of CS systems")
        return message

    def close(self) -> None:
        """Close the connection; a waiting `receive` raises."""
        shut_down(self._sock)
        self._file.close()
        self._sock.close()


def detect_loss(sock: socket.socket) -> None:
    """Let the kernel break a connection soon after the other host has lost its power or its network."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 2),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _LOST_S - 2),
        (socket.TCP_USER_TIMEOUT, _LOST_S * 1000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def join_leader(channel: Channel, token: str, host: str, number: int) -> None:
    """Perform a member's part of the handshake.

    Args:
        channel: Connection to what may be the leader.
        token: Secret of the group.
        host: Name of this machine in messages.
        number: Number that determines the order of the members.

    Raises:
        ConnectionError: the peer is no leader, or one of another group.
        GroupError: the leader refuses this member.
    """
    nonce = secrets.token_hex(16)
    channel.send("hello", host=host, number=number, version=TOOLKIT_VERSION, nonce=nonce)
    answer = channel.receive()
    if answer["kind"] == "nonce" and not _is_proof(answer, token, "leader", nonce):
        raise PeerGoneError("another group listens there")
    if answer["kind"] == "nonce":
        channel.send("proof", proof=_proof(token, "member", str(answer.get("nonce"))))
        answer = channel.receive()
    if answer["kind"] != "welcome":
        raise GroupError(f"the group refuses this host: {answer.get('reason')}")


def admit_member(channel: Channel, token: str) -> tuple[str, int]:
    """Perform the leader's part of the handshake; return the member's host and number.

    Raises:
        ConnectionError: the peer is no member of this group; the reason has been sent to it.
    """
    hello = channel.receive()
    if hello["kind"] != "hello":
        raise PeerGoneError(f"got {hello['kind']}, expected hello")
    version = hello.get("version")
    if version != TOOLKIT_VERSION:
        _refuse(channel, f"it has version {version} of the toolkit, the group has {TOOLKIT_VERSION}")
    nonce = secrets.token_hex(16)
    channel.send("nonce", nonce=nonce, proof=_proof(token, "leader", str(hello.get("nonce"))))
    if not _is_proof(channel.receive(), token, "member", nonce):
        _refuse(channel, "its token is not that of the group")
    channel.send("welcome")
    return str(hello.get("host"))[:255], int(hello.get("number", 0))


def _refuse(channel: Channel, reason: str) -> None:
    channel.send("refused", reason=reason)
    raise PeerGoneError(f"refused: {reason}")


def _proof(token: str, side: str, nonce: str) -> str:
    # With the side, so that a peer cannot reflect a nonce to obtain the proof that it needs.
    return hmac.digest(token.encode(), f"{side} {nonce}".encode(), "sha256").hex()


def _is_proof(message: dict[str, Any], token: str, side: str, nonce: str) -> bool:
    return hmac.compare_digest(str(message.get("proof")).encode(), _proof(token, side, nonce).encode())


@dataclass(frozen=True)
class WaferAssignment:
    """The place of a wafer in its group; the step and its executables are sent with it.

    Attributes:
        rank: Rank of the wafer, from 0; the first one sends gradients.
        count: Number of wafers.
        coordinator: HOST:PORT where their processes meet.
        memoryx: Host and port of each MemoryX.
        token: Secret with which the others join the first wafer at MemoryX.
    """

    rank: int
    count: int
    coordinator: str
    memoryx: tuple[tuple[str, int], ...]
    token: str

    def to_bytes(self, step: CompiledStep) -> bytes:
        """Encode the assignment and the step."""
        head = json.dumps(asdict(self)).encode()
        body: bytes = step_to_wire(step).SerializeToString()
        return len(head).to_bytes(4, "little") + head + body

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[WaferAssignment, CompiledStep]:
        """Decode an assignment and its step."""
        end = 4 + int.from_bytes(data[:4], "little")
        fields = json.loads(data[4:end])
        order = cls(**{**fields, "memoryx": tuple((host, port) for host, port in fields["memoryx"])})
        return order, step_from_wire(pb.ArtifactOffer.FromString(data[end:]))


def split_inputs(step: CompiledStep) -> tuple[bool, ...]:
    """Return, for each tensor of a batch, whether it is split along its samples."""
    inputs = step.interface.inputs
    samples = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    return tuple(bool(spec.shape) and spec.shape[0] == samples for spec in inputs)

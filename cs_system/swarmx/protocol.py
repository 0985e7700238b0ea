"""The messages of a group of CS systems: between its leader and members on other hosts, and to its wafers.

Leader and members speak JSON, a line a message:

    member  leader
    hello ------->   host, number, version and a nonce
          <------- nonce   with the proof that the leader knows the token
    proof ------->
          <------- welcome, or refused with the reason
          <------- start   port, token and rank: a wafer for the next run
          <------- end     of that wafer
    ended ------->         token: by itself or as told
          <------- bye     of the leader

A proof is the HMAC of the other side's nonce: the token itself does not travel.
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
from cs_toolkit.step import CompiledStep
from cs_toolkit.version import __version__ as TOOLKIT_VERSION

HANDSHAKE_S = 5.0
_MAX_LINE_BYTES = 4096
_LOST_S = 6
"""A host that is silent for so long, in seconds, has gone."""


class Channel:
    """One end of the connection of a member.

    Args:
        sock: Connected; the channel closes it.
    """

    def __init__(self, sock: socket.socket) -> None:
        tune(sock)
        detect_loss(sock)
        self._sock = sock
        self._file = sock.makefile("rb")
        self._sending = threading.Lock()

    @property
    def own_host(self) -> str:
        """The address of this machine that the other one talks to."""
        return str(self._sock.getsockname()[0])

    def limit(self, seconds: float | None) -> None:
        """How long `receive` waits from now on; None: for ever."""
        self._sock.settimeout(seconds)

    def send(self, kind: str, **fields: object) -> None:
        """Sends a message.

        Raises:
            ConnectionError: the peer has gone.
        """
        try:
            with self._sending:
                self._sock.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\n")
        except OSError as error:
            raise PeerGoneError(f"the connection broke ({error.strerror})") from None

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            ConnectionError: the peer has gone, is silent, or speaks something else.
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
        except ValueError:
            message = None
        if not isinstance(message, dict) or "kind" not in message:
            raise PeerGoneError(f"got {line[:40]!r}, expected a message of a group of CS systems")
        return message

    def close(self) -> None:
        """Hangs up, and wakes who waits in `receive`."""
        shut_down(self._sock)
        self._file.close()
        self._sock.close()


def detect_loss(sock: socket.socket) -> None:
    """Breaks a connection soon after the other host has lost its power or its network."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 2),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _LOST_S - 2),
        (socket.TCP_USER_TIMEOUT, _LOST_S * 1000),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def greet(channel: Channel, token: str, host: str, number: int) -> None:
    """A member's part of the first words.

    Args:
        channel: To what may be the leader.
        token: Of the group.
        host: What messages call this machine.
        number: By which the members are in order.

    Raises:
        ConnectionError: that is no leader, or one of another group.
        GroupError: it refuses this member.
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
        raise GroupError(f"the group does not take this host: {answer.get('reason')}")


def welcome(channel: Channel, token: str) -> tuple[str, int]:
    """The leader's part of the first words; the member's host and number.

    Raises:
        ConnectionError: that is no member of this group; it has been told.
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
    return hmac.digest(token.encode(), f"{side} {nonce}".encode(), "sha256").hex()


def _is_proof(message: dict[str, Any], token: str, side: str, nonce: str) -> bool:
    return hmac.compare_digest(str(message.get("proof")).encode(), _proof(token, side, nonce).encode())


@dataclass(frozen=True)
class WaferAssignment:
    """The place of a wafer in its group, and what it computes; executables follow in the order of the step.

    Attributes:
        rank: of the wafer, from 0; the first one sends gradients.
        count: of wafers.
        coordinator: HOST:PORT where their processes meet.
        memoryx: host and port of each MemoryX.
        token: by which the others join the first one there.
    """

    rank: int
    count: int
    coordinator: str
    memoryx: tuple[tuple[str, int], ...]
    token: str

    def to_bytes(self, step: CompiledStep) -> bytes:
        """As bytes, with the step."""
        head = json.dumps(asdict(self)).encode()
        body: bytes = step_to_wire(step).SerializeToString()
        return len(head).to_bytes(4, "little") + head + body

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[WaferAssignment, CompiledStep]:
        """The inverse of `to_bytes`."""
        end = 4 + int.from_bytes(data[:4], "little")
        fields = json.loads(data[4:end])
        order = cls(**{**fields, "memoryx": tuple((host, port) for host, port in fields["memoryx"])})
        return order, step_from_wire(pb.ArtifactOffer.FromString(data[end:]))


def split_inputs(step: CompiledStep) -> tuple[bool, ...]:
    """Of each tensor of a batch whether it is cut along its samples."""
    inputs = step.interface.inputs
    samples = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    return tuple(bool(spec.shape) and spec.shape[0] == samples for spec in inputs)

"""The messages of a group of CS systems: between its leader and members on other hosts, and to its wafers.

Leader and members exchange JSON objects, one a line:

    member  leader
    hello ------->   host, number, version and a nonce
          <------- nonce   with the proof that the leader knows the token
    proof ------->
          <------- welcome, or refused with the reason
          <------- start   port, run and rank: a wafer for the next run
          <------- end     end that wafer
    ended ------->         run: the wafer has ended, for whatever reason
          <------- bye     the leader is shutting down

The proofs hold for the nonces of both sides, that of the member also for its hello. From the welcome on, each
message has a proof, which covers its content and its number in its direction. No secret is ever sent: that of
a run is derived from the group's token and the random name of the run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from google.protobuf.message import DecodeError

from cs_system.errors import GroupError
from cs_system.memoryx.config import MemoryxAddress
from cs_system.messages import step_from_wire, step_to_wire
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.network.connection import Connection, PeerGoneError
from cs_toolkit.network.frames import Fields, FrameError, LineChannel, decode_object
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.security.proofs import derive_key, is_proof, new_nonce, prove
from cs_toolkit.step import CompiledStep

HANDSHAKE_S = 5.0
_MAX_LINE_BYTES = 4096


class Channel:
    """One end of the connection between leader and member.

    Args:
        connection: The connection, which the channel closes.
    """

    def __init__(self, connection: Connection) -> None:
        connection.break_when_lost(round(peer_timeout_s(os.environ)))
        self._lines = LineChannel(connection, _MAX_LINE_BYTES)
        # Secret of the connection, once both sides have proved that they know the token.
        self._secret = ""
        self._side, self._peer = "", ""
        self._sending = threading.Lock()
        self._sent = self._received = 0
        # The address of this machine that the other end is connected to.
        self.own_host = connection.own_host

    def send(self, kind: str, **fields: object) -> None:
        """Send a message; callable from any thread.

        Raises:
            ConnectionError: the peer is gone.
        """
        message = {"kind": kind, **fields}
        with self._sending:  # in the order of their numbers
            if self._secret:
                message["proof"] = self._prove(self._side, self._sent, message)
                self._sent += 1
            self._lines.send(message)

    def authenticate(self, secret: str, side: str, peer: str) -> None:
        """Add a proof to each later message, and require one from the peer.

        Args:
            secret: Secret of this connection.
            side: Name of this side.
            peer: Name of the other side.
        """
        self._secret, self._side, self._peer = secret, side, peer

    def _prove(self, side: str, number: int, message: dict[str, Any]) -> str:
        return prove(self._secret, side, str(number), json.dumps(message, sort_keys=True))

    def receive(self, deadline_s: float | None = None) -> dict[str, Any]:
        """Receive the next message, by a monotonic time if one is given.

        Raises:
            ConnectionError: the peer is gone, is silent, or speaks another protocol; or its message was
                changed or repeated in transit.
        """
        try:
            message = self._lines.receive(deadline_s)
        except FrameError as error:
            raise PeerGoneError(f"it does not send messages of a group of CS systems: {error}") from None
        if self._secret:
            given = message.pop("proof", None)
            if not is_proof(given, self._prove(self._peer, self._received, message)):
                raise PeerGoneError(
                    "a message was changed or repeated in transit; check the network between them"
                )
            self._received += 1
        if not isinstance(message.get("kind"), str):
            raise PeerGoneError("it does not send messages of a group of CS systems")
        return message

    def close(self) -> None:
        """Close the connection; a waiting `receive` raises."""
        self._lines.close()


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
    deadline_s = time.monotonic() + HANDSHAKE_S
    nonce = new_nonce()
    hello = {"host": host, "number": number, "version": TOOLKIT_VERSION, "nonce": nonce}
    channel.send("hello", **hello)
    answer = channel.receive(deadline_s)
    if answer["kind"] == "nonce":
        leader_nonce = str(answer.get("nonce"))
        if not is_proof(answer.get("proof"), prove(token, "leader", nonce, leader_nonce)):
            raise PeerGoneError("another group listens there")
        channel.send("proof", proof=_member_proof(token, leader_nonce, hello))
        channel.authenticate(_connection_secret(token, nonce, leader_nonce), "member", "leader")
        answer = channel.receive(deadline_s)
    if answer["kind"] != "welcome":
        raise GroupError(f"the group refuses this host: {answer.get('reason')}")


def admit_member(channel: Channel, token: str) -> tuple[str, int]:
    """Perform the leader's part of the handshake; return the member's host and number.

    Raises:
        ConnectionError: the peer is no member of this group; the reason has been sent to it.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    hello = channel.receive(deadline_s)
    if hello.pop("kind") != "hello":
        raise PeerGoneError("it did not say hello first")
    version = hello.get("version")
    if version != TOOLKIT_VERSION:
        _refuse(channel, f"it has version {version} of the toolkit, the group has {TOOLKIT_VERSION}")
    try:
        fields = Fields("hello", hello)
        host, number, member_nonce = fields.text("host"), fields.integer("number"), fields.text("nonce")
    except FrameError as error:
        _refuse(channel, str(error))
    nonce = new_nonce()
    channel.send("nonce", nonce=nonce, proof=prove(token, "leader", member_nonce, nonce))
    if not is_proof(channel.receive(deadline_s).get("proof"), _member_proof(token, nonce, hello)):
        _refuse(channel, "its token is not that of the group")
    channel.authenticate(_connection_secret(token, member_nonce, nonce), "leader", "member")
    channel.send("welcome")
    return host, number


def _refuse(channel: Channel, reason: str) -> NoReturn:
    channel.send("refused", reason=reason)
    raise PeerGoneError(f"refused: {reason}")


def _member_proof(token: str, leader_nonce: str, hello: dict[str, Any]) -> str:
    return prove(token, "member", leader_nonce, json.dumps(hello, sort_keys=True))


def _connection_secret(token: str, member_nonce: str, leader_nonce: str) -> str:
    return prove(token, "connection", member_nonce, leader_nonce)


def run_token(group_token: str, run: str) -> str:
    """Return the secret of a run of the group."""
    return prove(group_token, "run", run)


def memoryx_key(token: str) -> bytes:
    """Return the key for the secret of MemoryX, from the secret of a run."""
    return derive_key(token, "secret of MemoryX")


@dataclass(frozen=True)
class WaferAssignment:
    """The place of a wafer in its group; the step and its executables are sent with it.

    Attributes:
        rank: Rank of the wafer, from 0; the first one sends gradients.
        count: Number of wafers.
        coordinator: HOST:PORT where their processes meet.
        memoryx: Host and port of each MemoryX.
        encrypted_secret: Their secret, encrypted with a key that is derived from the secret of the run.
        model: Name by which the others find the model of the first wafer at MemoryX.
    """

    rank: int
    count: int
    coordinator: str
    memoryx: tuple[MemoryxAddress, ...]
    encrypted_secret: str
    model: str

    def to_bytes(self, step: CompiledStep) -> bytes:
        """Encode the assignment and the step."""
        head = json.dumps(asdict(self)).encode()
        body: bytes = step_to_wire(step).SerializeToString()
        return len(head).to_bytes(4, "little") + head + body

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[WaferAssignment, CompiledStep]:
        """Decode an assignment and its step.

        Raises:
            GroupError: the bytes are something else.
        """
        end = 4 + int.from_bytes(data[:4], "little")
        try:
            fields = decode_object(data[4:end])
            addresses = tuple(MemoryxAddress(*each) for each in fields["memoryx"])
            assignment = cls(**{**fields, "memoryx": addresses})
            return assignment, step_from_wire(pb.ArtifactOffer.FromString(data[end:]))
        except (FrameError, DecodeError, TypeError, KeyError) as error:
            raise GroupError(f"the assignment of a wafer is malformed: {error!r}") from None


def split_inputs(step: CompiledStep) -> tuple[bool, ...]:
    """Return, for each tensor of a batch, whether it is split along its samples."""
    inputs = step.interface.inputs
    samples = inputs[0].shape[0] if inputs and inputs[0].shape else 0
    return tuple(bool(spec.shape) and spec.shape[0] == samples for spec in inputs)

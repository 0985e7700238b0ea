"""A client's connection to the control plane: probing the address, the channel, errors as exceptions.

gRPC hides why it cannot connect, and waits long for a listener that never answers. So the first bytes of
HTTP/2 are exchanged by hand, and only a listener that answers them is given to gRPC.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from cs_system.address import SystemAddress
from cs_system.client.heartbeats import Heartbeats
from cs_system.errors import (
    ConnectionLostError,
    CsSystemError,
    NotACsSystemError,
    ProtocolMismatchError,
    SystemUnreachableError,
)
from cs_system.proto import cs_system_pb2 as pb
from cs_system.proto import cs_system_pb2_grpc
from cs_system.transport import (
    PROTOCOL_VERSION,
    Metadata,
    client_metadata,
    client_options,
    error_from_metadata,
)
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.liveness import peer_timeout_s

# Status codes of calls that arrive while a system is shutting down, or later.
ENDING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Connection:
    """An open connection to a CS system with the same protocol version.

    Args:
        address: Address of the control plane.
        timeout_s: Limit for the first answer.

    Attributes:
        address: The same.
        peer_timeout_s: Silence after which the system counts as lost.
        nonce: Nonce of the system's process.
        public_key: Key to seal secrets to it.

    Raises:
        SystemUnreachableError: nothing answers there.
        NotACsSystemError: something else answers.
        ProtocolMismatchError: the system has another version.
    """

    def __init__(self, address: SystemAddress, timeout_s: float) -> None:
        self.address = address
        self.nonce, self.public_key = "", b""
        self._timeout_s = timeout_s
        self.peer_timeout_s = peer_timeout_s(os.environ)
        self._heartbeats: Heartbeats | None = None
        probe(address, timeout_s)
        self._channel = grpc.insecure_channel(str(address), options=client_options(self.peer_timeout_s))
        self._stub = cs_system_pb2_grpc.CsSystemStub(self._channel)
        try:
            self._check_system()
        except BaseException:
            self.close()
            raise

    def _check_system(self) -> None:
        try:
            info = self._stub.Info(pb.InfoRequest(), timeout=self._timeout_s, metadata=client_metadata())
        except grpc.RpcError as error:
            known = error_from_metadata(error.trailing_metadata())
            if known is not None:
                raise known from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                tried = f"a call of its control plane, for {self._timeout_s:g} s"
                raise SystemUnreachableError.at(self.address, tried, "no answer") from None
            if error.code() in ENDING:  # the listener of a moment ago has ended
                raise SystemUnreachableError.at(self.address, "a call", str(error.details())) from None
            raise NotACsSystemError.at(
                self.address, f"it speaks HTTP/2 and answers {error.code().name}: {error.details()}"
            ) from None
        if info.protocol != PROTOCOL_VERSION:
            raise ProtocolMismatchError.between(
                PROTOCOL_VERSION, TOOLKIT_VERSION, info.protocol, info.version
            )
        self.nonce, self.public_key = info.nonce, info.public_key

    def call(
        self, rpc: str, request: Any, timeout_s: float | None = None, metadata: Metadata | None = None
    ) -> Any:
        """Make a call with a single answer; `request` is a message or an iterator of messages.

        Raises:
            CsSystemError: the class that the server raised.
            ConnectionLostError: the connection broke.
        """
        with self.errors():
            return self.stream(rpc, request, timeout_s, metadata)

    def stream(
        self, rpc: str, request: Any, timeout_s: float | None = None, metadata: Metadata | None = None
    ) -> Any:
        """Make a call with many answers: an iterator with `cancel()`. Iterate over it inside `errors`."""
        stub = getattr(self._stub, rpc)
        return stub(request, timeout=timeout_s, metadata=metadata or client_metadata())

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate gRPC errors in the body into exceptions of `cs_system.errors`."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._translate_error(error) from None

    def _translate_error(self, error: Any) -> CsSystemError:
        known = error_from_metadata(error.trailing_metadata())
        if known is not None:
            return known
        code, details = error.code(), error.details()
        if code in ENDING:
            silence = self._heartbeats and self._heartbeats.silence_text
            return ConnectionLostError(
                f"the connection to the CS system at {self.address} broke ({silence or details}); "
                "see its log, and resume from the last checkpoint"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ConnectionLostError(
                f"the CS system at {self.address} is running but has not answered in time; see its log, "
                "and resume from the last checkpoint"
            )
        return CsSystemError(f"the CS system at {self.address} failed: {code.name}: {details}")

    def start_heartbeats(self) -> Heartbeats:
        """Send heartbeats until the connection is closed."""
        self._heartbeats = Heartbeats(
            self._stub.Heartbeat, f"the CS system at {self.address}", self.peer_timeout_s
        )
        return self._heartbeats

    def close(self) -> None:
        """Close the connection and all calls on it."""
        if self._heartbeats is not None:
            self._heartbeats.close()
        self._channel.close()


# RFC 9113 section 3.4: the client's preface and an empty SETTINGS frame; the answer is a SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_SETTINGS = 4

_KNOWN_GREETINGS = (
    (b"HTTP/", "a web server"),
    (b"<", "a web server"),
    (b"SSH-", "an SSH server"),
    (b"CSBS", "the data plane of a CS system, not its control plane"),
    (b"\x15\x03", "a TLS server"),
    (b"220 ", "an FTP or mail server"),
)


def probe(address: SystemAddress, timeout_s: float) -> None:
    """Check that the listener at `address` speaks HTTP/2.

    Args:
        address: Address of the control plane.
        timeout_s: Limit for the whole check.

    Raises:
        SystemUnreachableError: nothing listens, the host does not answer, or the name is unknown.
        NotACsSystemError: the listener speaks something else, or nothing.
    """
    deadline = time.monotonic() + timeout_s
    with _connect(address, deadline, timeout_s) as connection:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        got, closed = b"", False
        try:
            connection.sendall(_PREFACE)
            while len(got) < _FRAME_HEADER_BYTES:
                connection.settimeout(max(0.1, deadline - time.monotonic()))
                part = connection.recv(256)
                if not part:
                    closed = True
                    break
                got += part
        except TimeoutError:
            pass
        except OSError as error:
            if not got:
                raise NotACsSystemError.at(address, f"it broke the connection ({_text(error)})") from error
    if not is_settings_frame(got):
        raise NotACsSystemError.at(address, describe_answer(got, closed, timeout_s))


def is_settings_frame(data: bytes) -> bool:
    """Return True if `data` begins with the header of an HTTP/2 SETTINGS frame on stream 0."""
    if len(data) < _FRAME_HEADER_BYTES:
        return False
    length = int.from_bytes(data[:3], "big")
    return data[3] == _SETTINGS and data[5:9] == b"\x00\x00\x00\x00" and length % 6 == 0 and length <= 1 << 14


def describe_answer(data: bytes, closed: bool, timeout_s: float) -> str:
    """Describe a listener that answered an HTTP/2 client with `data`, and may have closed the connection."""
    if not data and closed:
        return "it accepted the connection and closed it without an answer"
    if not data:
        return f"it accepted the connection and did not answer within {timeout_s:g} s"
    for greeting, what in _KNOWN_GREETINGS:
        if data.startswith(greeting):
            return f"it is {what} (answer: {data[:40]!r})"
    return f"its answer begins with {data[:40]!r}"


def _connect(address: SystemAddress, deadline: float, timeout_s: float) -> socket.socket:
    tried = f"a TCP connection (waiting at most {timeout_s:g} s)"
    failure: OSError = TimeoutError("no answer")
    for family, kind, protocol, _, endpoint in _resolve(address, deadline):
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            connection.connect(endpoint)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    raise SystemUnreachableError.at(address, tried, _text(failure)) from failure


Endpoint = tuple[
    socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]
]


def _resolve(address: SystemAddress, deadline: float) -> list[Endpoint]:
    found: list[Endpoint] = []
    failures: list[OSError] = []

    def resolve() -> None:
        try:
            for entry in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
                found.append(entry)  # type: ignore[arg-type]  # no AF_UNIX and the like here
        except OSError as error:
            failures.append(error)

    # In a thread, because a program cannot set a time limit for the resolver.
    thread = threading.Thread(target=resolve, name="resolve", daemon=True)
    thread.start()
    thread.join(max(0.1, deadline - time.monotonic()))
    if found:
        return list(found)
    cause = _text(failures[0]) if failures else "the name server does not answer"
    raise SystemUnreachableError.at(address, f"looking up the name '{address.host}'", cause)


def _text(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)

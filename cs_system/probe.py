"""Finds out what listens at an address before gRPC does.

gRPC hides why it cannot connect, and waits long for a listener that says nothing. So the first bytes of
HTTP/2 are exchanged by hand; only a listener that answers them is given to gRPC.
"""

from __future__ import annotations

import socket
import threading
import time

from cs_system.address import SystemAddress
from cs_system.errors import NotACsSystemError, SystemUnreachableError

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
    """Returns when the listener at `address` speaks HTTP/2.

    Args:
        address: Of the control plane.
        timeout_s: For everything together.

    Raises:
        SystemUnreachableError: nothing listens, the host does not answer, the name is unknown.
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
    """Whether `data` begins with the header of an HTTP/2 SETTINGS frame on stream 0."""
    if len(data) < _FRAME_HEADER_BYTES:
        return False
    length = int.from_bytes(data[:3], "big")
    return data[3] == _SETTINGS and data[5:9] == b"\x00\x00\x00\x00" and length % 6 == 0 and length <= 1 << 14


def describe_answer(data: bytes, closed: bool, timeout_s: float) -> str:
    """What a listener is that answered an HTTP/2 client with `data` and may have closed the connection."""
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
    faults: list[OSError] = []

    def resolve() -> None:
        try:
            for entry in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
                found.append(entry)  # type: ignore[arg-type]  # no AF_UNIX and the like here
        except OSError as error:
            faults.append(error)

    # The resolver has no time limit of its own that a program could set.
    thread = threading.Thread(target=resolve, name="resolve", daemon=True)
    thread.start()
    thread.join(max(0.1, deadline - time.monotonic()))
    if found:
        return list(found)
    cause = _text(faults[0]) if faults else "the name server does not answer"
    raise SystemUnreachableError.at(address, f"looking up the name '{address.host}'", cause)


def _text(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return error.strerror or str(error)

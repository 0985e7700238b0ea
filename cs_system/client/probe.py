"""The first contact with an address: does a control plane answer there, and does it use TLS?"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from enum import Enum, auto

from cs_system.address import SystemAddress, is_loopback
from cs_system.errors import NotACsSystemError, SystemUnreachableError, TlsFailedError
from cs_toolkit.security.identity import CERTS_VARIABLE
from cs_toolkit.security.tls import Credentials, explain, is_plain

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


def probe(address: SystemAddress, timeout_s: float, credentials: Credentials | None = None) -> bool:
    """Check that the listener at `address` speaks HTTP/2; return True if it does so over TLS.

    Args:
        address: Address of the control plane.
        timeout_s: Limit for the whole check.
        credentials: With these it must use TLS, except on loopback.

    Raises:
        SystemUnreachableError: nothing listens, the host does not answer, or the name is unknown.
        NotACsSystemError: the listener speaks something else, or nothing.
        TlsFailedError: only one side uses TLS, or a certificate is not accepted.
    """
    deadline = time.monotonic() + timeout_s
    if credentials is not None:
        with _connect(address, deadline, timeout_s) as plain:
            plain.settimeout(max(0.1, deadline - time.monotonic()))
            answer = _probe_tls(plain, address, credentials, timeout_s)
        if answer is _Answer.ENCRYPTED:
            return True
        if answer is _Answer.NONE and not is_loopback(address.host):
            raise SystemUnreachableError.at(
                address,
                "a TLS connection",
                "it was closed in the handshake, as by a system with too many connections",
            )
        if not is_loopback(address.host):
            raise TlsFailedError.at(
                address,
                "it does not use TLS: expected a system started with --certs; to connect to this one without "
                f"encryption, unset {CERTS_VARIABLE}, and the site's certs",
            )
    with _connect(address, deadline, timeout_s) as connection:
        try:
            got, closed = _exchange(connection, deadline)
        except OSError as error:
            got, closed = b"", True
            if not _uses_tls(address, deadline, timeout_s):
                raise NotACsSystemError.at(address, f"it broke the connection ({_text(error)})") from error
    if is_settings_frame(got):
        return False
    if credentials is None and closed and not got and _uses_tls(address, deadline, timeout_s):
        raise TlsFailedError.at(
            address,
            "it uses TLS, and you have named no certificate: expected the directory of your certificate in "
            f"{CERTS_VARIABLE}, or in the site's certs",
        )
    raise NotACsSystemError.at(address, describe_answer(got, closed, timeout_s))


def _exchange(connection: socket.socket, deadline: float) -> tuple[bytes, bool]:
    """Send the preface; return the first bytes of the answer, and whether the peer closed the connection.

    Raises:
        OSError: the connection broke before any answer.
    """
    got = b""
    try:
        connection.sendall(_PREFACE)
        while len(got) < _FRAME_HEADER_BYTES:
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            part = connection.recv(256)
            if not part:
                return got, True
            got += part
    except TimeoutError:
        return got, False
    except OSError:
        if not got:
            raise
    return got, False


class _Answer(Enum):
    """The answer of a peer to a TLS handshake; NONE: it hung up."""

    ENCRYPTED = auto()
    PLAIN = auto()
    NONE = auto()


def _probe_tls(
    plain: socket.socket, address: SystemAddress, credentials: Credentials, timeout_s: float
) -> _Answer:
    """Exchange the first bytes over TLS.

    Raises:
        TlsFailedError: a certificate is not accepted.
        NotACsSystemError: the peer uses TLS for something else.
    """
    deadline = time.monotonic() + timeout_s
    encrypted = False
    try:
        context = credentials.make_client_context("h2")
        with context.wrap_socket(plain, server_hostname=address.host) as connection:
            encrypted = True
            got, closed = _exchange(connection, deadline)
    except TimeoutError:
        raise NotACsSystemError.at(address, describe_answer(b"", False, timeout_s)) from None
    except OSError as error:
        problem = explain(error, address.host) if isinstance(error, ssl.SSLError) else None
        if not encrypted and isinstance(error, ssl.SSLError) and is_plain(error):
            return _Answer.PLAIN
        # A peer that hangs up may be anything: on loopback, the attempt without TLS finds out.
        if not encrypted and problem is None:
            return _Answer.NONE
        raise TlsFailedError.at(address, problem or _refusal(credentials)) from None
    if is_settings_frame(got):
        return _Answer.ENCRYPTED
    if not got and closed:  # gRPC closes without an alert
        raise TlsFailedError.at(address, _refusal(credentials))
    raise NotACsSystemError.at(address, describe_answer(got, closed, timeout_s))


def _refusal(credentials: Credentials) -> str:
    return (
        f"it closes the connection when it has got your certificate, {credentials.certificate}: expected one "
        "of the system's own authority that is valid now (`cs_system certs show`; compare the clocks of both "
        "machines, too)"
    )


def _uses_tls(address: SystemAddress, deadline: float, timeout_s: float) -> bool:
    """Return True if the listener answers a TLS handshake; who it is does not matter here."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connect(address, deadline, timeout_s) as plain:
            plain.settimeout(max(0.1, deadline - time.monotonic()))
            with context.wrap_socket(plain, server_hostname=address.host):
                return True
    except (OSError, SystemUnreachableError):
        return False


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

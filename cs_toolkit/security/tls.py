"""Credentials of this process for mutual TLS.

A directory has the three files of an identity: `ca.pem`, the certificate of the site's authority; `cert.pem`,
our own certificate; `key.pem`, its private key. Both sides of a connection prove their identity (mutual TLS),
with TLS 1.3 only. Only the standard library is imported, because the agents of a job have nothing else.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

from cs_toolkit.errors import UsageError
from cs_toolkit.security.identity import CA_FILE, CERTIFICATE_FILE, CERTS_VARIABLE, KEY_FILE

# Permissions of a private key that others than its owner have.
_OTHERS = 0o077

# SSL_OP_ENABLE_KTLS of OpenSSL 3, which Python names from 3.12 on: the kernel encrypts where it can, which
# spares a copy (Linux with the module `tls`). Where it cannot, OpenSSL does.
_OP_ENABLE_KTLS = 1 << 3


FileVersions = tuple[tuple[int, int], ...]


class CredentialsError(UsageError):
    """The files of an identity are missing, unreadable, damaged, or visible to others."""


class Credentials:
    """The identity of this process. New files in its directory are used by the connections made after that.

    Args:
        directory: Directory with the three files.

    Raises:
        CredentialsError: a file is missing or cannot be read, or others can read the private key.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca, self.certificate, self.key = (
            directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)
        )
        for path in (self.ca, self.certificate, self.key):
            try:
                with path.open("rb") as file:
                    file.read(1)
            except OSError as error:
                raise CredentialsError(
                    f"{path}: {error.strerror}; expected {CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} in "
                    "this directory, as `cs_system certs issue` writes them"
                ) from None
        mode = self.key.stat().st_mode & 0o777
        if mode & _OTHERS:
            raise CredentialsError(
                f"{self.key}: got mode {mode:04o}, with which others can use this private key; expected "
                f"0600: chmod 600 {self.key}"
            )

        self._contexts: dict[str, tuple[FileVersions, ssl.SSLContext]] = {}

    @property
    def server_context(self) -> ssl.SSLContext:
        """Settings of connections that this process accepts: peers need a certificate of the authority.

        Raises:
            CredentialsError: the files are damaged.
        """
        return self._current_context("server", self._make_server_context)

    @property
    def client_context(self) -> ssl.SSLContext:
        """Settings of connections that this process makes: the peer's certificate must have its host name.

        Raises:
            CredentialsError: the files are damaged.
        """
        return self._current_context("client", self.make_client_context)

    def versions(self) -> FileVersions | None:
        """Return a value that changes when a file is replaced; None if one is missing at the moment."""
        try:
            stats = [path.stat() for path in (self.ca, self.certificate, self.key)]
        except OSError:
            return None
        return tuple((stat.st_ino, stat.st_mtime_ns) for stat in stats)

    def _current_context(self, side: str, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        versions, loaded = self.versions(), self._contexts.get(side)
        if loaded is not None and versions in (None, loaded[0]):
            return loaded[1]
        try:
            context = make()
        except CredentialsError:
            # The files are being replaced, in sequence.
            if loaded is None:
                raise
            return loaded[1]
        if versions is not None:
            self._contexts[side] = versions, context
        return context

    def _make_server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        # A session ticket that the client has not read when it closes turns the close into a reset, with
        # which the server loses the last batches. Connections are long, so that tickets would save nothing.
        context.num_tickets = 0
        return self._load(context)

    def make_client_context(self, *protocols: str) -> ssl.SSLContext:
        """Return new settings of a connection, for application protocols (ALPN) such as "h2"."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(protocols)
        return self._load(context)

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the authority's certificate, our certificate and our key, as PEM."""
        return self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes()

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        restrict(context)
        file = self.ca
        try:
            context.load_verify_locations(self.ca)
            file = self.certificate
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            if not isinstance(error, ssl.SSLError):
                raise CredentialsError(f"{file}: {error.strerror}") from None
            reason = (error.reason or "unknown").lower().replace("_", " ")
            raise CredentialsError(
                f"{file}: cannot be used ({reason}); expected a certificate in PEM, and its key in "
                f"{KEY_FILE}: issue the certificate again (`cs_system certs issue --force`)"
            ) from None
        return context


def restrict(context: ssl.SSLContext) -> None:
    """Allow TLS 1.3 only, and let the kernel encrypt where it can."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A peer that has shut down its side of the socket may still be answered: all protocols of ours have
    # frames that end them, so a cut stream is not taken for a complete one.
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    if ssl.OPENSSL_VERSION_INFO >= (3, 0):
        context.options |= _OP_ENABLE_KTLS


def pinned_context() -> ssl.SSLContext:
    """Return settings of a connection to a server whose certificate is known by its digest.

    The caller compares `digest` of the peer's certificate after the handshake, before it sends anything.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    restrict(context)
    return context


def digest(certificate: bytes) -> str:
    """Return the digest of a certificate in binary form (DER)."""
    return hashlib.sha256(certificate).hexdigest()


def find_credentials(given: Path | None, environment: Mapping[str, str]) -> Credentials | None:
    """Return the credentials in the given directory, else those that the environment names; None without.

    Raises:
        CredentialsError: the files in this directory cannot be used.
    """
    named = environment.get(CERTS_VARIABLE, "").strip()
    directory = given or (Path(named).expanduser() if named else None)
    return None if directory is None else Credentials(directory)


# -- errors ----------------------------------------------------------------------------------------------

# X509_V_ERR_* of OpenSSL.
_VERIFICATION = {
    9: "its certificate is not valid yet: compare the clocks of both machines and of the authority's",
    10: (
        "its certificate has expired: issue it again (`cs_system certs issue --force`), unless the clock of "
        "this machine is wrong"
    ),
    18: "its certificate is self-signed, expected one of the authority in our ca.pem",
    19: "its certificate is of another authority than our ca.pem",
    20: "its certificate is of another authority than our ca.pem",
    21: "its certificate is of another authority than our ca.pem",
    26: "its certificate is that of a user, expected that of a CS system",
}
_HOST_MISMATCH = (62, 64)

_PLAIN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")

# Reasons of OpenSSL for errors that another attempt does not remove: alerts of the peer, and foreign bytes.
_REASONS = {
    "WRONG_VERSION_NUMBER": "it does not use TLS",
    "HTTP_REQUEST": "it does not use TLS, and sent an HTTP request",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it sent no certificate",
    "UNSUPPORTED_PROTOCOL": "it offers only versions of TLS before 1.3",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a certificate, and got none",
    "TLSV1_ALERT_UNKNOWN_CA": "it refuses our certificate, which is of another authority than its own",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "our certificate has expired: issue it again (`cs_system certs issue --force`), unless the clock of "
        "its machine is wrong"
    ),
    # Also for a certificate that is not valid yet.
    "SSLV3_ALERT_BAD_CERTIFICATE": "it refuses our certificate; compare the clocks of both machines",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it refuses our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it refuses our certificate for this purpose",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it accepts only other versions of TLS than 1.3",
    "TLSV1_ALERT_ACCESS_DENIED": "it refuses our identity",
}


def is_plain(error: ssl.SSLError) -> bool:
    """Return True if a handshake failed because the peer does not use TLS."""
    return error.reason in _PLAIN


def explain(error: ssl.SSLError, host: str = "") -> str | None:
    """Describe a peer with which no TLS connection is possible; None for errors that may be temporary.

    Args:
        error: Error of a handshake, or of the first read after it: the alert of a server that refuses our
            certificate comes after the handshake, which TLS 1.3 ends first for the client.
        host: The host to which this process has connected; empty on the accepting side.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_MISMATCH:
            return (
                f"its certificate is not for the host {host!r}: connect by a name or address in it, or issue "
                "it again with this one (`cs_system certs issue --system`)"
            )
        return _VERIFICATION.get(error.verify_code, f"its certificate is invalid: {error.verify_message}")
    return _REASONS.get(error.reason or "")

"""Who may connect to a CS system: certificates of its servers and clients, and the roles of callers.

Servers listen on loopback by default, which needs no certificates. Any other address needs those of a system,
or the explicit choice to do without (`--insecure`). Clients use TLS whenever they have certificates, except
with systems on the loopback address that do not use it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cs_system.address import is_loopback
from cs_system.errors import BadOptionError, NotAllowedError
from cs_toolkit.network.connection import Connection, PeerGoneError
from cs_toolkit.security.identity import CERTS_VARIABLE
from cs_toolkit.security.tls import Credentials, CredentialsError, find_credentials
from cs_toolkit.security.tls_connection import TlsConnection

log = logging.getLogger("cs_system.server")

_HOW = (
    f"give the certificate of this system (--certs=DIR or {CERTS_VARIABLE}; `cs_system certs` makes one), or "
    "--insecure on a trusted network"
)


def server_credentials(
    host: str,
    certs: Path | None,
    insecure: bool,
    environment: Mapping[str, str],
    names: Sequence[str] = (),
    option: str = "--host",
) -> Credentials | None:
    """Return the credentials of a server, None for one without TLS; log how it is protected.

    Args:
        host: Address that it listens on.
        certs: Directory of the credentials, if the user gives one.
        insecure: The user allows connections from other machines without TLS.
        environment: May name a directory of credentials.
        names: Host names or addresses by which clients reach the server, as far as they are known.
        option: The option that names the address.

    Raises:
        BadOptionError: it can be reached from other machines without TLS, or the certificate cannot be used.
    """
    if insecure:
        if certs is not None:
            raise BadOptionError("--certs with --insecure: expected only one of them")
        if not is_loopback(host):
            log.warning(
                "--insecure on %s: nothing is encrypted, and anyone who reaches this address can use the "
                "system; only the secrets of jobs are proved",
                host,
            )
        return None
    try:
        credentials = find_credentials(certs, environment)
    except CredentialsError as error:
        raise BadOptionError(str(error)) from None
    if credentials is None:
        if is_loopback(host):
            return None
        raise BadOptionError(f"{option}={host}: other machines reach this address; {_HOW}")
    # Only here: a system without certificates needs no X.509.
    from cs_toolkit.security.certificates import EXPIRY_NOTICE_DAYS, CertificateError, read_certificate

    try:
        certificate = read_certificate(credentials.certificate)
    except CertificateError as error:
        raise BadOptionError(str(error)) from None
    if certificate.identity.role != "system":
        if certs is None and is_loopback(host):
            return None  # the user's own certificate, which is for connections to other systems
        raise BadOptionError(
            f"{credentials.certificate}: got the certificate of {certificate.identity}, expected that of a "
            "CS system (`cs_system certs issue --system=HOST`)"
        )
    days = certificate.days_left()
    if days < 0:
        raise BadOptionError(
            f"{credentials.certificate}: has expired on {certificate.not_after:%Y-%m-%d}; issue it again "
            "(`cs_system certs issue --force`), unless the clock of this machine is wrong"
        )
    if datetime.now(UTC) < certificate.not_before:
        raise BadOptionError(
            f"{credentials.certificate}: is valid only from {certificate.not_before:%Y-%m-%d %H:%M} UTC on; "
            "compare the clock of this machine with that of the authority's"
        )
    level = logging.WARNING if days < EXPIRY_NOTICE_DAYS else logging.INFO
    log.log(
        level,
        "TLS with the certificate of %s for %s, which ends on %s",
        certificate.identity,
        ", ".join(certificate.hosts),
        f"{certificate.not_after:%Y-%m-%d}",
    )
    foreign = [name for name in names if name not in certificate.hosts]
    if foreign:
        log.warning(
            "the certificate does not have %s: clients that connect by this name will refuse it; issue it "
            "again with all names (`cs_system certs issue --system=HOST,...`)",
            ", ".join(foreign),
        )
    try:
        _ = credentials.server_context  # fails here rather than in the first connection
    except CredentialsError as error:
        raise BadOptionError(str(error)) from None
    return credentials


def grpc_server_credentials(credentials: Credentials) -> Any:
    """Return the credentials of a control plane, whose clients need a certificate of the same authority."""
    import grpc  # lazy, here and below: wafers and MemoryX do without it

    loaded = credentials.versions()

    def configuration() -> Any:
        authority, certificate, key = credentials.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def renewed() -> Any:
        """Return the configuration when the files have been replaced; gRPC asks for each connection."""
        nonlocal loaded
        versions = credentials.versions()
        if versions in (None, loaded):
            return None
        try:
            credentials.make_client_context()  # fails while only some of the files have been replaced
        except CredentialsError:
            return None
        loaded = versions
        log.info("using the new certificate in %s", credentials.directory)
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), renewed, require_client_authentication=True)


def grpc_channel_credentials(credentials: Credentials) -> Any:
    """Return the credentials of a client of the control plane."""
    import grpc

    authority, certificate, key = credentials.read()
    return grpc.ssl_channel_credentials(authority, key, certificate)


def client_credentials() -> Credentials | None:
    """Return the credentials of this process as a client; None if it has none.

    Raises:
        CredentialsError: their files cannot be used.
    """
    return find_credentials(None, os.environ)


def internal_credentials(host: str) -> Credentials | None:
    """Return the credentials of a server for other CS systems and their parts, None without TLS.

    Args:
        host: Address that it listens on; on loopback the parts of a system use no TLS.

    Raises:
        CredentialsError: their files cannot be used.
    """
    return None if is_loopback(host) else client_credentials()


def check_system_peer(connection: Connection) -> None:
    """Check that the peer is a CS system or a part of one; without TLS every peer is accepted.

    Raises:
        PeerGoneError: its certificate is that of a user.
    """
    if isinstance(connection, TlsConnection) and connection.peer.role != "system":
        raise PeerGoneError(f"its certificate is that of {connection.peer}, expected that of a CS system")


# -- callers of the control plane -------------------------------------------------------------------------


@dataclass(frozen=True)
class Caller:
    """The caller of an RPC.

    Attributes:
        name: Name in the certificate; empty without TLS.
        is_admin: The caller may administer the system.
    """

    name: str
    is_admin: bool

    @classmethod
    def of(cls, peer: str, properties: Mapping[str, Iterable[bytes]]) -> Caller:
        """Return the caller of an RPC.

        Without TLS nobody is identified. Then callers on the system's own machine are administrators, as
        they can stop its process or are trusted with the machine, and others are users.

        Args:
            peer: The peer in the form of gRPC, such as `ipv4:127.0.0.1:4711`.
            properties: Properties of the connection's security.
        """
        for data in properties.get("x509_pem_cert", ()):
            from cs_toolkit.security.certificates import parse_certificate

            identity = parse_certificate(data).identity
            # A system is an administrator of itself, and of no other one: it is a user there.
            return cls(identity.name, identity.role == "admin")
        kind, _, rest = unquote(peer).partition(":")
        return cls("", kind == "unix" or is_loopback(rest.rpartition(":")[0].strip("[]")))

    def check_admin(self, action: str) -> None:
        """Check that the caller may administer the system.

        Raises:
            NotAllowedError: the caller is a user.
        """
        if not self.is_admin:
            raise NotAllowedError.of(self.name, action)

    def may_release(self, owner: str) -> bool:
        """Return True if the caller owns a reservation, or may administrate the system.

        Args:
            owner: Name of its owner's certificate; empty if the owner was not identified.
        """
        return self.is_admin or (bool(self.name) and self.name == owner)

    def check_owner(self, owner: str, action: str) -> None:
        """Check that the caller owns something, or may administer the system.

        Args:
            owner: Name of its owner's certificate; empty if the owner was not identified.
            action: The requested action, as a verb.

        Raises:
            NotAllowedError: it belongs to another user.
        """
        if not self.may_release(owner):
            raise NotAllowedError.of(self.name, action)


def caller_of(context: Any) -> Caller:
    """Return the caller of an RPC from its gRPC context."""
    return Caller.of(context.peer(), context.auth_context())

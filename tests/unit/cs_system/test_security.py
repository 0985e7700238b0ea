from __future__ import annotations

import socket
from pathlib import Path

import pytest

from cs_system.errors import NotAllowedError
from cs_system.security import Caller, check_system_peer, internal_credentials
from cs_toolkit.network.connection import Connection, PeerGoneError
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import TlsConnection
from tests.certificates import SiteCertificates

REMOTE = "ipv4:10.0.0.9:4711"


def caller(credentials: Credentials) -> Caller:
    return Caller.of(REMOTE, {"x509_pem_cert": [credentials.certificate.read_bytes()]})


def test_role_of_a_certificate(tmp_path: Path) -> None:
    site = SiteCertificates(tmp_path)
    assert caller(site.user) == Caller("alice", is_admin=False)
    assert caller(site.admin) == Caller("root", is_admin=True)
    assert caller(site.system) == Caller("cs1", is_admin=False)


@pytest.mark.parametrize(
    ("peer", "is_admin"),
    [
        ("ipv4:127.0.0.1:4711", True),
        ("ipv6:%5B::1%5D:4711", True),
        ("ipv6:%5b::1%5d:4711", True),
        ("ipv6:[::1]:4711", True),
        ("unix:/run/x", True),
        (REMOTE, False),
        ("ipv6:%5Bfd00::9%5D:4711", False),
        ("", False),
    ],
)
def test_caller_without_tls_is_administrator_on_the_same_machine(peer: str, is_admin: bool) -> None:
    assert Caller.of(peer, {}) == Caller("", is_admin)


def test_permissions() -> None:
    alice, bob, root = Caller("alice", False), Caller("bob", False), Caller("root", True)
    unknown = Caller("", False)
    root.check_admin("drain")
    root.check_owner("alice", "release the job of alice")
    alice.check_owner("alice", "release the job of alice")
    with pytest.raises(NotAllowedError, match="not allowed to drain: the certificate is that of alice; exp"):
        alice.check_admin("drain")
    with pytest.raises(NotAllowedError, match="the certificate is that of bob"):
        bob.check_owner("alice", "release the job of alice")
    # Two callers that are not identified are not the same user.
    with pytest.raises(NotAllowedError, match="the caller has no certificate"):
        unknown.check_owner("", "release a job")


class ConnectionFrom(TlsConnection):
    peer = Identity("", "user")

    def __init__(self, peer: Identity) -> None:
        self.peer = peer


def test_only_systems_are_parts_of_a_system() -> None:
    with socket.socket() as plain:
        check_system_peer(Connection(plain))
    check_system_peer(ConnectionFrom(Identity("cs1", "system")))
    with pytest.raises(PeerGoneError, match="that of user alice, expected that of a CS system"):
        check_system_peer(ConnectionFrom(Identity("alice", "user")))


def test_parts_of_a_system_use_no_tls_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CS_CERTS", str(SiteCertificates(tmp_path).system.directory))
    assert internal_credentials("127.0.0.1") is None
    assert internal_credentials("0.0.0.0") is not None

"""A CS system that uses TLS, and peers that it must refuse."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cs_stream.batches import BatchLayout
from cs_stream.errors import ConnectError
from cs_stream.sender import Sender, WorkerIdentity
from cs_system.client import SystemClient, connection, join_run, parse_address
from cs_system.errors import (
    CsSystemError,
    JoinTimeoutError,
    NotAllowedError,
    SystemUnreachableError,
    TlsFailedError,
)
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials
from tests.certificates import SiteCertificates
from tests.processes import wait_until
from tests.systems import RunningSystem, running_system

LAYOUT = BatchLayout.of([("x", "float32", (4,))])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteCertificates:
    return SiteCertificates(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def encrypted(site: SiteCertificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    flags = [f"--certs={site.system.directory}", "--threads=1"]
    with running_system(tmp_path_factory.mktemp("system"), flags) as system:
        yield system


def use(monkeypatch: pytest.MonkeyPatch, credentials: Credentials) -> None:
    monkeypatch.setenv("CS_CERTS", str(credentials.directory))


def ask(system: RunningSystem) -> str:
    with SystemClient(parse_address(system.address)) as client:
        return client.info().state


def refusal(system: RunningSystem) -> str:
    with pytest.raises(TlsFailedError) as refused:
        ask(system)
    return str(refused.value)


def test_user_of_the_site(
    encrypted: RunningSystem, site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, site.user)
    assert ask(encrypted) == "IDLE"
    assert "TLS with the certificate of system cs1" in encrypted.log()


def test_client_without_certificate(encrypted: RunningSystem) -> None:
    assert "it uses TLS, and you have named no certificate: expected" in refusal(encrypted)


def test_user_of_another_site(
    encrypted: RunningSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, SiteCertificates(tmp_path).user)
    assert "its certificate is of another authority than our ca.pem" in refusal(encrypted)


def test_user_whom_the_system_refuses(
    encrypted: RunningSystem, site: SiteCertificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = SiteCertificates(tmp_path).user
    eve.ca.write_bytes(site.user.ca.read_bytes())
    use(monkeypatch, eve)
    assert "closes the connection when it has got your certificate" in refusal(encrypted)
    use(monkeypatch, site.issue("bob", "user", expired=True))
    assert "that is valid now (`cs_system certs show`; compare the clocks" in refusal(encrypted)


def test_certificate_of_another_host(
    site: SiteCertificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, site.user)
    flags = ["--host=127.0.0.2", f"--certs={site.system.directory}", "--advertise=127.0.0.2"]
    with running_system(tmp_path, flags) as system:
        assert "its certificate is not for the host '127.0.0.2': connect by a name" in refusal(system)
        assert "the certificate does not have 127.0.0.2" in system.log()


def test_system_without_tls_on_another_address(
    site: SiteCertificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, site.user)
    with running_system(tmp_path) as system:
        assert ask(system) == "IDLE"  # loopback needs no TLS
        monkeypatch.setattr("cs_system.client.probe.is_loopback", lambda host: False)
        assert "it does not use TLS: expected a system started with --certs" in refusal(system)


def test_a_system_that_hangs_up_in_the_handshake(
    site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, site.user)
    monkeypatch.setattr("cs_system.client.probe.is_loopback", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(SystemUnreachableError, match="closed in the handshake, as by a system with"):
                SystemClient(parse_address(f"127.0.0.1:{listener.getsockname()[1]}"))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--certs=nowhere"], "nowhere/ca.pem: No such file"),
        (["--certs={alice}"], "got the certificate of user alice, expected that of a CS system"),
        (["--certs={old}"], "has expired on"),
        (["--certs={early}"], "compare the clock of this machine with that of the authority's"),
        (["--certs={cs1}", "--insecure"], "expected only one of them"),
        (["--host=0.0.0.0"], "other machines reach this address; give the certificate of this system"),
    ],
)
def test_refused_options(site: SiteCertificates, flags: list[str], text: str) -> None:
    directories = {
        "alice": site.user.directory,
        "cs1": site.system.directory,
        "old": site.issue("old", "system", expired=True).directory,
        "early": site.issue("early", "system", early=True).directory,
    }
    command = [sys.executable, "-m", "cs_system", "serve", "--port=0", *flags]
    done = subprocess.run(
        [word.format(**directories) for word in command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_user_certificate_of_the_environment_leaves_loopback_as_it_is(
    site: SiteCertificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, site.user)
    with running_system(tmp_path) as system:
        assert "TLS" not in system.log()
        monkeypatch.delenv("CS_CERTS")
        assert ask(system) == "IDLE"


# -- the data plane


def stream(system: RunningSystem, credentials: Credentials | None) -> str:
    host, port = system.data_address.split(":")
    identity = WorkerIdentity("job", "secret", 0, 1, "digest")
    sender = Sender((host, int(port)), identity, LAYOUT, connect_timeout_s=0.5, credentials=credentials)
    with pytest.raises(ConnectError) as refused:
        sender.run(lambda skip: iter(()))
    return str(refused.value)


def test_data_plane_uses_tls(encrypted: RunningSystem, site: SiteCertificates, tmp_path: Path) -> None:
    assert "no run of job 'job' is open" in stream(encrypted, site.user)
    assert "of another authority than our ca.pem" in stream(encrypted, SiteCertificates(tmp_path).user)
    stream(encrypted, None)
    assert "TLS: it does not use TLS" in encrypted.log()


def test_silent_and_slow_peers_delay_no_user(
    encrypted: RunningSystem, site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown peers are connected to both ports, and in the middle of a handshake, while a user is served."""
    use(monkeypatch, site.user)
    addresses = [encrypted.address.split(":"), encrypted.data_address.split(":")]
    peers = [socket.create_connection((host, int(port))) for host, port in addresses for _ in range(20)]
    for peer in peers[::2]:
        peer.send(b"\x16\x03\x01\x02\x00\x01\x00")
    began_s = time.monotonic()
    assert ask(encrypted) == "IDLE"
    assert "no run of job 'job' is open" in stream(encrypted, site.user)
    assert time.monotonic() - began_s < 5.0
    for peer in peers:
        peer.close()


def test_flood_of_damaged_handshakes(
    encrypted: RunningSystem, site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, site.user)
    for port in (encrypted.address, encrypted.data_address):
        host, _, number = port.rpartition(":")
        for _ in range(50):
            with socket.create_connection((host, int(number))) as peer:
                peer.sendall(b"\x16\x03\x01\x02\x00" + os.urandom(512))
    assert ask(encrypted) == "IDLE"


def test_control_plane_offers_version_1_3(encrypted: RunningSystem, site: SiteCertificates) -> None:
    host, _, port = encrypted.address.rpartition(":")
    context = site.user.make_client_context("h2")
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        assert connection.version() == "TLSv1.3"
        assert connection.selected_alpn_protocol() == "h2"
    with socket.create_connection((host, int(port))) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="cs9.example")


def test_silent_connection_of_the_control_plane_is_closed(system: RunningSystem) -> None:
    """Without TLS too: the handshake of HTTP/2 has a limit of 10 s."""
    host, _, port = system.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20.0) as peer:
        began_s = time.monotonic()
        while peer.recv(4096):
            pass
        assert 8.0 < time.monotonic() - began_s < 15.0


def test_renewed_certificate_is_used_without_a_restart(
    site: SiteCertificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its files are replaced, and for both planes."""
    own = site.issue("cs7", "system")
    with running_system(tmp_path, [f"--certs={own.directory}"]) as system:

        def names() -> list[str]:
            found = []
            for address in (system.address, system.data_address):
                host, _, port = address.rpartition(":")
                with (
                    socket.create_connection((host, int(port))) as plain,
                    site.user.make_client_context("h2").wrap_socket(plain, server_hostname=host) as peer,
                ):
                    found.append(Identity.of_peer(peer.getpeercert() or {}).name)
            return found

        assert names() == ["cs7", "cs7"]
        renewed = site.issue("cs8", "system")
        own.certificate.write_bytes(renewed.certificate.read_bytes())
        assert names() == ["cs7", "cs7"]  # the key is still that of the old one
        own.key.write_bytes(renewed.key.read_bytes())
        assert names() == ["cs8", "cs8"]
        use(monkeypatch, site.user)
        assert ask(system) == "IDLE"
        assert "using the new certificate in" in system.log()


# -- roles


def test_user_releases_only_the_own_job(
    encrypted: RunningSystem, site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = parse_address(encrypted.address)

    def act(credentials: Credentials, action: Callable[[SystemClient], object]) -> object:
        use(monkeypatch, credentials)
        with SystemClient(address) as client:
            return action(client)

    alice, bob, root = site.user, site.issue("bob", "user"), site.admin
    use(monkeypatch, alice)
    with SystemClient(address) as client, client.reserve("job-1", "secret"):
        with pytest.raises(NotAllowedError, match=r"release job job-1 of alice@.*certificate is that of bob"):
            act(bob, lambda other: other.release("job-1"))
        assert ask(encrypted) == "RESERVED"
        name, owner = act(alice, lambda own: own.release("job-1"))  # type: ignore[misc]
        assert (name, owner.partition("@")[0]) == ("job-1", "alice")
    use(monkeypatch, alice)
    with SystemClient(address) as client, client.reserve("job-2", "secret"):
        act(root, lambda admin: admin.release("job-2"))
        assert ask(encrypted) == "IDLE"


def test_jobs_of_two_users_with_one_name(
    encrypted: RunningSystem, site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of one user neither refuses the workers of the other nor keeps him from releasing his own."""
    address = parse_address(encrypted.address)
    use(monkeypatch, site.issue("bob", "user"))
    with ExitStack() as stack:
        bob = stack.enter_context(SystemClient(address))
        stack.enter_context(bob.reserve("job-1", "secret of bob"))
        use(monkeypatch, site.user)
        with pytest.raises(JoinTimeoutError, match="the system is held by job-1"):
            join_run(address, "job-1", "secret of alice", timeout_s=0.5)
        chief, client = (stack.enter_context(SystemClient(address)) for _ in range(2))
        ended: list[CsSystemError] = []

        def queue() -> None:
            try:
                chief.reserve("job-1", "secret of alice", wait=True)
            except CsSystemError as error:
                ended.append(error)

        thread = threading.Thread(target=queue)
        thread.start()
        wait_until(lambda: len(client.info().queue) == 1)
        assert client.release("job-1")[1].startswith("alice@")
        thread.join()
        assert "released by alice" in str(ended[0])
        assert client.info().queue == ()
        assert client.info().run is not None


def test_only_administrators_change_what_the_system_takes(
    encrypted: RunningSystem, site: SiteCertificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for credentials in (site.user, site.system):
        use(monkeypatch, credentials)
        with (
            SystemClient(parse_address(encrypted.address)) as client,
            pytest.raises(NotAllowedError, match="not allowed to change the jobs that the system takes"),
        ):
            client.set_admission(drained=True)
    use(monkeypatch, site.admin)
    with SystemClient(parse_address(encrypted.address)) as client:
        client.set_admission(drained=True)
        client.set_admission(drained=False)


def test_connection_to_another_machine_without_tls_warns_once(
    system: RunningSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection._warn_unencrypted.cache_clear()  # other tests have connected to the address
    monkeypatch.setattr("cs_system.client.connection.is_loopback", lambda host: False)
    ask(system)
    ask(system)
    warnings = [text for text in caplog.messages if "are not encrypted" in text]
    assert len(warnings) == 1
    assert f"the connections to the CS system at {system.address}" in warnings[0]

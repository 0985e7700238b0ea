"""Connections with TLS over a socket pair of loopback."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cs_toolkit.network.connection import Connection, PeerGoneError, PeerSilentError, listen
from cs_toolkit.network.connection import connect as wire_connect
from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials
from cs_toolkit.security.tls_connection import TlsConnection, TlsError, accept, connect
from tests.certificates import SiteCertificates


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteCertificates:
    return SiteCertificates(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def system(site: SiteCertificates) -> Credentials:
    return site.system


@pytest.fixture(scope="module")
def user(site: SiteCertificates) -> Credentials:
    return site.user


class Pair:
    """A listener whose connections are accepted in another thread."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials
        self.listener = listen("127.0.0.1", 0)
        self.listener.settimeout(10.0)
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        self._pool = ThreadPoolExecutor(1)

    def accept(self, serve: Callable[[Connection], object] | None = None, limit_s: float = 5.0) -> object:
        def run() -> object:
            sock, _ = self.listener.accept()
            connection = accept(sock, self._credentials)
            try:
                connection.handshake(limit_s)
                return connection if serve is None else serve(connection)
            except BaseException:
                connection.close()
                raise

        return self._pool.submit(run)

    def close(self) -> None:
        self.listener.close()
        self._pool.shutdown()


@pytest.fixture
def pair(system: Credentials) -> Iterator[Pair]:
    pair = Pair(system)
    yield pair
    pair.close()


def connected(pair: Pair, user: Credentials) -> tuple[TlsConnection, TlsConnection]:
    accepted = pair.accept()
    client = connect(pair.address, 5.0, user)
    server = accepted.result()  # type: ignore[attr-defined]
    assert isinstance(client, TlsConnection)
    assert isinstance(server, TlsConnection)
    return client, server


def test_both_sides_know_the_identity_of_the_other(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    with client, server:
        assert server.peer == Identity("alice", "user")
        assert client.peer == Identity("cs1", "system")
        assert client._tls.version() == "TLSv1.3"


def test_large_and_small_buffers_arrive_in_order(pair: Pair, user: Credentials) -> None:
    sizes = [0, 1, 64, 16383, 16384, 16385, 300_000, 3, 5_000_000, 0, 7]
    sent = [os.urandom(size) for size in sizes]
    client, server = connected(pair, user)
    with client, server:
        sender = threading.Thread(target=client.send, args=(sent,))
        sender.start()
        got = [bytearray(size) for size in sizes]
        server.receive([memoryview(buffer) for buffer in got])
        sender.join()
    assert got == sent


def test_decrypted_bytes_are_received_ahead(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    ahead = memoryview(bytearray(8))
    with client, server:
        client.send([b"abc", b"defgh"])
        got = [memoryview(bytearray(3))]
        assert server.receive_ahead(got, ahead) == 5
        assert (bytes(got[0]), bytes(ahead[:5])) == (b"abc", b"defgh")
        client.send([b"ijk"])
        assert server.receive_ahead(got, ahead) == 0
        assert not server.has_received(1)


def test_both_sides_send_and_receive_at_the_same_time(pair: Pair, user: Credentials) -> None:
    data = os.urandom(8 << 20)
    client, server = connected(pair, user)
    got = {side: bytearray(len(data)) for side in (client, server)}
    with client, server:
        threads = [
            *(threading.Thread(target=side.send, args=([data],)) for side in (client, server)),
            *(threading.Thread(target=side.receive, args=([memoryview(got[side])],)) for side in got),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
    assert got[client] == data
    assert got[server] == data


def test_last_bytes_arrive_when_the_sender_closes_at_once(pair: Pair, user: Credentials) -> None:
    data = os.urandom(1 << 20)
    for _ in range(20):
        client, server = connected(pair, user)
        with server:
            sender = threading.Thread(target=lambda c=client: (c.send([data]), c.close()))  # type: ignore[misc]
            sender.start()
            got = bytearray(len(data))
            server.receive([memoryview(got)])
            with pytest.raises(PeerGoneError, match="the connection was closed"):
                server.receive_some(memoryview(bytearray(1)))
            sender.join()
        assert got == data


def test_half_closed_connection_still_receives(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    with client, server:
        client.send([b"last"])
        client.shut_down(socket.SHUT_WR)
        got = bytearray(4)
        server.receive([memoryview(got)])
        with pytest.raises(PeerGoneError):
            server.receive_some(memoryview(bytearray(1)))
        server.send([b"answer"])
        answer = bytearray(6)
        client.receive([memoryview(answer)])
    assert (got, answer) == (b"last", b"answer")


def test_time_limits(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    with client, server:
        client.limit_receive(0.05)
        with pytest.raises(PeerSilentError, match="not heard within the time limit"):
            client.receive_some(memoryview(bytearray(1)))
        with pytest.raises(PeerSilentError):
            client.receive([memoryview(bytearray(1))], time.monotonic() + 0.05)
        client.limit_send(0.05)
        with pytest.raises(PeerSilentError, match="took nothing"):
            client.send([bytes(64 << 20)])
        assert not client.send_now(b"more")


def test_time_limits_with_a_function_that_decides(pair: Pair, user: Credentials) -> None:
    """As of `Connection.on_timeout`: the wait is repeated until the function raises."""
    client, server = connected(pair, user)
    calls: list[int] = []

    def decide() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise PeerSilentError("long enough")

    with client, server:
        client.on_timeout = decide
        client.limit_receive(0.02)
        with pytest.raises(PeerSilentError, match="long enough"):
            client.receive_some(memoryview(bytearray(1)))
        calls.clear()
        client.limit_send(0.02)
        with pytest.raises(PeerSilentError, match="long enough"):
            client.send([bytes(64 << 20)])
    assert len(calls) == 3


def test_shutting_down_wakes_a_blocked_thread(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    with client, server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.receive_some, memoryview(bytearray(1)))
        time.sleep(0.05)
        client.shut_down()
        with pytest.raises(PeerGoneError):
            waiting.result(5.0)


def test_another_thread_may_close_it_before_a_wait(
    pair: Pair, user: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = connected(pair, user)
    poll = select.poll

    def close_first() -> select.poll:
        client.close()
        return poll()

    monkeypatch.setattr(select, "poll", close_first)
    with server, pytest.raises(PeerGoneError, match="the connection was closed"):
        client.receive_some(memoryview(bytearray(10)))


def test_end_of_the_stream_is_visible_to_poll(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    with client:
        poller = select.poll()
        poller.register(client, select.POLLRDHUP)
        assert not poller.poll(0)
        server.close()
        assert poller.poll(5000)


# -- peers that are refused


def failure(call: Callable[[], object]) -> str:
    try:
        call()
    except (TlsError, PeerGoneError, PeerSilentError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refusals(pair: Pair, client: Credentials) -> tuple[str, str]:
    """Return the errors of client and server; the server's alert reaches the client at its first read."""
    accepted = pair.accept()

    def talk() -> None:
        with connect(pair.address, 5.0, client) as connection:
            connection.receive_some(memoryview(bytearray(1)), time.monotonic() + 5)

    def serve() -> None:
        accepted.result().close()  # type: ignore[attr-defined]

    return failure(talk), failure(serve)


def test_other_authority(pair: Pair, tmp_path: Path) -> None:
    client, server = refusals(pair, SiteCertificates(tmp_path).user)
    assert client == "TlsError: TLS: its certificate is of another authority than our ca.pem"
    assert server.startswith("TlsError: TLS: it refuses our certificate, which is of another authority")


def test_user_of_another_authority_that_trusts_ours(pair: Pair, user: Credentials, tmp_path: Path) -> None:
    eve = SiteCertificates(tmp_path).user
    eve.ca.write_bytes(user.ca.read_bytes())
    client, server = refusals(pair, Credentials(eve.directory))
    assert client.startswith("TlsError: TLS: it refuses our certificate, which is of another authority")
    assert server == "TlsError: TLS: its certificate is of another authority than our ca.pem"


def test_expired_user(pair: Pair, site: SiteCertificates) -> None:
    client, server = refusals(pair, site.issue("bob", "user", expired=True))
    assert client.startswith("TlsError: TLS: our certificate has expired: issue it again")
    assert client.endswith("unless the clock of its machine is wrong")
    assert server.startswith("TlsError: TLS: its certificate has expired: issue it again")
    assert server.endswith("unless the clock of this machine is wrong")


def test_expired_system(site: SiteCertificates, user: Credentials) -> None:
    pair = Pair(site.issue("cs2", "system", expired=True))
    client, server = refusals(pair, user)
    pair.close()
    assert client.startswith("TlsError: TLS: its certificate has expired")
    assert server.startswith("TlsError: TLS: our certificate has expired")


def test_certificate_of_a_machine_whose_clock_is_ahead(pair: Pair, site: SiteCertificates) -> None:
    client, server = refusals(pair, site.issue("bob", "user", early=True))
    assert client == "TlsError: TLS: it refuses our certificate; compare the clocks of both machines"
    assert server.startswith("TlsError: TLS: its certificate is not valid yet: compare the clocks")


def test_user_cannot_pose_as_a_system(site: SiteCertificates, user: Credentials) -> None:
    pair = Pair(site.issue("mallory", "user", ["localhost", "127.0.0.1"]))
    client, _ = refusals(pair, user)
    pair.close()
    assert client == "TlsError: TLS: its certificate is that of a user, expected that of a CS system"


def test_certificate_of_another_host(pair: Pair, user: Credentials) -> None:
    accepted = pair.accept()
    sock = wire_connect(pair.address, 5.0).detach()
    with (
        TlsConnection(sock, user.client_context, "cs9.example") as connection,
        pytest.raises(TlsError, match=r"its certificate is not for the host 'cs9\.example'"),
    ):
        connection.handshake(5.0)
    with pytest.raises(TlsError, match="it refuses our certificate"):
        accepted.result()  # type: ignore[attr-defined]


def test_client_without_certificate(pair: Pair, user: Credentials) -> None:
    accepted = pair.accept()
    context = ssl.create_default_context(cafile=str(user.ca))
    with (
        socket.create_connection(pair.address) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        pytest.raises(ssl.SSLError, match="certificate required"),
    ):
        sock.recv(1)
    with pytest.raises(TlsError, match="it sent no certificate"):
        accepted.result()  # type: ignore[attr-defined]


def test_older_version_of_tls(pair: Pair, user: Credentials) -> None:
    accepted = pair.accept()
    context = ssl.create_default_context(cafile=str(user.ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(pair.address) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    with pytest.raises(TlsError, match=r"only versions of TLS before 1\.3"):
        accepted.result()  # type: ignore[attr-defined]


def test_peer_without_tls(pair: Pair) -> None:
    accepted = pair.accept()
    with socket.create_connection(pair.address) as plain:
        plain.sendall(b"CSBS a plain frame of the data plane, long enough for a record")
        with pytest.raises(TlsError, match="it does not use TLS"):
            accepted.result()  # type: ignore[attr-defined]


def test_server_without_tls(user: Credentials) -> None:
    plain = Pair(None)
    accepted = plain.accept(lambda connection: connection.send([b"220 mail.example ready\r\n"]))
    with pytest.raises(TlsError, match="it does not use TLS"):
        connect(plain.address, 5.0, user)
    accepted.result()  # type: ignore[attr-defined]
    plain.close()


def test_silent_peer_ends_after_the_limit(pair: Pair) -> None:
    accepted = pair.accept(limit_s=0.1)
    with socket.create_connection(pair.address), pytest.raises(PeerSilentError, match="TLS handshake"):
        accepted.result()  # type: ignore[attr-defined]


def test_slow_peer_ends_after_the_limit(pair: Pair) -> None:
    accepted = pair.accept(limit_s=0.3)
    client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    with socket.create_connection(pair.address) as slow:
        for byte in client_hello:
            if accepted.done():  # type: ignore[attr-defined]
                break
            slow.send(bytes([byte]))
            time.sleep(0.05)
        with pytest.raises(PeerSilentError, match="TLS handshake"):
            accepted.result()  # type: ignore[attr-defined]


def test_flipped_byte_breaks_the_connection(pair: Pair, user: Credentials) -> None:
    client, server = connected(pair, user)
    with server:
        raw = client.detach()
        os.write(raw.fileno(), b"\x17\x03\x03\x00\x20" + os.urandom(32))
        with pytest.raises(PeerGoneError, match="the connection broke"):
            server.receive_some(memoryview(bytearray(1)), time.monotonic() + 5)
        raw.close()

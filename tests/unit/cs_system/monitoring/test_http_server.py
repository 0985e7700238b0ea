from __future__ import annotations

import errno
import gc
import http.client
import json
import socket
import ssl
import struct
import time
import weakref
from asyncio import sslproto
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cs_system.errors import PortInUseError
from cs_system.monitoring import http_server
from cs_system.monitoring.board import Board
from cs_system.monitoring.http_server import HEADERS, StatusServer
from tests.certificates import SiteCertificates
from tests.unit.cs_system.monitoring.snapshots import IDLE, INFO, NOW, SNAPSHOT


@pytest.fixture
def board() -> Board:
    return Board(SNAPSHOT)


@pytest.fixture
def server(board: Board, monkeypatch: pytest.MonkeyPatch) -> Iterator[StatusServer]:
    monkeypatch.setattr(http_server, "UPDATE_EVERY_S", 0.05)
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(http_server, "MAX_PAGES", 2)
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 6)
    with closing(StatusServer(board, "127.0.0.1", 0)) as running:
        yield running


def get(server: StatusServer, path: str, method: str = "GET", **headers: str) -> tuple[Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with closing(connection):
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read().decode()


def open_events(server: StatusServer) -> tuple[socket.socket, Any]:
    """Open live updates; returns the connection and a reader of its lines."""
    connection = socket.create_connection(("127.0.0.1", server.port), 10)
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection, connection.makefile("r", encoding="utf-8")


def next_event(lines: Any) -> dict[str, Any]:
    for line in lines:
        if line.startswith("data: "):
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return event
    raise AssertionError("the stream ended")


def wait_until(condition: Any, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "content_type", "text"),
    [
        ("/", "text/html", "job-7"),
        ("/status.css", "text/css", "color-scheme"),
        ("/status.js", "text/javascript", "EventSource"),
        ("/status.json", "application/json", '"step":1200'),
        ("/metrics", "text/plain", "cs_system_steps_total 5000.0"),
        ("/healthz", "text/plain", "ok"),
    ],
)
def test_every_answer_has_the_security_headers_and_no_cookie(server, path, content_type, text):
    response, body = get(server, path)
    assert response.status == 200
    assert response.getheader("content-type").startswith(content_type)
    assert text in body
    assert {name: response.getheader(name) for name in HEADERS} == HEADERS
    assert response.getheader("set-cookie") is None
    assert response.getheader("server") is None


def test_errors_have_the_security_headers_too(server):
    response, _ = get(server, "/../../etc/passwd")
    assert response.status == 404
    assert response.getheader("content-security-policy") == HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9080", 200),
        ("127.0.0.1", 200),
        ("[::1]:9080", 200),
        ("site.example", 421),
        ("127.0.0.1.site.example:9080", 421),
        ("[", 421),
    ],
)
def test_a_page_on_loopback_answers_no_other_host(server, host, status):
    assert get(server, "/status.json", Host=host)[0].status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_page_is_read_only(server, method):
    assert get(server, "/", method)[0].status == 405


def test_metrics_come_in_the_format_that_prometheus_asks_for(server):
    response, body = get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert response.getheader("content-type").startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_live_updates_have_only_the_sections_that_change(server, board):
    connection, lines = open_events(server)
    with connection:
        assert set(next_event(lines)["sections"]) == set(http_server.Page().sections(SNAPSHOT))
        board.publish(replace(SNAPSHOT, info=replace(INFO, state="PROGRAMMING")))
        event = next_event(lines)
        while not event["sections"]:
            event = next_event(lines)
        assert set(event["sections"]) == {"state"}
        assert event["title"].startswith("Programming")
        board.publish(replace(IDLE, time=NOW + 1))
        while "workers" not in event["sections"]:
            event = next_event(lines)
        assert "No input is open" in event["sections"]["workers"]


def test_the_number_of_live_pages_is_limited(server):
    streams = [open_events(server) for _ in range(2)]
    for _, lines in streams:
        next_event(lines)
    response, body = get(server, "/events")
    assert (response.status, response.getheader("retry-after")) == (503, "30")
    assert "2 pages are open already" in body
    assert get(server, "/metrics")[0].status == 200
    for connection, lines in streams:
        lines.close()
        connection.close()
    wait_until(lambda: _is_served(server))


def _is_served(server: StatusServer) -> bool:
    connection, lines = open_events(server)
    with connection:
        return "200" in lines.readline()


def test_a_browser_that_takes_nothing_is_disconnected(server, board):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    workers = tuple(replace(INFO.run.workers[0], worker=index) for index in range(250))
    deadline = time.monotonic() + 20
    step = 0
    with connection:
        while len(server._server.server_state.connections) == 0:
            time.sleep(0.01)
        # Large updates that differ each time fill the buffers on the way.
        while server._server.server_state.connections:
            assert time.monotonic() < deadline, "the slow browser is still connected"
            step += 1
            run = replace(INFO.run, step=step, workers=tuple(replace(w, batches_per_s=step) for w in workers))
            board.publish(replace(SNAPSHOT, info=replace(INFO, run=run)))
            time.sleep(0.02)


def test_a_connection_without_a_request_is_closed(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert connection.recv(100) == b""


def test_a_connection_whose_next_request_does_not_arrive_is_closed(board, monkeypatch):
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 1.0)
    with (
        closing(StatusServer(board, "127.0.0.1", 0)) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as connection,
        connection.makefile("rb") as answer,
    ):
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request)
        while answer.readline() != b"\r\n":
            pass
        assert answer.read(3) == b"ok\n"
        connection.sendall(request[:9])
        assert answer.read() == b""


def test_connections_over_the_limit_are_closed_immediately(server, monkeypatch):
    monkeypatch.setattr(http_server, "CLIENT_TIMEOUT_S", 60.0)
    idle = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(6)]
    wait_until(lambda: len(server._server.server_state.connections) == 6)
    with socket.create_connection(("127.0.0.1", server.port), 10) as another:
        assert another.recv(100) == b""
    assert len(server._server.server_state.connections) == 6
    for connection in idle:
        connection.close()
    wait_until(lambda: not server._server.server_state.connections)
    assert get(server, "/healthz")[0].status == 200


def test_requests_that_are_no_http_are_refused_without_a_line_in_the_log(server, caplog):
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"\x16\x03\x01" + bytes(200) + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    assert not caplog.records


def test_a_large_request_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert connection.recv(1000)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")


def test_the_server_ends_while_pages_are_open(board, monkeypatch):
    server = StatusServer(board, "127.0.0.1", 0)
    connection, lines = open_events(server)
    next_event(lines)
    server.close()
    wait_until(lambda: not server._thread.is_alive())
    connection.close()


def test_over_tls_only_certificates_of_the_site_see_the_page(board, tmp_path):
    site, other = SiteCertificates(tmp_path / "site"), SiteCertificates(tmp_path / "other")
    with closing(StatusServer(board, "127.0.0.1", 0, site.system)) as server:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=10, context=site.user.client_context
        )
        with closing(connection):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
        anonymous = ssl.create_default_context(cafile=str(site.user.ca))
        foreign = other.user.client_context
        foreign.load_verify_locations(site.user.ca)
        for context in (anonymous, foreign):
            refused = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
            with closing(refused), pytest.raises((ssl.SSLError, ConnectionError)):
                # With TLS 1.3 the refusal may come after the request.
                _ = (refused.request("GET", "/healthz"), refused.getresponse())


def _count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_idle_tls_handshakes_neither_keep_browsers_out_nor_use_up_descriptors(board, tmp_path, monkeypatch):
    site = SiteCertificates(tmp_path)
    context = site.user.client_context
    monkeypatch.setattr(http_server, "MAX_HANDSHAKES", 8)

    def check_answer(server: StatusServer) -> None:
        browser = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)
        with closing(browser):
            browser.request("GET", "/healthz")
            assert browser.getresponse().read() == b"ok\n"

    with closing(StatusServer(board, "127.0.0.1", 0, site.system)) as server, ExitStack() as stack:
        check_answer(server)
        wait_until(lambda: not server._server.server_state.connections)
        before = _count_descriptors()
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10)) for _ in range(40)
        ]
        for connection in idle[:32]:
            assert connection.recv(100) == b""
        wait_until(lambda: _count_descriptors() <= before + len(idle) + 8)
        check_answer(server)


def test_a_peer_that_resets_its_connection_in_the_handshake_does_not_keep_the_next_one_out(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_HANDSHAKES", 1)
    with closing(http_server._Listener(socket.create_server(("127.0.0.1", 0)).detach())) as listener:
        first = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.close()
        with closing(accepted), closing(socket.create_connection(listener.getsockname())) as second:
            sock, peer = listener.accept()
            sock.close()
            assert peer == second.getsockname()


def test_failed_handshakes_leave_no_memory(board, tmp_path, monkeypatch):
    monkeypatch.setattr(http_server, "_COLLECT_EVERY", 8)
    found: list[weakref.ref[Any]] = []
    make = sslproto.SSLProtocol.__init__

    def record(self: Any, *arguments: Any, **options: Any) -> None:
        found.append(weakref.ref(self))
        make(self, *arguments, **options)

    monkeypatch.setattr(sslproto.SSLProtocol, "__init__", record)
    with closing(StatusServer(board, "127.0.0.1", 0, SiteCertificates(tmp_path).system)) as server:
        gc.disable()
        try:
            for _ in range(64):
                with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
                    connection.shutdown(socket.SHUT_WR)
                    assert connection.recv(100) == b""
            assert len(found) == 64
            assert sum(each() is not None for each in found) <= 16
        finally:
            gc.enable()


def test_a_process_without_descriptors_logs_this_a_few_times(server, caplog, monkeypatch):
    monkeypatch.setattr(http_server, "_ACCEPT_PAUSE_S", 0.0)
    attempts = []

    def fail(listener: socket.socket) -> None:
        attempts.append(listener)
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(http_server.socket.socket, "accept", fail)
        with socket.create_connection(("127.0.0.1", server.port), 10):
            wait_until(lambda: len(attempts) > 50)
    assert 1 <= len(caplog.records) <= 10
    assert get(server, "/healthz")[0].status == 200


def test_the_page_uses_a_renewed_certificate(board, tmp_path):
    site = SiteCertificates(tmp_path)
    user = site.user.client_context

    def serial_number(server: StatusServer) -> str:
        with (
            socket.create_connection(("127.0.0.1", server.port), 10) as plain,
            user.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            certificate = encrypted.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])

    with closing(StatusServer(board, "127.0.0.1", 0, site.system)) as server:
        first = serial_number(server)
        assert serial_number(server) == first
        _ = site.system  # issues it again
        assert serial_number(server) != first


def test_a_port_in_use_is_named_with_its_option(server, board):
    with pytest.raises(PortInUseError, match="--http-port"):
        StatusServer(board, "127.0.0.1", server.port)

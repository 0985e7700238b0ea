"""Addresses at which there is no CS system."""

import socket
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest

from cs_system.client import SystemClient, parse_address
from cs_system.client.connection import Connection
from cs_system.client.probe import describe_answer, is_settings_frame
from cs_system.errors import NotACsSystemError, ProtocolMismatchError, SystemUnreachableError


def connect(host, port, timeout_s=2.0):
    SystemClient(parse_address(f"{host}:{port}"), timeout_s)


@pytest.fixture
def listener():
    """A port of loopback whose connections get an answer of the test's choice, or none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = []

        def answer(data, keep_open=True):
            def serve():
                connection, _ = server.accept()
                with connection:
                    connection.sendall(data)
                    # Ends when the client hangs up.
                    while keep_open and connection.recv(1024):
                        pass

            threads.append(threading.Thread(target=serve))
            threads[-1].start()
            return server.getsockname()[1]

        yield answer
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_nothing_listens():
    port = free_port()
    with pytest.raises(SystemUnreachableError) as refused:
        connect("127.0.0.1", port)
    assert str(refused.value) == (
        f"no CS system answers at 127.0.0.1:{port}: a TCP connection (waiting at most 2 s): "
        "Connection refused; check cs_ip, and that the system runs "
        "(`cs_system serve` starts a simulated one)"
    )
    assert refused.value.exit_code == 1


def test_an_unknown_host():
    with pytest.raises(SystemUnreachableError, match=r"looking up the name 'no-such-host\.invalid'"):
        connect("no-such-host.invalid", 9000)


def test_a_full_backlog_counts_as_no_answer():
    # A listener that never accepts, with its queue full: packets to it are dropped, as by a firewall.
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        try:
            for connection in waiting:
                connection.setblocking(False)
                connection.connect_ex(server.getsockname())
            with pytest.raises((SystemUnreachableError, NotACsSystemError)) as refused:
                connect("127.0.0.1", server.getsockname()[1], timeout_s=1.0)
            assert "no answer" in str(refused.value) or "did not answer" in str(refused.value)
        finally:
            for connection in waiting:
                connection.close()


@pytest.mark.parametrize(
    ("data", "keep_open", "text"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", True, "it is an SSH server (answer: b'SSH-2.0-OpenSSH_9.2p1"),
        (b"", True, "it accepted the connection and did not answer within 2 s"),
        (b"", False, "it accepted the connection and closed it without an answer"),
        (b"\x15\x03\x01\x00\x02\x02\x46\0\0", True, "it is a TLS server"),
        (b"\x00\x01", False, r"its answer begins with b'\x00\x01'"),
    ],
    ids=["ssh", "silent", "hangs up", "tls", "bytes"],
)
def test_a_listener_that_speaks_something_else(listener, data, keep_open, text):
    port = listener(data, keep_open)
    with pytest.raises(NotACsSystemError) as refused:
        connect("127.0.0.1", port)
    message = str(refused.value)
    assert message.startswith(f"127.0.0.1:{port} is not the control plane of a CS system: ")
    assert text in message or ("broke the connection" in message and data == b"")
    assert "check the port in cs_ip" in message


def test_an_http_server():
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(NotACsSystemError, match="it is a web server"):
            connect("127.0.0.1", server.server_port)
        thread.join(60)


def test_the_data_port(system):
    host, port = system.data_address.split(":")
    with pytest.raises(NotACsSystemError, match="is not the control plane of a CS system"):
        connect(host, port)


def grpc_server(handlers=()):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def test_a_grpc_server_of_another_service():
    server, port = grpc_server()
    try:
        with pytest.raises(NotACsSystemError, match="it speaks HTTP/2 and answers UNIMPLEMENTED"):
            connect("127.0.0.1", port)
    finally:
        server.stop(None).wait()


def test_a_system_of_a_newer_protocol():
    from cs_system.proto import cs_system_pb2 as pb

    newer = pb.SystemInfo(protocol=99, version="7.0")
    handler = grpc.unary_unary_rpc_method_handler(lambda *_: newer.SerializeToString())
    server, port = grpc_server(
        [grpc.method_handlers_generic_handler("cs_system.CsSystem", {"Info": handler})]
    )
    try:
        with pytest.raises(ProtocolMismatchError, match=r"the CS system speaks 99 \(toolkit 7\.0\)"):
            connect("127.0.0.1", port)
    finally:
        server.stop(None).wait()


def test_a_client_of_a_newer_protocol(system, monkeypatch):
    monkeypatch.setattr("cs_system.transport.PROTOCOL_VERSION", 98)
    Connection(parse_address(system.address), 2.0).close()  # it speaks the system's protocol, too
    monkeypatch.setattr("cs_system.transport.OLDEST_PROTOCOL", 97)
    with pytest.raises(ProtocolMismatchError, match=r"the client speaks control protocol 97 to 98 "):
        Connection(parse_address(system.address), 2.0)


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", True),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00rest", True),
        (b"\x00\x00\x06\x04\x00\x00\x00\x00\x01rest", False),
        (b"\x00\x00\x05\x04\x00\x00\x00\x00\x00rest", False),
        (b"\x00\x00\x06\x04\x00", False),
        (b"HTTP/1.1 400 Bad Request", False),
    ],
)
def test_first_bytes_of_http2(data, is_one):
    assert is_settings_frame(data) is is_one


def test_the_data_plane_is_recognised_by_its_frames():
    assert "the data plane of a CS system" in describe_answer(b"CSBS\x01\x06", False, 2.0)

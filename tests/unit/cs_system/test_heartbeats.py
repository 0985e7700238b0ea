import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cs_system.address import SystemAddress
from cs_system.client import join_run
from cs_system.client.connection import Connection
from cs_system.errors import ConnectionLostError
from cs_system.proto import cs_system_pb2 as pb
from cs_system.proto import cs_system_pb2_grpc
from cs_system.transport import PROTOCOL_VERSION, server_options
from cs_toolkit.network.liveness import PEER_TIMEOUT_VARIABLE

LOST = r"broke \(it has not answered for 3 s, except for pings\); see its log"


class StalledSystem(cs_system_pb2_grpc.CsSystemServicer):
    """A system that answers pings, and the first call only."""

    def __init__(self):
        self.is_over = threading.Event()

    def answer(self, request, context):
        return pb.SystemInfo(protocol=PROTOCOL_VERSION, nonce="nonce")

    def stall(self, request, context):
        self.is_over.wait()

    Info = answer
    Heartbeat = JoinRun = stall


@pytest.fixture
def address(monkeypatch):
    """The address of a stalled system, whose connections are ended after 3 s."""
    monkeypatch.setenv(PEER_TIMEOUT_VARIABLE, "1")
    system = StalledSystem()
    server = grpc.server(ThreadPoolExecutor(4), options=server_options(1.0))
    cs_system_pb2_grpc.add_CsSystemServicer_to_server(system, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield SystemAddress("127.0.0.1", port)
    system.is_over.set()
    server.stop(None).wait()


def test_a_call_that_has_stalled_ends(address, caplog):
    with pytest.raises(ConnectionLostError, match=LOST):
        join_run(address, "job", "token", 60.0)
    assert f"{address} has not answered for 1 s, except for pings; it counts as" in caplog.text
    assert "it counts as lost after 3 s" in caplog.text


def test_a_call_after_the_end_of_a_stalled_connection_gets_the_same_error(address):
    connection = Connection(address, 1.0)
    heartbeats = connection.start_heartbeats()
    heartbeats._thread.join(20.0)
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match=LOST):
            connection.call("Info", pb.InfoRequest())
    connection.close()

import os
import resource
import socket
import subprocess
import sys
from concurrent import futures

import grpc
import pytest

from cs_system import errors, transport
from cs_system.errors import CsSystemError, ProtocolMismatchError, SystemBugError, SystemBusyError, from_wire
from cs_system.transport import (
    PROTOCOL_VERSION,
    check_client,
    client_metadata,
    error_from_metadata,
    error_metadata,
    shorten,
    status_code,
)
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.subclasses import retrieve_all_subclasses
from tests.processes import wait_until


def test_an_error_arrives_as_the_class_that_was_raised():
    sent = SystemBusyError.of("job-7", 1_700_000_000.0)
    got = error_from_metadata(error_metadata(sent))
    assert type(got) is SystemBusyError
    assert str(got) == str(sent)
    assert got.job == "job-7"
    assert got.exit_code == 1


@pytest.mark.parametrize(("descriptors", "connections"), [(1024, 512), (1 << 20, 4096)])
def test_connections_leave_descriptors_for_the_data_plane(monkeypatch, descriptors, connections):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    options = dict(transport.server_options(60.0))
    assert options["grpc.max_allowed_incoming_connections"] == connections


def test_every_error_has_its_own_code():
    kinds = list(retrieve_all_subclasses(CsSystemError))
    assert len({kind.code for kind in kinds} | {CsSystemError.code}) == len(kinds) + 1
    for kind in kinds:
        got = from_wire(kind.code, "what happened", {"a": "b"})
        assert type(got) is kind
        assert (str(got), got.fields) == ("what happened", {"a": "b"})
        assert kind.exit_code in ((3,) if kind is SystemBugError else (1, 2))


def test_an_error_of_a_newer_server_is_not_lost():
    got = from_wire("melted", "the wafer melted", {})
    assert type(got) is CsSystemError
    assert str(got) == "the wafer melted"


def test_a_long_traceback_keeps_both_ends():
    text = "Traceback\n" + "x" * 100_000 + "\nValueError: bad record"
    got = error_from_metadata(error_metadata(errors.InputFailedError(text)))
    assert got is not None
    assert str(got).startswith("Traceback\n")
    assert str(got).endswith("ValueError: bad record")
    assert "characters left out" in str(got)
    assert len(str(got)) <= 12_000


def test_short_texts_stay_whole():
    assert shorten("abc", 3) == "abc"


def test_metadata_of_other_servers_is_no_error():
    assert error_from_metadata(None) is None
    assert error_from_metadata((("server", "other"),)) is None


def test_a_client_of_the_same_protocol_is_accepted():
    check_client(dict(client_metadata()))


@pytest.mark.parametrize(
    ("metadata", "got"),
    [
        ({"cs-protocol": "99", "cs-toolkit": "7.0"}, "99 (toolkit 7.0)"),
        ({"cs-protocol": "99", "cs-protocol-oldest": "98"}, "98 to 99 (toolkit unknown)"),
        ({"cs-protocol": "7", "cs-protocol-oldest": "6"}, "6 to 7 (toolkit unknown)"),
        ({"cs-protocol": "eight"}, "of unknown version (toolkit unknown)"),
        ({}, "of unknown version (toolkit unknown)"),
    ],
)
def test_a_client_of_another_protocol_is_refused_by_both_versions(metadata, got):
    with pytest.raises(ProtocolMismatchError) as refused:
        check_client(metadata)
    assert f"client speaks control protocol {got}" in str(refused.value)
    assert f"speaks {PROTOCOL_VERSION} (toolkit {TOOLKIT_VERSION})" in str(refused.value)


@pytest.mark.parametrize(
    ("oldest", "newest", "agreed"),
    [(0, 8, 8), (0, 9, 9), (8, 9, 9), (9, 10, 9), (7, 8, 8), (0, 7, None), (0, 10, None), (10, 11, None)],
)
def test_both_sides_use_the_newest_protocol_that_both_speak(monkeypatch, oldest, newest, agreed):
    monkeypatch.setattr(transport, "OLDEST_PROTOCOL", 8)
    monkeypatch.setattr(transport, "PROTOCOL_VERSION", 9)
    assert transport.agree_on_protocol(oldest, newest) == agreed


def test_status_for_programs_that_know_only_grpc():
    assert status_code(SystemBusyError.of("a", 0.0)).name == "FAILED_PRECONDITION"
    assert status_code(errors.SystemStoppingError("stop")).name == "UNAVAILABLE"
    assert status_code(errors.StateMismatchError.of(["a"])).name == "INVALID_ARGUMENT"
    assert status_code(errors.ExecutionError("x")).name == "ABORTED"


FORK = """
import os
from concurrent import futures
import cs_system
import grpc

server = grpc.server(futures.ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
channel = grpc.insecure_channel(f"127.0.0.1:{port}")
grpc.channel_ready_future(channel).result(20)
if not os.fork():
    os._exit(0)
os.wait()
print("forked")
server.stop(None)
"""


def test_a_fork_next_to_connections_writes_no_lines_of_grpc():
    """A DataLoader with workers forks the process of a chief."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    result = subprocess.run(
        [sys.executable, "-c", FORK], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.stdout, result.stderr) == ("forked\n", "")


def test_connections_beyond_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_MAX_CONNECTIONS", 3)
    server = grpc.server(futures.ThreadPoolExecutor(1), options=transport.server_options(60.0))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
    try:
        wait_until(lambda: sum(map(is_closed, sockets)) == 2)
        assert not any(map(is_closed, sockets[:3]))
    finally:
        for sock in sockets:
            sock.close()
        server.stop(None).wait()


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True
